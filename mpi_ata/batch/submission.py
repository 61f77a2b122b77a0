"""What a user asks to be run as a batch job, and the text of its script."""

import re
import shlex
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from mpi_ata.batch.interface import LEAD_SECONDS, SIGNAL, Resources, Script, check_text, scheduler
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError
from mpi_ata.job.tables import parse_setting


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some settings."""

    members: tuple[tuple[str, ...], ...]  # the settings of each
    at_once: int | None = None  # maximum runs at the same time

    @classmethod
    def of(cls, texts: Sequence[str], at_once: int | None = None) -> "Sweep":
        """Return all combinations of values; each text is table.key=value,value,..."""
        choices = []
        for text in texts:
            name, _, values = text.partition("=")
            parse_setting(text)
            choices.append([f"{name.strip()}={value}" for value in split_values(values)])
        return cls(tuple(product(*choices)), at_once)

    @property
    def same_problem(self) -> bool:
        """Return whether all members compute the same tasks, so that they can share worker speeds."""
        return not any(setting.startswith("problem.") for member in self.members for setting in member)


def split_values(text: str) -> list[str]:
    """Split at commas, but not inside brackets or quotes."""
    values = re.findall(r"""(?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\["'])+""", text)
    values = [value.strip() for value in values]
    if not values or not all(values):
        raise UsageError(f"--array has no values in {text!r}; write --array allocator.budget=8,16,32")
    return values


@dataclass(frozen=True)
class Submission:
    """The options of `mpi-ata submit`."""

    job: Path
    resources: Resources
    output: OutputOptions = field(default_factory=OutputOptions)
    settings: tuple[str, ...] = ()
    exclude_slow: tuple[Path, ...] = ()  # runs whose slow, flaky and lost hosts to avoid
    sweep: Sweep | None = None
    chain: int | None = None  # number of batch jobs, each after the one before
    signal: str = SIGNAL
    lead: int | None = None
    source: Path | None = None
    check: bool = True  # build the problem before submitting

    def __post_init__(self) -> None:
        scheduler().check_resources(self.resources)
        if self.chain is not None and self.sweep is not None:
            raise UsageError("--chain and --array cannot be combined: submit the members one by one")
        if self.output.resume and self.output.out is None:
            raise UsageError("--resume continues a run; name its file: --out RUN.h5 --resume")
        if self.output.accept_changes and not self.output.resume:
            raise UsageError("--accept-changes requires --resume")
        check_signal(self.signal)

    @property
    def members(self) -> list[tuple[str, ...]]:
        """Return the settings of each run."""
        return [(*self.settings, *more) for more in (self.sweep.members if self.sweep else [()])]

    @property
    def script_lead(self) -> int:
        """Return the lead to write into the script: as given, or a minute, but less in a short job."""
        if self.lead is not None:
            return self.lead
        limit = scheduler().parse_duration(self.resources.time) if self.resources.time else None
        return LEAD_SECONDS if limit is None else max(1, min(LEAD_SECONDS, int(limit / 4)))


def check_signal(name: str) -> str:
    """Return the name of a signal; reject those that cannot ask a run to save."""
    if f"SIG{name}" not in signal.Signals.__members__ or name in ("KILL", "STOP", "TERM"):
        raise UsageError(f"--signal {name} cannot be used: name one such as USR1 or USR2")
    return name


def setting_args(settings: Iterable[str]) -> list[str]:
    """Return the options of `mpi-ata run` for settings."""
    return [argument for setting in settings for argument in ("--set", setting)]


def output_args(output: OutputOptions) -> list[str]:
    """Return the options of `mpi-ata run` that say the same."""
    prior = [argument for path in output.warm_start for argument in ("--warm-start", str(path))]
    if prior and output.prior_weight < 1:
        prior += ["--prior-weight", f"{output.prior_weight:g}"]
    if prior and output.any_problem:
        prior.append("--any-problem")
    return [
        *(["--out", str(output.out)] if output.out else []),
        *(["--resume"] if output.resume else []),
        *prior,
        *(["--accept-changes"] if output.accept_changes else []),
    ]


SHELLCHECK = "# shellcheck disable=SC1003,SC2016  # arguments are literal"


def script_text(script: Script) -> str:
    """Return the text of a batch script."""
    lines = ["#!/bin/bash", *scheduler().directives(script), "", SHELLCHECK]
    lines.append(f"trap '' {check_signal(script.signal)}  # until mpi-ata handles it")
    if script.source is not None:
        lines += ["# shellcheck source=/dev/null", f". {quote(str(script.source))}"]
    if script.members:
        index = scheduler().ARRAY_INDEX
        cases = [f"  {j}) set -- {quote(*member)} ;;" for j, member in enumerate(script.members)]
        cases.append(f'  *) echo "no such member: ${index}" >&2; exit 2 ;;')
        lines += [f'case "${{{index}:?}}" in', *cases, "esac"]
    lines.append(f"exec {quote(*script.command)}" + (' "$@"' if script.members else ""))
    return "\n".join(lines) + "\n"


def quote(*arguments: str) -> str:
    """Return arguments as words of the shell."""
    return " ".join(shlex.quote(check_text(argument)) for argument in arguments)
