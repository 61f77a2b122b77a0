"""Records a run in its file, as it goes."""

import logging
import secrets
import time

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.clusters.ledger import in_flight
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.restore import Note, allocator_of, missing_state
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import diverged
from mpi_ata.methods import Method, Round
from mpi_ata.runfile.checkpoints import Checkpoints
from mpi_ata.runfile.record import Record

log = logging.getLogger("mpi_ata")


class RunRecorder(Observer):
    """Saves a run before its first round, whenever a save is due, and at its end."""

    def __init__(self, plan: Plan, notes: list[Note]) -> None:
        job, file = plan.job, plan.run_file()
        self.path, self.resumable, self.signal = file.path, True, ""
        self._job, self._notes = job, notes
        self._checkpoints = Checkpoints(file, job.run.checkpoint_rounds, job.run.checkpoint_seconds)
        self._record = plan.earlier or Record(secrets.token_hex(16), job.source, (), {}, prior=plan.prior)

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Save for the first time, so that a file that cannot be written is found before time is spent."""
        self._method, self._cluster, self._trace = method, cluster, trace
        if missing := missing_state(method):
            self.resumable = False
            log.warning("%s: the run is recorded, but cannot be resumed", missing)
        for note in self._notes:
            self.event(note.kind, note.text)
        record = self._record
        record.job, record.identities, record.reason = self._job.source, cluster.identities, ""
        self._checkpoints.save_first(self._filled())

    def event(self, kind: str, text: str, worker: int = -1) -> None:
        """Record something that happened to the run, and log it."""
        self._record.event(time.time(), kind, text, worker)
        if kind not in ("started", "ended"):
            log.info("%s %s", kind, text)

    def on_round(self, round: Round, trace: Trace) -> None:
        """Record what was lost, and save if it is time."""
        for lost in round.losses:
            self.event("lost", f"worker {lost.worker}: {lost.why}", lost.worker)
        if self._checkpoints.due(round.number):
            self._checkpoints.save(self._filled())

    def capture(self, reason: str) -> None:
        """Take the state at the end of a finished run, before its cluster is closed.

        It is saved at once where stopped workers may take their time to report.
        """
        record = self._filled(reason)
        if np.any(in_flight(record.cluster)):
            self._checkpoints.save_last(record)

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Save for the last time: the state, so that the run can be continued, and its summary."""
        self.event("ended", reason or f"early, by {self.signal}")
        record = self._filled() if reason is None else self._record
        record.summary |= trace.summary()
        self._checkpoints.save_last(record)

    def remains(self) -> str:
        """Return what is left of a run that failed, and how to continue."""
        if not self.resumable:
            return f"{self.path} has recorded it up to round {self._checkpoints.latest:,}"
        where = f"{self.path} holds it up to round {self._checkpoints.latest:,}"
        return f"{where}; after fixing it, continue with --out {self.path} --resume"

    def _filled(self, reason: str = "") -> Record:
        method, cluster, trace, record = self._method, self._cluster, self._trace, self._record
        if not np.isfinite(method.x).all():  # what was saved before is still good
            raise diverged(method.k)
        allocator = allocator_of(method)
        record.method = {"k": np.array(method.k)} | (method.state() if self.resumable else {"x": method.x})
        record.allocator = allocator.state() if self.resumable and allocator is not None else {}
        record.cluster = cluster.state()
        record.workers = cluster.ledger.stats.state() | {"unfinished": cluster.ledger.stopped_time.copy()}
        record.totals, record.trace, record.metrics = trace.totals(), trace.history(), trace.evaluations()
        record.summary = trace.summary() | {"workers": cluster.n, "saving": self._checkpoints.cost}
        record.reason = reason
        return record
