"""What a user asks to be run on Slurm."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job.tables import parse_setting
from mpi_ata.runfile.checkpoints import fresh_name
from mpi_ata.slurm.lead import SIGNAL, check_signal
from mpi_ata.slurm.resources import Resources


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
    out: Path | None = None
    settings: tuple[str, ...] = ()
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    exclude_slow: tuple[Path, ...] = ()  # runs whose slow, flaky and lost hosts to avoid
    resume: bool = False
    accept_changes: bool = False
    sweep: Sweep | None = None
    chain: int | None = None  # number of Slurm jobs, each after the one before
    signal: str = SIGNAL
    lead: int | None = None
    source: Path | None = None
    check: bool = True  # build the problem before submitting

    def __post_init__(self) -> None:
        if self.chain is not None and self.sweep is not None:
            raise UsageError("--chain and --array cannot be combined: submit the members one by one")
        if self.resume and self.out is None:
            raise UsageError("--resume continues a run; name its file: --out RUN.h5 --resume")
        if self.accept_changes and not self.resume:
            raise UsageError("--accept-changes is about --resume; add --resume, or leave it out")
        check_signal(self.signal)

    @property
    def members(self) -> list[tuple[str, ...]]:
        """Return the settings of each run."""
        return [(*self.settings, *more) for more in (self.sweep.members if self.sweep else [()])]

    def run_file(self) -> Path:
        """Return where to record the run: as given, or under a fresh name."""
        return (self.out or fresh_name(self.job)).absolute()
