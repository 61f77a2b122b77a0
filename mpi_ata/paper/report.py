"""What an experiment comes to, for a person, for a document and for a program."""

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_ata.console import markdown_table, table
from mpi_ata.paper import figures
from mpi_ata.paper.ratios import Record


@dataclass(frozen=True)
class Report:
    """A titled table, notes below it, and the same figures unrounded."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]
    records: Sequence[Record]

    def drawn(self, path: Path, draw: Callable[[Path], None]) -> "Report":
        """The same, with its figure drawn and named; or with a note on what is missing for that."""
        if figures.available():
            draw(path)
            return replace(self, notes=[*self.notes, f"The figure is {path}."])
        return replace(self, notes=[*self.notes, "There is no figure: pip install 'mpi-ata[plot]' draws it."])

    def text(self) -> str:
        """For a terminal."""
        notes = [textwrap.fill(note, 110, initial_indent="- ", subsequent_indent="  ") for note in self.notes]
        return "\n".join([f"{self.title}\n", table(self.lines, self.header), "", *notes])

    def markdown(self) -> str:
        """For a document."""
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"{self.title}\n", markdown_table(self.lines, self.header), "", *notes])

    def json(self) -> str:
        """For a program: a list of records in one line."""
        return json.dumps(self.records)
