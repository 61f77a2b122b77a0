"""What all loggers have in common: when they write, what, and where."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mpi_ata.clusters import Cluster
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError
from mpi_ata.methods import Method, Round

COLUMNS = ("round", "clock", "elapsed", "worker_time", "waste", "billed", "loss", "gap")
UNSAVED = Path("run.h5")  # stands for the run file of a run that has none

Entry = dict[str, float]  # by name; NaN where something is not known


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
