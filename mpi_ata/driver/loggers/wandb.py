"""Logs a run for Weights & Biases."""

import os
from pathlib import Path

from mpi_ata.driver.loggers.logger import Entry, Logger, known, library


class WandbLogger(Logger):
    """Writes to the folder wandb beside the run file; offline, unless WANDB_MODE says something else."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Begin the run under its id, or continue it."""
        wandb = library("wandb", "wandb")
        self._run = wandb.init(
            id=run or None,
            resume="allow" if run else None,
            name=file.stem,
            project=os.environ.get("WANDB_PROJECT", "mpi_ata"),
            dir=os.environ.get("WANDB_DIR", str(file.parent)),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, entry: Entry) -> None:
        """Log all values at their round."""
        self._run.log(known(entry), step=int(entry["round"]))

    def close(self, finished: bool) -> None:
        """Finish the run; one that was stopped early counts as failed."""
        self._run.finish(exit_code=0 if finished else 1)
