"""What a batch system must be able to do, and the plain values that go to it and come back.

Another one than Slurm is a module beside slurm.py with the functions of `Scheduler`.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from mpi_ata.errors import RunError, UsageError, is_code

# held: has its nodes, but does not run, since it is about to start or to end
Phase = Literal["waiting", "running", "suspended", "held", "over", "unknown"]

SIGNAL = "USR1"  # asks a run to save and leave
LEAD_SECONDS = 60  # between that signal and the time limit, until something has been measured


class SchedulerUnreachableError(RunError):
    """The scheduler does not answer, so the state of the queue is unknown."""


def check_text(text: str) -> str:
    """Return what goes into a script; reject characters that could end a line or hide something."""
    for character in text:
        if is_code(character):
            raise UsageError(f"{text!r} has a control character, which a batch script must not contain")
    return text


@dataclass(frozen=True)
class Resources:
    """How many ranks to start, where, and for how long; texts are as the scheduler reads them."""

    nodes: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    gpus_per_task: str | None = None
    more: tuple[str, ...] = ()  # further options of the scheduler, each text as on a command line
    exclude: tuple[str, ...] = ()  # nodes to avoid, besides those in `more`

    @property
    def ranks(self) -> int | None:
        """Return how many ranks will be started, manager included; None if only the scheduler can tell."""
        if self.ntasks is not None:
            return self.ntasks
        if self.ntasks_per_node is None:
            return self.nodes if self.nodes is not None and not self.more else None
        return (self.nodes or 1) * self.ntasks_per_node


class Placement(NamedTuple):
    """The nodes that a batch job may use, as far as its options say."""

    nodes: int = 1  # that it needs at least
    partitions: tuple[str, ...] = ()  # an empty name stands for the default one
    excluded: str = ""  # as the scheduler writes them


@dataclass(frozen=True)
class Script:
    """Everything that goes into a batch script."""

    name: str
    resources: Resources
    workdir: Path
    log: Path  # without what the scheduler appends: the id of the batch job, and .out
    command: tuple[str, ...]  # what the script executes at its end
    members: tuple[tuple[str, ...], ...] = ()  # further arguments, for each member of an array
    at_once: int | None = None
    requeue: bool = True
    signal: str = SIGNAL
    lead: int = LEAD_SECONDS
    source: Path | None = None  # a shell file to source first


@dataclass(frozen=True)
class QueuedJob:
    """A batch job that the scheduler knows, or one member of an array."""

    id: str
    state: str = "UNKNOWN"  # in the words of the scheduler
    phase: Phase = "unknown"
    reason: str = ""
    restarts: int = 0
    time_limit: float | None = None  # seconds; None: no limit
    end_time: float | None = None  # when it will be ended, in seconds since 1970; None: never
    timed_out: bool = False  # it is being ended because of its time limit
    cancelled: bool = False  # it was, or is being, ended by its user
    preempted: bool = False  # about to be, by a job of higher priority
    nodes: str = ""
    placement: Placement = field(default_factory=Placement)
    script: Path = Path()

    @property
    def time_left(self) -> float | None:
        """Return the seconds until it is ended."""
        return None if self.end_time is None else self.end_time - time.time()


class Allocation(NamedTuple):
    """The batch job that this process belongs to."""

    id: str | None = None  # None outside batch jobs
    restarts: int = 0  # how often it had been requeued when it started
    nodes: str = ""
    cores: int = 0
    tasks: int = 1
    began: float = math.inf  # seconds since 1970; infinity: not known


class Scheduler(Protocol):
    """A batch system; `id` is that of a batch job, or of a member of an array."""

    NAME: str  # in messages
    ARRAY_INDEX: str  # the environment variable with the number of a member

    def check_resources(self, resources: Resources) -> None: ...
    def is_sized(self, resources: Resources) -> bool: ...  # whether an option says how many ranks to use
    def placement(self, resources: Resources) -> Placement: ...
    def parse_duration(self, text: str) -> float | None: ...  # seconds
    def directives(self, script: Script) -> list[str]: ...  # the first lines of the script
    def submit_command(self, script: Path, after: str = "") -> list[str]: ...

    def submit(self, script: Path, after: str = "") -> str: ...  # the id; `after` is that of the one before
    def find_obstacle(self, resources: Resources) -> str: ...  # why no nodes could be used now, or empty
    def jobs(self, id: str) -> list[QueuedJob]: ...  # all members of an array; none if it is forgotten
    def queued_ids(self) -> list[str]: ...  # of this user, one per array
    def signal(self, id: str, name: str) -> None: ...  # to the script alone
    def requeue(self, id: str) -> str: ...  # why that was rejected, or empty
    def cancel(self, *ids: str) -> None: ...
    def exclude_nodes(self, id: str, nodes: Sequence[str]) -> str: ...  # why that was rejected, or empty
    def nodes_by_partition(self) -> dict[str, list[str]]: ...  # those of the default one also under ""
    def expand_nodes(self, nodes: str) -> list[str]: ...
    def consumed_energy(self, ids: Sequence[str]) -> float | None: ...  # joules, if that is accounted for

    def is_id(self, text: str) -> bool: ...
    def array_id(self, id: str) -> str: ...
    def member_id(self, id: str, member: int) -> str: ...
    def members(self, id: str) -> list[int]: ...  # of an array, that an id covers

    def inside(self) -> Allocation: ...
    def launcher(self, workers: int | None = None) -> list[str]: ...  # starts ranks in this batch job


def scheduler() -> Scheduler:
    """Return the batch system of this site: Slurm, until there are others to choose from."""
    from mpi_ata.batch import slurm

    return slurm
