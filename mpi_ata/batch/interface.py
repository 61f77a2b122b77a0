"""What a batch system must be able to do, and the plain values that go to it and come back.

Each is a file beside this one: slurm.py, pbs.py, flux.py.
"""

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from mpi_ata.errors import RunError, UsageError, is_code
from mpi_ata.launch import CommandResult, run_command
from mpi_ata.layout import workers_in

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
    components: tuple[str, ...] = ()  # options of further kinds of nodes, of a heterogeneous job

    @property
    def ranks(self) -> int | None:
        """Return how many ranks will be started, manager included; None if only the scheduler can tell."""
        if self.components:
            return None
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


class Requeued(NamedTuple):
    """How a batch job will run again: under which id, or why not."""

    id: str = ""
    error: str = ""


class Scheduler(Protocol):
    """A batch system; `id` is that of a batch job, or of a member of an array.

    What has a body here is for systems that cannot do it, or do it as others do.
    """

    NAME: str  # in messages
    ARRAY_INDEX: str  # the environment variable with the number of a member

    def check_resources(self, resources: Resources) -> None: ...
    def parse_duration(self, text: str) -> float | None: ...  # seconds
    def directives(self, script: Script) -> list[str]: ...  # the first lines of the script
    def submit_command(self, script: Path, after: str = "") -> list[str]: ...

    def submit(self, script: Path, after: str = "") -> str: ...  # the id; `after` is that of the one before
    def jobs(self, id: str) -> list[QueuedJob]: ...  # all members of an array; none if it is forgotten
    def queued_ids(self) -> list[str]: ...  # of this user, one per array
    def signal(self, id: str, name: str) -> None: ...  # to the script alone
    def requeue(self, id: str, script: Path) -> Requeued: ...
    def cancel(self, *ids: str) -> None: ...

    def is_id(self, text: str) -> bool: ...
    def inside(self) -> Allocation: ...
    def launcher(self, workers: int | None = None) -> list[str]: ...  # starts ranks in this batch job

    def is_sized(self, resources: Resources) -> bool:
        """Return whether an option says how many ranks to use."""
        return (resources.nodes, resources.ntasks, resources.ntasks_per_node) != (None, None, None)

    def placement(self, resources: Resources) -> Placement:
        """Return which nodes a submission may use, as far as its options say."""
        return Placement(resources.nodes or 1, (resources.partition or "",))

    def find_obstacle(self, resources: Resources) -> str:
        """Return why no nodes could be used now, or nothing."""
        return ""

    def exclude_nodes(self, id: str, nodes: Sequence[str]) -> str:
        """Let a requeued job avoid nodes, and return why that was rejected, or nothing."""
        return f"{self.NAME} cannot change which nodes it uses"

    def can_shrink(self) -> bool:
        """Return whether nodes of a running batch job can be given back."""
        return False

    def shrink(self, id: str, keep: Sequence[str]) -> str:
        """Give back all but these nodes of this batch job, and return why that was rejected, or nothing."""
        return f"{self.NAME} takes no nodes back"

    def resize(self, id: str, keep: Sequence[str]) -> str:
        """Let this batch job, once requeued, have as many nodes as these, and return why not, or nothing."""
        return f"{self.NAME} cannot change how many nodes it uses"

    def nodes_by_partition(self) -> dict[str, list[str]]:
        """Return the nodes of each partition, those of the default one also under an empty name."""
        raise UsageError(f"{self.NAME} takes no list of nodes to avoid: leave out --exclude-slow")

    def expand_nodes(self, nodes: str) -> list[str]:
        """Return the names in a list of nodes."""
        return [name for name in nodes.split(",") if name]

    def consumed_energy(self, ids: Sequence[str]) -> float | None:
        """Return joules, if they are accounted for."""
        return None

    def array_id(self, id: str) -> str:
        """Return the id of the whole array that a member belongs to."""
        return id

    def member_id(self, id: str, member: int) -> str:
        """Return the id of a member of an array."""
        return id

    def members(self, id: str) -> list[int]:
        """Return the members of an array that an id covers."""
        return []


