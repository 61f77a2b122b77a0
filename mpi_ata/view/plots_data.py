"""What figures show of a run: curves over its rounds, and what it knows about its workers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.driver.task_map import group_size
from mpi_ata.runfile.describe import LATEST
from mpi_ata.runfile.record import Record
from mpi_ata.view.learned import Learned, learned

MOST = 100  # rows of workers in a picture; more workers are averaged in groups of similar speed
MOST_ROUNDS = 512  # points of a curve over rounds


@dataclass(frozen=True)
class PlottedRun:
    """One run in a figure; `workers` is None where only its curves are known."""

    name: str
    history: State
    cores: float | None = None  # billed while it lasts
    workers: Learned | None = None
    times: Array = field(default_factory=lambda: np.zeros((0, 0)))  # sampled task times, a row per worker
    task_map: State = field(default_factory=dict)
    metrics: State = field(default_factory=dict)  # what else was evaluated, along the history

    def metric(self, name: str) -> Array:
        """Return what was evaluated under a name at each row of the history; NaN where nothing was."""
        return np.asarray(self.metrics.get(name, np.full(len(self.history["round"]), np.nan)), np.float64)

    def column(self, name: str) -> Array:
        """Return a column of the history, as floats; `billed` is cores x elapsed."""
        if name == "billed":
            return self.column("elapsed") * (np.nan if self.cores is None else self.cores)
        return np.asarray(self.history[name], np.float64)


class Rows(NamedTuple):
    """How the workers of a run become the rows of a picture."""

    groups: list[IntArray]  # the workers of each row
    label: str  # of the axis

    def averaged(self, values: Array) -> Array:
        """Return the mean of values of workers, along the first axis, for each row; NaN is ignored."""
        known = ~np.isnan(values)
        sums, counts = np.where(known, values, 0.0), known.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            rows = [sums[group].sum(axis=0) / counts[group].sum(axis=0) for group in self.groups]
        return np.array(rows)


def plotted(record: Record, name: str) -> PlottedRun:
    """Return what figures show of a saved run."""
    billed, elapsed = record.summary.get("billed"), record.summary["elapsed"]
    return PlottedRun(
        name,
        record.trace,
        billed / elapsed if billed and elapsed else None,
        learned(record),
        record.workers.get("times", np.zeros((0, 0))),
        record.task_map,
        {name: values for name, values in record.metrics.items() if not name.startswith(LATEST)},
    )


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each run file: its stem, or its path where several have the same stem."""
    stems = Counter(path.stem for path in paths)
    return [path.stem if stems[path.stem] == 1 else str(path.with_suffix("")) for path in paths]


def worker_rows(run: PlottedRun) -> Rows:
    """Return the rows of a picture of workers: one each, or groups of similar speed where there are many."""
    assert run.workers is not None
    n = len(run.workers.means)
    if n <= MOST:
        return Rows([np.array([worker]) for worker in range(n)], "worker")
    order = np.argsort(run.workers.means, kind="stable")  # those never tried, NaN, come last
    groups = np.array_split(order, MOST)
    return Rows(groups, f"workers, fastest first\n(groups of {len(groups[0]):,})")


def round_times(run: PlottedRun) -> tuple[Array, Array]:
    """Return rounds, and the mean length of a round since the previous one of them."""
    round, clock = run.column("round"), run.column("clock")
    step = max(1, len(round) // MOST_ROUNDS)
    round, clock = round[::step], clock[::step]
    length, count = np.diff(clock), np.diff(round)
    some = count > 0
    return round[1:][some], length[some] / count[some]


def task_rates(run: PlottedRun) -> tuple[Array, Array, str]:
    """Return times on the clock, the tasks per round between them for each row of workers, and its label.

    Where the file counts groups of neighbours, it is these that make up the rows.
    """
    assert run.workers is not None
    clock = np.concatenate([[0.0], run.task_map["clock"]])
    rounds = np.diff(np.concatenate([[0], run.task_map["round"]]))
    tasks = (np.diff(run.task_map["tasks"], axis=0, prepend=0) / rounds[:, None]).T
    n = len(run.workers.means)
    if len(tasks) == n:
        rows = worker_rows(run)
        return clock, rows.averaged(tasks), rows.label
    groups = np.array_split(np.arange(len(tasks)), min(MOST, len(tasks)))
    rates = Rows(groups, "").averaged(tasks) / group_size(n)
    return clock, rates, f"workers\n(groups of {len(groups[0]) * group_size(n):,})"
