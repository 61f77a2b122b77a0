"""What an experiment comes to, for a person, for a document and for a program."""

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_ata.paper import figures
from mpi_ata.paper.ratios import Record
from mpi_ata.view.text import markdown_table, table


@dataclass(frozen=True)
class Report:
    """A titled table, notes below it, and the same figures unrounded."""

    name: str
    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]
    records: Sequence[Record]
    figure: Path | None = None

    def drawn(self, folder: Path | None, draw: Callable[[Path], None]) -> "Report":
        """The same, with its figure drawn into a folder; or with a note on what is missing for that."""
        if folder is None:
            return self._noted("With --out FOLDER the runs are kept there, and the figure is drawn.")
        if not figures.available():
            return self._noted("There is no figure: pip install 'mpi-ata[plot]' draws it.")
        path = folder / f"{self.name}.png"
        draw(path)
        return replace(self, figure=path)

    def _noted(self, note: str) -> "Report":
        return replace(self, notes=[*self.notes, note])

    def text(self) -> str:
        """For a terminal."""
        notes = [*self.notes, *([f"The figure is {self.figure}."] if self.figure else [])]
        return "\n".join([f"{self.title}\n", table(self.lines, self.header), "", *map(_filled, notes)])

    def markdown(self) -> str:
        """For a document."""
        return "\n".join(self._markdown())

    def _markdown(self) -> Iterator[str]:
        yield f"{self.title}\n"
        yield f"{markdown_table(self.lines, self.header)}\n"
        yield from (f"- {note}" for note in self.notes)
        if self.figure:
            yield f"\n![{self.title}]({self.figure})"

    def json(self) -> str:
        """For a program: a list of records in one line."""
        return json.dumps(self.records)


def _filled(note: str) -> str:
    return textwrap.fill(note, 110, initial_indent="- ", subsequent_indent="  ")
