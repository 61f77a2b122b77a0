"""What the doctor tells, one thing at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at; with a remedy but ok it is a note, not ok means that jobs would not run."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None
