"""The table [times]: a named law, recorded times or the user's own law; and how it is emulated."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.job.component import Component, choose
from mpi_ata.job.names import LAWS
from mpi_ata.job.recorded_times import RECORDED, recorded_law
from mpi_ata.job.tables import Table
from mpi_ata.job.values import build_table
from mpi_ata.times import Change

_OWN = ("unit", "report", "stoppable", "changes")  # keys that do not belong to the law


@dataclass(frozen=True)
class TimesTable:
    """The table [times]: a law of task times, and how it is emulated on real ranks."""

    law: Component
    unit: float = 1.0
    report: str = "measured"
    stoppable: bool = True
    changes: tuple[Change, ...] = ()
    content: str = ""  # of the file that the law comes from: its text or checksum

    def __post_init__(self) -> None:
        if not self.unit > 0:
            raise ValueError(f"unit={self.unit} must be above 0 seconds")
        if self.report not in ("measured", "drawn"):
            raise ValueError(f"report={self.report!r} must be 'measured' or 'drawn'")

    def label(self, seed: int) -> str:
        """Return the law in words, short enough for a run file; with the seed, if the law depends on it."""
        changes = "".join(f" from {c.round}: {c.workers} x {c.factor:g}" for c in self.changes)
        file = f" of {sha256(self.content.encode()).hexdigest()[:16]}" if self.content else ""
        drawn = f" seed {seed}" if self.law.accepts("seed") else ""
        name = f"{self.law.factory.__name__}{file} {self.law.keys}{drawn}"
        return short_label(f"{name} x {self.unit:g} s{changes}")


def short_label(text: str) -> str:
    """Return words that identify a law, cut to a length that fits into a run file."""
    text = text.replace("'", "")
    return text if len(text) <= 80 else f"{text[:60]} {sha256(text.encode()).hexdigest()[:16]}"


def read_times(table: Table, folder: Path, content: str) -> TimesTable:
    """Return the table, checked; `content` is that of the file that it names, if any."""
    keys = dict(table)
    own: Table = {key: keys.pop(key) for key in ("unit", "report", "stoppable") if key in keys}
    changes = _changes(keys.pop("changes", []))
    law = _law(keys, folder)
    law = replace(law, others=(*(key for key in keys if key not in law.keys), *_OWN))
    times: TimesTable = build_table("times", TimesTable, own, law=law, changes=changes, content=content)
    return times


def _law(keys: Table, folder: Path) -> Component:
    if keys.get("law") == RECORDED:
        return recorded_law(keys, folder)
    return choose("times", keys, LAWS | {RECORDED: recorded_law}, folder, key="law")


def _changes(tables: Any) -> tuple[Change, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"changes = {tables!r} in [times] must be tables [[times.changes]]")
    return tuple(build_table("times.changes", Change, table) for table in tables)
