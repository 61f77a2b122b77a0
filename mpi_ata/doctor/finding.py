"""What the doctor tells, one thing at a time."""

import re
from dataclasses import dataclass

from mpi_ata import launch

PATIENCE = 60.0  # seconds, for what takes two on a healthy machine


@dataclass(frozen=True)
class Finding:
    """One thing looked at; with a remedy but ok it is a note, not ok means that jobs would not run."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None


def said(answer: launch.Answer) -> str:
    """The gist of what a command said, or of how it ended."""
    if answer.code is None:
        return f"no answer within {PATIENCE:.0f} s"
    lines = [line.strip() for line in (answer.err + "\n" + answer.out).splitlines() if re.search(r"\w", line)]
    return " ".join(lines[:1] if answer.code == 0 else lines[-3:])[:300] or f"exit code {answer.code}"
