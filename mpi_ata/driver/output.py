"""What the user wants to be recorded of a run, and what it starts from."""

import os
from dataclasses import dataclass
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.runfile.store import RunFile, check_writable_path


@dataclass(frozen=True)
class OutputOptions:
    """The options --out, --resume, --accept-changes, --warm-start, --prior-weight and --any-problem."""

    out: Path | None = None  # a fresh name in runs/, if not given
    resume: bool = False
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    accept_changes: bool = False  # in the job or the user's files, when a run is resumed

    def check(self) -> None:
        """Reject invalid combinations and places, before anything else is done."""
        if self.out is None and self.resume:
            raise UsageError("--resume continues a run; name its file: --out RUN.h5 --resume")
        if self.accept_changes and not self.resume:
            raise UsageError("--accept-changes is about --resume; add --resume, or leave it out")
        if self.out is not None:
            check_writable_path(self.out)
            self._check_not_overwritten(self.out)
        if not self.resumes():
            self.check_prior()

    def resumes(self) -> bool:
        """Return whether there is a run to continue."""
        return self.out is not None and self.resume and RunFile(self.out).exists()

    def _check_not_overwritten(self, out: Path) -> None:
        file = RunFile(out)
        if file.exists() and not self.resume:
            there = out if out.exists() else file.previous
            raise UsageError(f"{there}: exists; continue it with --resume, or choose another --out")

    def check_prior(self) -> None:
        """Reject a warm start from nothing."""
        if not 0 < self.prior_weight <= 1:
            raise UsageError(f"--prior-weight {self.prior_weight:g} must be above 0 and at most 1")
        if self.prior_weight < 1 and not self.warm_start:
            raise UsageError("--prior-weight is the weight of --warm-start, but there is none; add one")
        if self.any_problem and not self.warm_start:
            raise UsageError("--any-problem is about --warm-start, but there is none; add one")
        for path in self.warm_start:
            if not os.path.exists(path) and not os.path.exists(f"{path}.previous"):
                raise UsageError(f"--warm-start {path}: there is no such run file or folder")
