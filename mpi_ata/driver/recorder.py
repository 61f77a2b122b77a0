"""Records a run in its file, as it goes."""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters import Back, Lost, VirtualCluster
from mpi_ata.clusters.interface import named
from mpi_ata.clusters.ledger import in_flight
from mpi_ata.driver.plan import Start
from mpi_ata.driver.recorded import RecordedMethod, RecordedWorkers
from mpi_ata.driver.restore import Note, allocator_of, missing_state, speed_changes
from mpi_ata.driver.round_sample import RoundSample
from mpi_ata.driver.task_map import TaskMap
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import DivergedError, LossError, TakenError, UsageError, diverged, in_short
from mpi_ata.launch import slurm_job
from mpi_ata.methods import Round
from mpi_ata.runfile.checkpoints import SHARE, Checkpoints
from mpi_ata.runfile.hosts import HostReport, flagged, report_hosts
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.prior import same_workers
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile

log = logging.getLogger("mpi_ata")

CHANGES = 5  # of speed that are logged
FIRST = 100  # after each of these rounds the state is taken, later as often as is cheap enough


class RunRecorder:
    """Saves a run before its first round, whenever a save is due, and at its end."""

    def __init__(
        self, plan: Start, file: RunFile, method: RecordedMethod, cluster: RecordedWorkers, trace: Trace
    ) -> None:
        job = plan.job
        self.path, self._file = file.path, file
        self._new, self._removed = plan.earlier is None, False
        # Elsewhere the state is that of the latest completed round until a round ends.
        self._takes_states = isinstance(cluster, VirtualCluster) or hasattr(method, "point_per_worker")
        self._next_state = 0.0
        self._changes = 0  # of speed
        self._method, self._cluster, self._trace, self._job = method, cluster, trace, job
        self._checkpoints = Checkpoints(file, job.run.checkpoint_rounds, job.run.checkpoint_seconds)
        self._record = plan.earlier or Record(secrets.token_hex(16), job.source, (), {}, prior=plan.prior)
        self._map = TaskMap(cluster.n)
        self._sample = None if isinstance(cluster, VirtualCluster) else RoundSample()
        missing = missing_state(method)
        self.resumable = not missing
        if missing:
            log.warning("%s: the run is recorded, but cannot be resumed", missing)

    def begin(self, notes: Sequence[Note]) -> None:
        """Save for the first time, so that a file that cannot be written is found before time is spent."""
        for note in notes:
            self.event(note.kind, note.text)
        record = self._record
        same = same_workers(record.identities, self._cluster.identities)
        record.job, record.identities, record.reason = self._job.source, self._cluster.identities, ""
        record.failure = ""
        if (
            (id := slurm_job())
            and id not in record.slurm_jobs
            and not isinstance(self._cluster, VirtualCluster)
        ):
            record.slurm_jobs = (*record.slurm_jobs, id)
        self._map.restore(record.task_map, self._cluster.ledger.stats.state()["tasks"])
        if self._sample is not None:
            self._sample.restore(record.rounds if same else {})
            self._log_next(self._trace.round)
        with self._trace.shares.timed("saving_time"):
            self._checkpoints.save_first(self._filled())

    def event(self, kind: str, text: str, worker: int = -1) -> None:
        """Record something that happened to the run, and log it: scripts show nothing below a warning."""
        self._record.event(time.time(), kind, text, worker)
        if kind not in ("started", "ended"):
            log.warning("%s", f"{kind} {text}" if worker < 0 else text)

    def note(self, round: Round) -> None:
        """Record who did how much in a round, was lost or came back, and whose speed changed."""
        if self._map.due(round.number):
            tasks = self._cluster.ledger.stats.state()["tasks"]
            self._map.add(round.number, self._trace.clock, tasks)
        self._sample_round(round)
        for lost in round.losses:
            self._worker_event(lost.kind, lost)
        for back in round.returns:
            self._worker_event("back", back)
        for change in speed_changes(self._method):
            if getattr(change, "notable", True):  # those of a user's allocator all are
                self._note_change(str(change), change.worker)

    def _note_change(self, text: str, worker: int) -> None:
        """Record that a speed changed; on a busy machine that is often, so only the first ones are logged."""
        self._record.event(time.time(), "changed-speed", text, worker)
        self._changes += 1
        if self._changes <= CHANGES:
            log.warning("%s", text)
        elif self._changes == CHANGES + 1:
            log.warning("further changes of speed are only recorded: mpi-ata show prints them")

    def _sample_round(self, round: Round) -> None:
        """Keep what a round took, unless orders run on, whose times belong to no single round."""
        sample, number = self._sample, round.number
        if sample is None or not (sample.due(number) or sample.due(number + 1)):
            return
        delivered = self._cluster.ledger.stats.take_log()
        idle = getattr(self._cluster, "idle", None)  # the ranks of a DDP script are all busy or all idle
        if delivered is not None and idle is not None and len(idle()) < self._cluster.n:
            self._sample = None
            return
        if delivered is not None:
            sample.add(number, round.duration, delivered)
        self._log_next(number)

    def _log_next(self, round: int) -> None:
        """Log what is delivered in the round after this one, if it is in the sample."""
        if self._sample is not None and self._sample.due(round + 1):
            self._cluster.ledger.stats.begin_log()

    def save_if_due(self, round: Round) -> None:
        """Save if it is time; in between, take the state as often as is cheap, in case the run fails."""
        if self._checkpoints.due(round.number):
            with self._trace.shares.timed("saving_time"):
                self._checkpoints.save(self._filled())
        elif self._takes_states and (round.number <= FIRST or time.monotonic() >= self._next_state):
            self._filled()

    def _worker_event(self, kind: str, found: Lost | Back) -> None:
        """Record what happened to a worker; it was logged in mid-round, when it happened."""
        who = named(found.worker, self._cluster.identities[found.worker])
        self._record.event(time.time(), kind, f"{who}: {found.why}", found.worker)

    def fail(self, error: Exception, whole: bool) -> None:
        """Record why the run fails, with its state now if that is `whole`, or else when it was last taken.

        A new run of which no completed round can be saved leaves no file.
        """
        if whole and self._finite():
            self._filled()
        self._note_failure(error)
        with suppress(TakenError, UsageError):  # where the file is not ours, or is damaged, it stays as it is
            record = self._as_saved() if isinstance(error, DivergedError) else self._record
            if self._new and not int(record.method["k"]) and not isinstance(error, LossError):
                self._removed = self._file.remove()
            else:
                self._checkpoints.save(record)

    def _as_saved(self) -> Record:
        """Return the record in the run file with the events since then: later states may be out of range."""
        record, _ = load_record(self._file)
        if record.run != self._record.run:
            raise TakenError(f"{self.path} was written by another run in the meantime")
        record.events, record.failure = self._record.events, self._record.failure
        return record

    def _note_failure(self, error: Exception) -> None:
        """Record a failure; one that is a loss of workers by what happened to them."""
        self._record.failure = in_short(error)
        for lost in getattr(error, "losses", ()):
            self._worker_event(lost.kind, lost)
        if not isinstance(error, LossError):
            self._record.event(time.time(), "failed", self._record.failure)

    def finish(self, reason: str) -> None:
        """Take the state at the end of a finished run, before its cluster is closed.

        It is saved at once where workers are still being stopped, since they may take their time.
        """
        self.event("ended", reason)
        record = self._filled(reason)
        if "stopping" in record.cluster and in_flight(record.cluster).any():
            self._checkpoints.save_last(record)

    def save_summary(self) -> None:
        """Save a finished run for the last time."""
        self.save_again()
        self._file.remove_previous()

    def save_again(self) -> None:
        """Save a run with what came after its last round: late reports of workers, an evaluation."""
        self._record.summary |= self._trace.summary()
        self._record.metrics = self._trace.evaluations()
        self._checkpoints.save_last(self._record)

    def interrupt(self, signal: str) -> None:
        """Save a run that ends early, so that it can be resumed."""
        self.event("ended", f"early, by {signal}")
        self._checkpoints.save_last(self._filled())

    @property
    def run(self) -> str:
        """Return the unique name of the run, which it keeps when it is resumed."""
        return self._record.run

    @property
    def saved(self) -> int:
        """Return the round of the latest save."""
        return self._checkpoints.latest

    def flagged_hosts(self) -> list[HostReport]:
        """Return the hosts that were slow, flaky or lost, as of the latest save."""
        return flagged(report_hosts(self._record))

    def remains(self) -> str:
        """Return what is left of a run that failed, and how to continue."""
        if self._removed:
            return f"no completed round could be saved, so {self.path} was removed"
        if not self.resumable:
            return f"{self.path} has recorded it up to round {self.saved:,}"
        where = f"{self.path} holds it up to round {self.saved:,}"
        edited = "adding --accept-changes if you edited a file"
        return f"{where}; after fixing it, continue with --out {self.path} --resume, {edited}"

    def _finite(self) -> bool:
        # A point that no update moves cannot diverge.
        return getattr(self._method, "any_x", False) or bool(np.isfinite(self._method.x).all())

    def _filled(self, reason: str = "") -> Record:
        method, cluster, trace, record = self._method, self._cluster, self._trace, self._record
        if not self._finite():  # what was saved before is still good
            raise diverged(method.k)
        began = time.monotonic()
        allocator, stats = allocator_of(method), cluster.ledger.stats.state()
        state = {"k": np.array(method.k)} | (method.state() if self.resumable else {"x": method.x})
        record.method = _copied(state)
        record.allocator = _copied(allocator.state()) if self.resumable and allocator is not None else {}
        record.cluster = _copied(cluster.state())
        record.workers = _copied(stats) | {"unfinished": cluster.ledger.stopped_time.copy()}
        record.task_map = self._map.state()
        record.rounds = {} if self._sample is None else self._sample.state()
        record.totals, record.trace, record.metrics = trace.totals(), trace.history(), trace.evaluations()
        record.summary = trace.summary() | {"workers": cluster.n, "saving": self._checkpoints.cost}
        record.reason = reason
        self._next_state = time.monotonic() + (time.monotonic() - began) / SHARE
        return record


def _copied(state: State) -> State:
    """Return a state that stays what it is while the run continues."""
    return {name: np.array(array) for name, array in state.items()}
