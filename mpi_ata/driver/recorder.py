"""Records a run in its file, as it goes."""

import logging
import secrets
import time
from collections.abc import Sequence

import numpy as np

from mpi_ata.clusters import Back, Cluster, Lost
from mpi_ata.clusters.interface import named
from mpi_ata.clusters.ledger import in_flight
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.restore import Note, allocator_of, missing_state, speed_changes
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import diverged
from mpi_ata.methods import Method, Round
from mpi_ata.runfile.checkpoints import Checkpoints
from mpi_ata.runfile.hosts import HostReport, flagged, report_hosts
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile

log = logging.getLogger("mpi_ata")


class RunRecorder:
    """Saves a run before its first round, whenever a save is due, and at its end."""

    def __init__(self, plan: Plan, file: RunFile, method: Method, cluster: Cluster, trace: Trace) -> None:
        job = plan.job
        self.path = file.path
        self._method, self._cluster, self._trace, self._job = method, cluster, trace, job
        self._checkpoints = Checkpoints(file, job.run.checkpoint_rounds, job.run.checkpoint_seconds)
        self._record = plan.earlier or Record(secrets.token_hex(16), job.source, (), {}, prior=plan.prior)
        missing = missing_state(method)
        self.resumable = not missing
        if missing:
            log.warning("%s: the run is recorded, but cannot be resumed", missing)

    def begin(self, notes: Sequence[Note]) -> None:
        """Save for the first time, so that a file that cannot be written is found before time is spent."""
        for note in notes:
            self.event(note.kind, note.text)
        record = self._record
        record.job, record.identities, record.reason = self._job.source, self._cluster.identities, ""
        self._checkpoints.save_first(self._filled())

    def event(self, kind: str, text: str, worker: int = -1) -> None:
        """Record something that happened to the run, and log it."""
        self._record.event(time.time(), kind, text, worker)
        if kind not in ("started", "ended"):
            log.info("%s %s", kind, text)

    def note(self, round: Round) -> None:
        """Record who was lost or came back in a round, and whose speed changed."""
        for lost in round.losses:
            self._worker_event(lost.kind, lost)
        for back in round.returns:
            self._worker_event("back", back)
        for change in speed_changes(self._method):
            self.event("changed-speed", str(change), change.worker)

    def save_if_due(self, round: Round) -> None:
        """Save if it is time."""
        if self._checkpoints.due(round.number):
            self._checkpoints.save(self._filled())

    def _worker_event(self, kind: str, found: Lost | Back) -> None:
        """Record what happened to a worker; it was logged in mid-round, when it happened."""
        who = named(found.worker, self._cluster.identities[found.worker])
        self._record.event(time.time(), kind, f"{who}: {found.why}", found.worker)

    def save_completed(self, losses: Sequence[Lost]) -> None:
        """Save the completed rounds, when these losses make it impossible to complete the current one."""
        for lost in losses:
            self._worker_event(lost.kind, lost)
        self._checkpoints.save(self._filled())

    def finish(self, reason: str) -> None:
        """Take the state at the end of a finished run, before its cluster is closed.

        It is saved at once where workers are still being stopped, since they may take their time.
        """
        self.event("ended", reason)
        record = self._filled(reason)
        if "stopping" in record.cluster and in_flight(record.cluster).any():
            self._checkpoints.save_last(record)

    def save_summary(self) -> None:
        """Save a run again, with what came after its last round: late reports of workers, an evaluation."""
        self._record.summary |= self._trace.summary()
        self._record.metrics = self._trace.evaluations()
        self._checkpoints.save_last(self._record)

    def interrupt(self, signal: str) -> None:
        """Save a run that ends early, so that it can be resumed."""
        self.event("ended", f"early, by {signal}")
        self._checkpoints.save_last(self._filled())

    @property
    def saved(self) -> int:
        """Return the round of the latest save."""
        return self._checkpoints.latest

    def flagged_hosts(self) -> list[HostReport]:
        """Return the hosts that were slow, flaky or lost, as of the latest save."""
        return flagged(report_hosts(self._record))

    def remains(self) -> str:
        """Return what is left of a run that failed, and how to continue."""
        if not self.resumable:
            return f"{self.path} has recorded it up to round {self.saved:,}"
        where = f"{self.path} holds it up to round {self.saved:,}"
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
