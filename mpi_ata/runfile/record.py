"""The record of one run: all that is saved of it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.job.source import JobText
from mpi_ata.runfile.prior import COLUMNS, RunStats

MOST_EVENTS, LONGEST_EVENT = 1000, 1000


class Event(NamedTuple):
    """Something that happened to a run besides its rounds."""

    time: float  # seconds since 1970
    worker: int  # -1: about the whole run
    kind: str
    text: str
    host: str = ""  # that the worker ran on: a resumed run may have others


@dataclass
class Record:
    """All that is saved of a run: enough to resume it, to warm-start others, and to report what happened."""

    run: str  # a unique name of this run
    job: JobText
    identities: tuple[WorkerIdentity, ...]
    workers: State  # of this run alone, one entry per worker
    method: State = field(default_factory=dict)
    allocator: State = field(default_factory=dict)
    cluster: State = field(default_factory=dict)
    totals: State = field(default_factory=dict)
    trace: State = field(default_factory=dict)
    metrics: State = field(default_factory=dict)  # what evaluate(x) of the problem returned
    task_map: State = field(default_factory=dict)  # tasks that each worker has done by some rounds
    rounds: State = field(default_factory=dict)  # what tasks and orders took in some rounds on ranks
    prior: list[RunStats] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # what the run achieved, late messages included
    reason: str = ""  # which limit was reached; empty while unfinished
    failure: str = ""  # why it failed; empty otherwise
    slurm_jobs: tuple[str, ...] = ()  # in which it ran

    @property
    def source(self) -> RunStats:
        """What this run itself learned about its workers."""
        return RunStats(
            self.run, int(self.method["k"]), self.identities, {name: self.workers[name] for name in COLUMNS}
        )

    def event(self, time: float, kind: str, text: str, worker: int = -1) -> None:
        """Record an event; when there are too many, the oldest are dropped."""
        host = self.identities[worker].host if 0 <= worker < len(self.identities) else ""
        self.events.append(Event(time, worker, kind, text[:LONGEST_EVENT], host))
        del self.events[:-MOST_EVENTS]