SCHEDULER_VARIABLE = "MPI_ATA_SCHEDULER"
FOUND_BY = {  # the variable of a batch job, and a command that only this batch system has
    "slurm": ("SLURM_JOB_ID", "sbatch"),
    "pbs": ("PBS_JOBID", "pbsnodes"),
    "flux": ("FLUX_URI", "flux"),
}


def scheduler() -> Scheduler:
    """Return the batch system that the user named, that of this batch job, or the one that is installed."""
    from mpi_ata.batch import slurm
    from mpi_ata.batch.flux import Flux
    from mpi_ata.batch.pbs import PBS

    known: dict[str, Scheduler] = {"slurm": slurm, "pbs": PBS(), "flux": Flux()}
    if (named := os.environ.get(SCHEDULER_VARIABLE)) is not None and named not in known:
        raise UsageError(f"{SCHEDULER_VARIABLE}={named} must be one of {', '.join(known)}")
    inside = [name for name, (variable, _) in FOUND_BY.items() if variable in os.environ]
    installed = (name for name, (_, command) in FOUND_BY.items() if shutil.which(command))
    return known[named or next(iter(inside), None) or next(installed, "slurm")]


def run_tool(name: str, *command: str) -> CommandResult:
    """Run a command of a batch system."""
    if shutil.which(command[0]) is None:
        way_out = f"run this where {name} is; on one machine, use mpi-ata run and watch"
        raise UsageError(f"there is no {command[0]} here: {way_out}")
    return run_command(command)


def error_line(result: CommandResult) -> str:
    """Return the last line that a command printed, without its name in front; empty if it succeeded."""
    if result.code == 0:
        return ""
    lines = [line for line in (result.err or result.out).splitlines() if line.strip()]
    return re.sub(r"^[\w-]+: ((error|fatal|ERROR): )?", "", lines[-1]) if lines else "no answer came"


def answer(name: str, result: CommandResult) -> str:
    """Return what a query printed; an error if the batch system did not answer it."""
    if error := error_line(result):
        raise SchedulerUnreachableError(f"{name} does not answer: {error}; see mpi-ata doctor")
    return result.out


def submitted_id(name: str, pattern: str, result: CommandResult) -> str:
    """Return the id that a submission printed; an error if it was rejected."""
    if result.code != 0 or (id := re.search(pattern, result.out, re.MULTILINE)) is None:
        raise UsageError(f"{name} rejected the job: {error_line(result) or 'no id came'}")
    return id[1]


def check_ranks(resources: Resources, name: str = "Slurm") -> None:
    """Reject too few ranks, and components where only Slurm has them."""
    if resources.components and name != "Slurm":
        raise UsageError(f"--and is for Slurm: {name} has no heterogeneous jobs of this kind")
    if resources.ranks is not None and workers_in(resources.ranks) < 1:
        raise UsageError(
            f"{resources.ranks} rank is too few: a job needs a manager and a worker, so --ntasks 2 or more"
        )


LAUNCHER_VARIABLE = "MPI_ATA_LAUNCHER"  # the user's own choice, such as srun --mpi=pmix


def own_launcher(ranks: int) -> list[str]:
    """Return the launcher that the user wants, if any."""
    own = os.environ.get(LAUNCHER_VARIABLE)
    return [*shlex.split(own), "-n", str(ranks)] if own else []


def split_options(texts: Sequence[str]) -> list[str]:
    """Return further options of a batch system, split into arguments."""
    try:
        return [argument for text in texts for argument in shlex.split(check_text(text))]
    except ValueError as error:
        raise UsageError(f"--sbatch {' '.join(texts)!r} cannot be read: {error}") from None


def log_lines(script: Script, id: str) -> list[str]:
    """Return the lines that set folder and log, for batch systems whose options cannot."""
    log = shlex.quote(check_text(str(script.log)))
    return [f"cd {shlex.quote(check_text(str(script.workdir)))} || exit 1", f'exec >>{log}-"{id}.out" 2>&1']
