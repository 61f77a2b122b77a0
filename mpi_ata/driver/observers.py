"""Observers of a run in progress; loggers among them write its trace to CSV, TensorBoard, W&B or MLflow."""

import csv
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mpi_ata.clusters import Cluster
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError
from mpi_ata.methods import Method, Round

COLUMNS = ("round", "clock", "elapsed", "worker_time", "waste", "billed", "loss", "gap")
UNSAVED = Path("run.h5")  # stands for the run file of a run that has none

Entry = dict[str, float]  # by name; NaN where something is not known


class Observer:
    """Watches a run in progress, on the manager; override the hooks you need.

    `trace` has the totals so far: round, clock, elapsed, worker_time, loss, gap, evaluation, summary().
    """

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Look at the run before it starts or resumes."""

    def on_round(self, round: Round, trace: Trace) -> None:
        """Look at a round that has ended."""

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Look at the run after its last round; `reason` is the limit reached, or None."""


class Logger(Observer, ABC):
    """Writes one entry for each evaluation of a run, on the manager, beside the run file.

    A run keeps its id when it is resumed, and entries after the round that it is resumed from are replaced.
    """

    def __init__(self) -> None:
        self._file, self._id = UNSAVED, ""
        self._latest = -1  # the round that was written last

    def place(self, file: Path, run: str) -> None:
        """Say which run file to write beside, and the id of the run; called before the run starts."""
        self._file, self._id = file, run

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Open the log, or continue it."""
        self._latest = trace.round if trace.rows else -1
        self.open(self._file, self._id, self._latest)

    def on_round(self, round: Round, trace: Trace) -> None:
        """Write an entry if the round was evaluated; before the first, that of the start."""
        if self._latest < 0:
            self._write(_start(trace))
        if trace.is_evaluated():
            self._write(_now(trace))

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Write the last evaluation, if that is not done, and close the log."""
        if self._latest >= 0 and trace.is_evaluated() and trace.round > self._latest:
            self._write(_now(trace))
        self.close(finished=reason is not None)

    def _write(self, entry: Entry) -> None:
        self._latest = int(entry["round"])
        self.write(entry)

    @abstractmethod
    def open(self, file: Path, run: str, latest: int) -> None:
        """Open the log of a run; entries up to the round `latest` are there already, -1: none."""

    @abstractmethod
    def write(self, entry: Entry) -> None:
        """Write one entry."""

    def close(self, finished: bool) -> None:
        """Close the log; `finished` says whether the run has reached a limit."""


def _start(trace: Trace) -> Entry:
    """Return the entry of the evaluation before the first round."""
    row = trace.rows[0]
    metrics = {name: column[0] for name, column in trace.metrics.items()}
    return _entry(row._asdict() | {"billed": trace.cores * row.elapsed or None}, metrics)


def _now(trace: Trace) -> Entry:
    summary = trace.summary()
    return _entry(summary | {"round": summary["rounds"]}, summary["evaluation"])


def _entry(values: Mapping[str, Any], metrics: Mapping[str, float | None]) -> Entry:
    own = {f"evaluation.{name}" if name in COLUMNS else name: value for name, value in metrics.items()}
    named = {name: values[name] for name in COLUMNS} | own
    return {name: math.nan if value is None else value for name, value in named.items()}


def known(entry: Entry) -> Entry:
    """Return the values of an entry that are known, but for the round."""
    return {name: value for name, value in entry.items() if math.isfinite(value) and name != "round"}


def library(name: str, extra: str) -> Any:
    """Return a library that not everybody has; UsageError if it is missing."""
    try:
        return import_module(name)
    except ImportError:
        way_out = f"use pip install 'mpi-ata[{extra}]'"
        raise UsageError(f"the logger {extra!r} needs {name}, which is not installed; {way_out}") from None


class CSVLogger(Logger):
    """Appends a row to RUN.log.csv for each evaluation; what is not known is empty."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Keep the rows up to the round `latest` of what is there."""
        self._path, self._columns = file.with_suffix(".log.csv"), list(COLUMNS)
        rows = self._rows() if latest >= 0 and self._path.exists() else []
        kept = [row for row in rows if int(row["round"]) <= latest]
        self._columns = list(rows[0]) if rows else self._columns
        self._rewrite(kept)

    def write(self, entry: Entry) -> None:
        """Append a row; where it has a new column, all rows get it."""
        if new := [name for name in entry if name not in self._columns]:
            rows = self._rows()
            self._columns += new
            self._rewrite(rows)
        with self._path.open("a", newline="") as target:
            cells = {name: "" if value != value else str(value) for name, value in entry.items()}
            self._writer(target).writerow(cells)

    def _rows(self) -> list[dict[str, str]]:
        with self._path.open(newline="") as source:
            return list(csv.DictReader(source))

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        with self._path.open("w", newline="") as target:
            writer = self._writer(target)
            writer.writeheader()
            writer.writerows(rows)

    def _writer(self, target: object) -> "csv.DictWriter[str]":
        return csv.DictWriter(target, self._columns, restval="", lineterminator="\n")  # type: ignore[arg-type]


class TensorBoardLogger(Logger):
    """Writes event files to the folder RUN.tensorboard, by tensorboardX."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Begin an event file; TensorBoard drops what earlier ones hold after the round `latest`."""
        folder, begin = str(file.with_suffix(".tensorboard")), latest + 1
        writer = library("tensorboardX", "tensorboard").SummaryWriter
        # Without a suffix, files that are begun within the same second would have the same name.
        self._writer = writer(folder, purge_step=begin, filename_suffix=f".{begin}")

    def write(self, entry: Entry) -> None:
        """Write one scalar for each value."""
        for name, value in known(entry).items():
            self._writer.add_scalar(name, value, int(entry["round"]))

    def close(self, finished: bool) -> None:
        """Close the event file."""
        self._writer.close()


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


EXPERIMENT, TAG = "mpi_ata", "mpi_ata_run"


class MLflowLogger(Logger):
    """Writes to the folder mlruns beside the run file, or to MLFLOW_TRACKING_URI if that is set."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Begin the run, or continue the one that has its id as a tag."""
        mlflow = library("mlflow", "mlflow")
        self._metric = mlflow.entities.Metric
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            # Newer versions maintain folders no longer and want this to be set; a database would need more
            # than mlflow-skinny installs.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            place = file.with_name("mlruns").absolute().as_uri()
        self._client = client = mlflow.MlflowClient(place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        there = client.get_experiment_by_name(name)
        experiment = str(there.experiment_id if there else client.create_experiment(name))
        found = client.search_runs([experiment], f"tags.{TAG} = '{run}'") if run else []
        tags = {TAG: run} if run else {}
        mine = found[0] if found else client.create_run(experiment, tags=tags, run_name=file.stem)
        self._run = str(mine.info.run_id)
        if found:
            client.update_run(self._run, status="RUNNING")

    def write(self, entry: Entry) -> None:
        """Log all values at their round."""
        now, step = int(1000 * time.time()), int(entry["round"])
        metrics = [self._metric(name, value, now, step) for name, value in known(entry).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


LOGGERS: dict[str, type[Logger]] = {
    "csv": CSVLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}
