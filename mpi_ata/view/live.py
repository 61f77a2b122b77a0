"""The live view of a run: one screenful on the terminal, drawn by the manager."""

import time
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from mpi_ata.arrays import IntArray
from mpi_ata.clusters import Back, Cluster, Lost, WorkerIdentity
from mpi_ata.clusters.interface import named
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop
from mpi_ata.job.tables import Tables
from mpi_ata.launch.terminal import behind_terminal
from mpi_ata.methods import Method, Round
from mpi_ata.runfile.progress import job_title
from mpi_ata.view.progress import ProgressLine
from mpi_ata.view.screen import Screen, has_room
from mpi_ata.view.snapshot import EVENTS, snapshot_of_run, workers_of_cluster
from mpi_ata.view.snapshot_text import snapshot_text

SHARE = 0.002  # of the time of a run, for drawing
RECENT = 10.0  # seconds without a finished task, at least, after which a worker counts as idle


class LiveView(Screen, Observer):
    """Shows a run in progress on a screen that is redrawn a few times per second."""

    def __init__(self, title: str, stop: Stop, stream: TextIO | None, terminal: bool = False) -> None:
        super().__init__(stream, terminal)
        self._title, self._stop = title, stop
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._tasks: deque[tuple[float, int, IntArray]] = deque(maxlen=2)  # when, and by which round
        self._cluster: Cluster | None = None
        self._identities: tuple[WorkerIdentity, ...] = ()

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Take note of the workers."""
        self._cluster, self._identities = cluster, cluster.identities  # a large simulation makes them anew

    def on_round(self, round: Round, trace: Trace) -> None:
        """Redraw the screen if it is due."""
        if round.losses or round.returns:
            self._note([*round.losses, *round.returns], round.number)
        if self.due():
            began = time.monotonic()
            self.show(self._text(trace))
            self.wait((time.monotonic() - began) / SHARE)

    def _note(self, changes: Sequence[Lost | Back], number: int) -> None:
        for change in changes:
            who = named(change.worker, self._identities[change.worker])
            self._events.append(f"round {number:,}: {who}: {change.why}")

    def _text(self, trace: Trace) -> str:
        assert self._cluster is not None
        now = time.monotonic()
        if not self._tasks or now - self._tasks[-1][0] > RECENT:
            self._tasks.append((now, trace.round, self._cluster.ledger.stats.state()["tasks"].copy()))
        began, since, tasks = self._tasks[0]
        before = tasks if now - began > RECENT else None
        workers = workers_of_cluster(self._cluster, self._identities, before, since)
        return snapshot_text(snapshot_of_run(self._title, self._stop, trace, workers, self._events))


def view_of(tables: Tables, stop: Stop, stream: TextIO | None, label: str = "") -> ProgressLine | LiveView:
    """Return what shows the progress of the run that these tables describe."""
    return progress_view(job_title(tables), stop, stream, label, behind_terminal(stream))


def progress_view(
    title: str, stop: Stop, stream: TextIO | None, label: str = "", terminal: bool = False
) -> ProgressLine | LiveView:
    """Return the live view where a terminal has room for it, and a progress line otherwise.

    `label` marks one of several runs: these are shown in one line each.
    """
    if not label and has_room(stream, terminal):
        return LiveView(title, stop, stream, terminal)
    return ProgressLine(stop, stream, label, terminal)
