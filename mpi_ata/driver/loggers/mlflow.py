"""Logs a run for MLflow."""

import os
import time
from pathlib import Path
from typing import Any

from mpi_ata.driver.loggers.logger import Entry, Logger, known, library

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
        self._client = mlflow.MlflowClient(place)
        self._run = self._continued(run) or self._begun(file.stem, run)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _continued(self, run: str) -> str | None:
        """Return the id that MLflow has given to this run before, if it did."""
        found = self._client.search_runs([self._experiment()], f"tags.{TAG} = '{run}'") if run else []
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _begun(self, name: str, run: str) -> str:
        tags = {TAG: run} if run else {}
        begun: Any = self._client.create_run(self._experiment(), tags=tags, run_name=name)
        return str(begun.info.run_id)

    def write(self, entry: Entry) -> None:
        """Log all values at their round."""
        now, step = int(1000 * time.time()), int(entry["round"])
        metrics = [self._metric(name, value, now, step) for name, value in known(entry).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")
