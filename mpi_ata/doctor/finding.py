"""One result of the doctor's checks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check: if not ok, jobs would not run; if ok but with a remedy, it is a note."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None
