"""One result of the doctor's checks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check: a problem if not ok, as jobs would not run; a note if ok with a remedy."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None
