"""The batch script: text that depends on its inputs alone."""

import re
import shlex
import signal
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job.tables import parse_setting
from mpi_ata.slurm.commands import seconds

LEAD = 60  # seconds before the end at which a run is told to save, as long as nothing has been measured
OURS = {  # options of sbatch's that the script needs for itself, and what to use instead
    "--array": "--array of mpi-ata submit",
    "--chdir": "another working directory when submitting",
    "--export-file": "--source",
    "--no-requeue": "--chain",
    "--open-mode": "nothing: output is always appended",
    "--output": "--out of mpi-ata submit: the log stands beside the run file",
    "--requeue": "nothing: unfinished runs are requeued",
    "--signal": "--signal and --lead of mpi-ata submit",
    "--test-only": "--dry-run",
    "--wait": "mpi-ata status",
    "--wrap": "a job file",
}
PLAIN = "# shellcheck disable=SC1003,SC2016  # words are meant as they stand"
SHORT = {"-a": "--array", "-D": "--chdir", "-o": "--output", "-W": "--wait"}


@dataclass(frozen=True)
class Resources:
    """What to ask Slurm for."""

    nodes: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    gpus_per_task: str | None = None
    more: tuple[str, ...] = ()  # any further options of sbatch's

    def __post_init__(self) -> None:
        if self.time is not None and seconds(self.time) is None:
            raise UsageError(f"--time {self.time} is no time as Slurm writes it, such as 02:00:00 or 1-12")
        if self.ranks is not None and self.ranks < 2:
            raise UsageError(
                f"{self.ranks} rank is too few: a job needs a manager and a worker, so --ntasks 2 or more"
            )
        for word in self.words():
            option = SHORT.get(word[:2], word.split("=")[0])
            if option in OURS:
                raise UsageError(f"--sbatch {word!r} would get in the script's way; use {OURS[option]}")

    @property
    def ranks(self) -> int | None:
        """How many ranks will be started, manager included, as far as it shows."""
        if self.ntasks is not None:
            return self.ntasks
        if self.ntasks_per_node is None:
            return self.nodes if self.nodes is not None and not self.more else None
        return (self.nodes or 1) * self.ntasks_per_node

    @property
    def sized(self) -> bool:
        """Whether anything says how many ranks or nodes there shall be."""
        given = (self.nodes, self.ntasks, self.ntasks_per_node) != (None, None, None)
        return given or any(re.match(r"-[nN]|--nt|--nodes\b", word) for word in self.words())

    def words(self) -> list[str]:
        """The further options, word for word."""
        try:
            return [word for text in self.more for word in shlex.split(checked(text))]
        except ValueError as error:
            raise UsageError(f"--sbatch {' '.join(self.more)!r} cannot be read: {error}") from None

    def options(self) -> list[str]:
        """As options of sbatch's."""
        given = {
            "nodes": self.nodes,
            "ntasks": self.ntasks,
            "ntasks-per-node": self.ntasks_per_node,
            "cpus-per-task": self.cpus_per_task,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "gpus-per-task": self.gpus_per_task,
        }
        return [f"--{name}={value}" for name, value in given.items() if value is not None]


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some settings."""

    members: tuple[tuple[str, ...], ...]  # the settings of each
    at_once: int | None = None  # so many at the same time, at most

    @classmethod
    def of(cls, texts: Sequence[str], at_once: int | None = None) -> "Sweep":
        """All combinations of values: each text is table.key=value,value,..."""
        choices = []
        for text in texts:
            name, _, values = text.partition("=")
            parse_setting(text)
            choices.append([f"{name.strip()}={value}" for value in split_values(values)])
        return cls(tuple(product(*choices)), at_once)

    @property
    def same_problem(self) -> bool:
        """Whether all members do the same kind of task, so that they can learn speeds from each other."""
        return not any(setting.startswith("problem.") for member in self.members for setting in member)


def split_values(text: str) -> list[str]:
    """Split at commas, but not inside of brackets or quotes."""
    values = re.findall(r"""(?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\["'])+""", text)
    values = [value.strip() for value in values]
    if not values or not all(values):
        raise UsageError(f"--array has no values in {text!r}; write --array allocator.budget=8,16,32")
    return values


@dataclass(frozen=True)
class Script:
    """Everything that a batch script says."""

    name: str
    resources: Resources
    workdir: Path
    log: Path
    command: tuple[str, ...]  # what it becomes
    members: tuple[tuple[str, ...], ...] = ()  # further words of the command, for each member of an array
    at_once: int | None = None
    requeue: bool = True
    signal: str = "USR1"
    lead: int = LEAD
    source: Path | None = None  # a shell file to be read first

    def text(self) -> str:
        """The script."""
        lines = ["#!/bin/bash", *self._directives(), "", PLAIN]
        lines.append(f"trap '' {signal_name(self.signal)}  # until somebody is there to take it")
        if self.source is not None:
            lines += ["# shellcheck source=/dev/null", f". {quoted(str(self.source))}"]
        if self.members:
            lines += ['case "${SLURM_ARRAY_TASK_ID:?}" in', *self._cases(), "esac"]
        words = " ".join(quoted(word) for word in self.command)
        lines.append(f"exec {words}" + (' "$@"' if self.members else ""))
        return "\n".join(lines) + "\n"

    def _directives(self) -> list[str]:
        own = [
            f"--job-name={self.name}",
            f"--chdir={self.workdir}",
            f"--output={str(self.log).replace('%', '%%')}-{'%A_%a' if self.members else '%j'}.out",
            "--open-mode=append",
            "--requeue" if self.requeue else "--no-requeue",
            f"--signal=B:{self.signal}@{self.lead}",
        ]
        if self.members:
            limit = f"%{self.at_once}" if self.at_once else ""
            own.append(f"--array=0-{len(self.members) - 1}{limit}")
        options = [*own, *self.resources.options(), *self.resources.words()]
        return [f"#SBATCH {directive(option)}" for option in options]

    def _cases(self) -> list[str]:
        """What each member of an array adds to the command."""
        words = [" ".join(quoted(word) for word in member) for member in self.members]
        cases = [f"  {number}) set -- {word} ;;" for number, word in enumerate(words)]
        return [*cases, '  *) echo "no such member: $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;']


def signal_name(text: str) -> str:
    """The name of a signal that a run can be asked by."""
    if f"SIG{text}" not in signal.Signals.__members__ or text in ("KILL", "STOP", "TERM"):
        raise UsageError(f"--signal {text} cannot be used: name one such as USR1 or USR2")
    return text


def checked(text: str) -> str:
    """The text, if it has no character that could end a line or hide something."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
            raise UsageError(f"{text!r} has a control character, which a batch script must not contain")
    return text


def quoted(word: str) -> str:
    """A word for the shell."""
    return shlex.quote(checked(word))


def directive(option: str) -> str:
    """A word for a line of sbatch's, which knows quotes but no way to write one inside of them."""
    if '"' in checked(option) or "\\" in option:
        raise UsageError(f"{option!r} has a quote or backslash, which sbatch does not read; leave it out")
    return option if re.fullmatch(r"[\w@%+=:,./*\[\]-]+", option, re.ASCII) else f'"{option}"'


def lead_time(resources: Resources, lead: int | None) -> int:
    """How many seconds before its end a run is told to save: not much of a short job."""
    if lead is not None:
        return lead
    limit = seconds(resources.time) if resources.time else None
    return LEAD if limit is None else max(1, min(LEAD, int(limit / 4)))
