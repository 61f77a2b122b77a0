"""What to ask Slurm for."""

import re
import shlex
from dataclasses import dataclass

from mpi_ata.errors import UsageError
from mpi_ata.layout import workers_in
from mpi_ata.slurm.quoting import check_text
from mpi_ata.slurm.slurm_job import leading_number, parse_duration

RESERVED = {  # options of sbatch that the script sets itself, and what to use instead
    "--array": "--array of mpi-ata submit",
    "--chdir": "another working directory when submitting",
    "--export-file": "--source",
    "--no-requeue": "--chain",
    "--open-mode": "nothing: output is always appended",
    "--output": "--out of mpi-ata submit: the log is next to the run file",
    "--requeue": "nothing: unfinished runs are requeued",
    "--signal": "--signal and --lead of mpi-ata submit",
    "--test-only": "--dry-run",
    "--wait": "mpi-ata status",
    "--wrap": "a job file",
}
SHORT_OPTIONS = {"-a": "--array", "-D": "--chdir", "-o": "--output", "-W": "--wait"}


@dataclass(frozen=True)
class Resources:
    """The options of sbatch that say how many ranks to start, where, and for how long."""

    nodes: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    gpus_per_task: str | None = None
    more: tuple[str, ...] = ()  # further options, each text as on the command line
    exclude: tuple[str, ...] = ()  # nodes to avoid, besides those in `more`

    def __post_init__(self) -> None:
        if self.time is not None and parse_duration(self.time) is None:
            raise UsageError(f"--time {self.time} is not a Slurm time, such as 02:00:00 or 1-12")
        if self.ranks is not None and workers_in(self.ranks) < 1:
            raise UsageError(
                f"{self.ranks} rank is too few: a job needs a manager and a worker, so --ntasks 2 or more"
            )
        for argument in self.extra_args():
            option = SHORT_OPTIONS.get(argument[:2], argument.split("=")[0])
            if option in RESERVED:
                raise UsageError(
                    f"--sbatch {argument!r} conflicts with the batch script; use {RESERVED[option]}"
                )

    @property
    def ranks(self) -> int | None:
        """Return how many ranks will be started, manager included; None if only Slurm can tell."""
        if self.ntasks is not None:
            return self.ntasks
        if self.ntasks_per_node is None:
            return self.nodes if self.nodes is not None and not self.more else None
        return (self.nodes or 1) * self.ntasks_per_node

    @property
    def sized(self) -> bool:
        """Return whether any option says how many ranks or nodes to use."""
        sizes = (self.nodes, self.ntasks, self.ntasks_per_node)
        pattern = r"-[nN]|--nt|--nodes\b"
        return sizes != (None, None, None) or any(re.match(pattern, arg) for arg in self.extra_args())

    def extra_args(self) -> list[str]:
        """Return the further options, split into arguments."""
        try:
            return [argument for text in self.more for argument in shlex.split(check_text(text))]
        except ValueError as error:
            raise UsageError(f"--sbatch {' '.join(self.more)!r} cannot be read: {error}") from None

    def sbatch_args(self) -> list[str]:
        """Return all of it as arguments of sbatch."""
        options = {
            "nodes": self.nodes,
            "ntasks": self.ntasks,
            "ntasks-per-node": self.ntasks_per_node,
            "cpus-per-task": self.cpus_per_task,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "gpus-per-task": self.gpus_per_task,
        }
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*given, *self._with_excluded(self.extra_args())]

    def _with_excluded(self, args: list[str]) -> list[str]:
        """Return further options with the nodes to avoid: sbatch reads only the last --exclude."""
        if not self.exclude:
            return args
        _, rest = split_option(args, "--exclude", "-x")
        return [*rest, f"--exclude={','.join(filter(None, [self.user_excluded, *self.exclude]))}"]

    @property
    def user_excluded(self) -> str:
        """Return the nodes that the user's own options exclude."""
        nodes, _ = split_option(self.extra_args(), "--exclude", "-x")
        if "/" in nodes:
            raise UsageError(f"--sbatch --exclude={nodes} is a file, but --exclude-slow needs the node names")
        return nodes

    @property
    def min_nodes(self) -> int:
        """Return how many nodes it takes at least, as far as the options say."""
        if self.nodes is not None:
            return self.nodes
        if self.ntasks is not None and self.ntasks_per_node is not None:
            return -(-self.ntasks // self.ntasks_per_node)
        return leading_number(split_option(self.extra_args(), "--nodes", "-N")[0]) or 1

    @property
    def partitions(self) -> list[str]:
        """Return the partitions that it may run in; an empty name stands for the default one."""
        return (self.partition or split_option(self.extra_args(), "--partition", "-p")[0]).split(",")


def split_option(args: list[str], long: str, short: str) -> tuple[str, list[str]]:
    """Return the value of an option of sbatch, empty if it is not given, and the other arguments."""
    value, rest, words = "", list[str](), iter(args)
    for word in words:
        if word in (long, short):
            value = next(words, "")
        elif word.startswith(f"{long}="):
            value = word.removeprefix(f"{long}=")
        elif word.startswith(short):
            value = word.removeprefix(short)
        else:
            rest.append(word)
    return value, rest
