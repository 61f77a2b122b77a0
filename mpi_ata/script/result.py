"""What minimize() returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.driver.drive import Outcome
from mpi_ata.runfile.frames import Columns
from mpi_ata.runfile.load import load


@dataclass(frozen=True)
class Result:
    """The result of a run; `mpi_ata.load(result.path)` has more of a recorded one."""

    x: Array  # the point
    summary: dict[str, Any]  # rounds, clock, worker_time, loss, finished, ... as `mpi-ata run --json` prints
    history: Columns  # one array per column: round, clock, worker_time, loss, ...; it has to_pandas()
    metrics: Columns  # what the problem's evaluate(x) returned, one array per name, in the rows of `history`
    path: Path | None = None  # the run file, if there is one


def result_of(outcome: Outcome) -> Result:
    """Return the result of a run that has just ended."""
    metrics = {name: np.array(column) for name, column in outcome.trace.metrics.items()}
    history = Columns(outcome.trace.history())
    return Result(outcome.x, outcome.summary(), history, Columns(metrics), outcome.out)


def saved_result(path: Path, recorded: bool = True) -> Result:
    """Return the result of a run in a run file; without `recorded` the file is not to stay."""
    run = load(path)
    summary = run.summary | {"out": str(path) if recorded else None}
    return Result(run.x, summary, run.history, run.metrics, path if recorded else None)
