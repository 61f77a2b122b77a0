"""Records a run in its file, as it goes."""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mpi_ata.allocators.change_detection import SpeedChange
from mpi_ata.arrays import IntArray, State
from mpi_ata.clusters import Back, Lost
from mpi_ata.clusters.accounts import Delivery, in_flight
from mpi_ata.clusters.interface import ClusterAbilities, named
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.restore import Note, RecordedMethod, RecordedWorkers, missing_state
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import DivergedError, LossError, TakenError, UsageError, diverged, in_short
from mpi_ata.launch import slurm_job
from mpi_ata.methods import Round
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.runfile.checkpoints import SHARE, Checkpoints
from mpi_ata.runfile.hosts import HostReport, flagged, report_hosts
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.priors import same_workers
from mpi_ata.runfile.progress import NOT_RESUMABLE
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile

ROWS = 1024  # rounds that are kept, at most; then every other one is dropped
TASKS = 1 << 16  # and their tasks

Row = tuple[int, float, list[Delivery]]  # round, its length, and what was delivered in it


class RoundSample:
    """Rounds as they were, evenly spaced over the run."""

    def __init__(self) -> None:
        self._stride, self._tasks = 1, 0
        self._rows: list[Row] = []

    def due(self, round: int) -> bool:
        """Return whether this round is one of those to keep."""
        return round % self._stride == 0

    def add(self, round: int, duration: float, deliveries: list[Delivery]) -> None:
        """Keep a round."""
        self._rows.append((round, duration, deliveries))
        self._tasks += _tasks(deliveries)
        while len(self._rows) > ROWS or (self._tasks > TASKS and len(self._rows) > 1):
            self._stride *= 2
            self._rows = [row for row in self._rows if self.due(row[0])]
            self._tasks = sum(_tasks(deliveries) for _, _, deliveries in self._rows)

    def state(self) -> State:
        """Return the rows as columns: of rounds, of what was delivered in them, and of its tasks."""
        deliveries = [each for _, _, several in self._rows for each in several]
        seconds = [second for _, several, _ in deliveries for second in several]
        return {
            "round": np.array([round for round, _, _ in self._rows], np.int64),
            "duration": np.array([duration for _, duration, _ in self._rows], np.float64),
            "deliveries": np.array([len(several) for _, _, several in self._rows], np.int64),
            "worker": np.array([worker for worker, _, _ in deliveries], np.int64),
            "overhead": np.array([overhead for _, _, overhead in deliveries], np.float64),
            "tasks": np.array([len(several) for _, several, _ in deliveries], np.int64),
            "seconds": np.array(seconds, np.float64),
        }

    def restore(self, state: State) -> None:
        """Continue the sample of a resumed run."""
        if not state or not len(state["round"]):
            return
        seconds = np.split(state["seconds"], np.cumsum(state["tasks"])[:-1])
        columns = zip(state["worker"].tolist(), seconds, state["overhead"].tolist(), strict=True)
        deliveries = [(worker, several.tolist(), overhead) for worker, several, overhead in columns]
        ends = np.cumsum(state["deliveries"]).tolist()
        self._rows = [
            (round, duration, deliveries[begin:end])
            for round, duration, begin, end in zip(
                state["round"].tolist(), state["duration"].tolist(), [0, *ends], ends, strict=False
            )
        ]
        self._tasks = len(state["seconds"])
        self._stride = int(np.diff(state["round"]).min(initial=self._rows[0][0]))


def _tasks(deliveries: list[Delivery]) -> int:
    return sum(len(seconds) for _, seconds, _ in deliveries)


ROWS_TASK_MAP = 128  # rounds that are kept, at most; then every other one is dropped
COLUMNS = 1024  # workers that are counted one by one; more are added up in groups of neighbours


def group_size(n: int) -> int:
    """Return how many of n workers share a column."""
    return -(-n // COLUMNS)


class TaskMap:
    """The number of tasks that each worker has finished up to some rounds, evenly spaced over the run."""

    def __init__(self, n: int) -> None:
        self._first = np.arange(0, n, group_size(n))  # worker of each column
        self._n, self._stride = n, 1
        self._rows: list[tuple[int, float, IntArray]] = []  # round, clock, tasks

    def due(self, round: int) -> bool:
        """Return whether this round is one of those to keep."""
        return round % self._stride == 0

    def add(self, round: int, clock: float, tasks: IntArray) -> None:
        """Keep the number of tasks that each worker has finished by the end of a round."""
        self._rows.append((round, clock, self._grouped(tasks)))
        if len(self._rows) > ROWS_TASK_MAP:
            self._stride *= 2
            self._rows = [row for row in self._rows if self.due(row[0])]

    def _grouped(self, tasks: IntArray) -> IntArray:
        return tasks.copy() if len(self._first) == self._n else np.add.reduceat(tasks, self._first)

    def state(self) -> State:
        """Return the rows as columns."""
        rounds, clocks, tasks = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        return {
            "round": np.array(rounds, np.int64),
            "clock": np.array(clocks, np.float64),
            "tasks": np.array(tasks, np.int64).reshape(-1, len(self._first)),
        }

    def restore(self, state: State, tasks: IntArray) -> None:
        """Continue the map of a resumed run, unless it has other workers: these have done fewer tasks."""
        saved = state.get("tasks", np.zeros((0, 0), np.int64))
        if not len(saved) or saved.shape[1] != len(self._first) or (saved[-1] > self._grouped(tasks)).any():
            return
        self._rows = list(zip(state["round"].tolist(), state["clock"].tolist(), saved, strict=True))
        self._stride = int(np.diff(state["round"]).min(initial=self._rows[0][0]))


log = logging.getLogger("mpi_ata")

LASTING_SHARE, LASTING_SECONDS = 0.1, 10.0  # of the rounds so far, and of real time, that a change has lasted
LINES, NAMED = 3, 4  # lines about changes of speed that are logged, and workers in each


class SpeedNotes:
    """Logs changes of speed that have lasted, in a few lines: on a busy machine most are over soon."""

    def __init__(self, simulated: bool) -> None:
        self._seconds, self._lines = 0.0 if simulated else LASTING_SECONDS, LINES
        self._pending: dict[int, tuple[Any, int, float]] = {}  # by worker: the change, its round, its time

    def note(self, changes: Sequence[Any], round: int) -> None:
        """Take in the changes of a round, and log those that have lasted by now, in one line."""
        now = time.monotonic()
        for change in changes:
            both = change.worker in self._pending and isinstance(change, SpeedChange)
            whole = change.after(self._pending[change.worker][0]) if both else change
            self._pending[change.worker] = whole, round, now
        latest, until = (1.0 - LASTING_SHARE) * round, now - self._seconds
        due = [change for change, at, when in self._pending.values() if at <= latest and when <= until]
        for change in due:
            del self._pending[change.worker]
        texts = [str(change) for change in due if is_notable(change)]
        if texts and self._lines:
            self._lines -= 1
            texts[NAMED:] = ["and more"] if texts[NAMED:] else []
            log.warning(
                "%s", "; ".join([*texts, *([] if self._lines else ["further changes are only recorded"])])
            )


def is_notable(change: Any) -> bool:
    """Return whether a change is worth a note; those of a user's allocator all are."""
    return bool(getattr(change, "notable", True))


FIRST = 100  # after each of these rounds the state is taken, later as often as is cheap enough


class RunRecorder:
    """Saves a run before its first round, whenever a save is due, and at its end."""

    def __init__(
        self, plan: RunStart, file: RunFile, method: RecordedMethod, cluster: RecordedWorkers, trace: Trace
    ) -> None:
        job = plan.job
        self.path, self._file, self._output = file.path, file, plan.output
        self._lock = RunLock(file.path)
        self._new, self._removed = plan.earlier is None, False
        can = MethodAbilities.of(method)
        self._allocator, self._any_x = can.allocator, can.any_x
        # Elsewhere the state is that of the latest completed round until a round ends.
        self._simulated = ClusterAbilities.of(cluster).simulated
        self._takes_states = self._simulated or can.point_per_worker
        self._next_state = 0.0
        self._speeds = SpeedNotes(self._simulated)
        self._method, self._cluster, self._trace, self._job = method, cluster, trace, job
        self._checkpoints = Checkpoints(file, job.run.checkpoint_rounds, job.run.checkpoint_seconds)
        self._record = plan.earlier or Record(secrets.token_hex(16), job, (), {}, prior=plan.prior)
        self._map = TaskMap(cluster.n)
        self._sample = None if self._simulated else RoundSample()
        missing = missing_state(method, can.allocator, can.update)
        self.resumable = not missing
        if missing:
            log.warning("%s: the run is recorded, but cannot be resumed", missing)

    def begin(self, notes: Sequence[Note]) -> None:
        """Save for the first time, so that a file that cannot be written is found before time is spent."""
        self._lock.acquire()
        for note in notes:
            self.event(note.kind, note.text)
        record = self._record
        same = same_workers(record.identities, self._cluster.identities)
        record.job, record.identities, record.reason = self._job, self._cluster.identities, ""
        record.failure = ""
        if (id := slurm_job()) and id not in record.slurm_jobs and not self._simulated:
            record.slurm_jobs = (*record.slurm_jobs, id)
        self._map.restore(record.task_map, self._cluster.ledger.stats.state()["tasks"])
        if self._sample is not None:
            self._sample.restore(record.rounds if same else {})
            self._log_next(self._trace.round)
        with self._trace.wall_time.timed("saving_time"):
            self._checkpoints.save_first(self._filled())

    def event(self, kind: str, text: str) -> None:
        """Record something that happened to the run, and log it: scripts show nothing below a warning."""
        self._record.event(time.time(), kind, text)
        if kind not in ("started", "shared", "ended"):
            log.warning("%s %s", kind, text)

    def note(self, round: Round) -> None:
        """Record who did how much in a round, was lost or came back, and whose speed changed."""
        if self._map.due(round.number):
            tasks = self._cluster.ledger.stats.state()["tasks"]
            self._map.add(round.number, self._trace.clock, tasks)
        self._sample_round(round)
        happened: tuple[Lost | Back, ...] = (*round.losses, *round.returns)
        for found in happened:
            self._worker_event(found)
        changes = [*filter(is_notable, getattr(self._allocator, "speed_changes", ()))]
        for change in changes:
            self._record.event(time.time(), "changed-speed", str(change), change.worker)
        self._speeds.note(changes, round.number)

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
            with self._trace.wall_time.timed("saving_time"):
                self._checkpoints.save(self._filled())
        elif self._takes_states and (round.number <= FIRST or time.monotonic() >= self._next_state):
            self._filled()

    def _worker_event(self, found: Lost | Back) -> None:
        """Record what happened to a worker; it was logged in mid-round, when it happened."""
        kind = found.kind if isinstance(found, Lost) else "back"
        who = named(found.worker, self._cluster.identities[found.worker])
        self._record.event(time.time(), kind, f"{who}: {found.why}", found.worker)

    def fail(self, error: Exception, whole: bool) -> None:
        """Record why the run fails, with its state now if that is `whole`, or else when it was last taken.

        A new run of which no completed round can be saved leaves no file.
        """
        if whole and self._finite():
            self._filled()
        self._record.failure = in_short(error)
        for lost in getattr(error, "losses", ()):
            self._worker_event(lost)
        if not isinstance(error, LossError):  # which what happened to the workers describes
            self._record.event(time.time(), "failed", self._record.failure)
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
            raise self._file.taken()
        record.events, record.failure = self._record.events, self._record.failure
        return record

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
        self.event("ended", f"early, by {signal}" + ("" if self.resumable else f"; {NOT_RESUMABLE}"))
        self._checkpoints.save_last(self._filled())

    def close(self) -> None:
        """Let other processes resume the run."""
        self._lock.release()

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
        position = self._record.position if self._record.job.is_farm else f"round {self.saved:,}"
        if not self.resumable:
            return f"{self.path} has recorded the run up to {position}"
        where = f"{self.path} holds the run up to {position}"
        resume, edited = self._output.resume_words(self.path), self._output.name("accept_changes", True)
        return f"{where}; fix this, then continue with {resume}, adding {edited} if you edited a file"

    def _finite(self) -> bool:
        # A point that no update moves cannot diverge.
        return self._any_x or bool(np.isfinite(self._method.x).all())

    def _filled(self, reason: str = "") -> Record:
        method, cluster, trace, record = self._method, self._cluster, self._trace, self._record
        if not self._finite():  # what was saved before is still good
            raise diverged(method.k)
        began = time.monotonic()
        allocator = self._allocator = MethodAbilities.of(method).allocator  # a script may exchange it
        stats = cluster.ledger.stats.state()
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
