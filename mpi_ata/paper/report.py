"""The report of an experiment: as text, Markdown and JSON."""

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
    """A titled table with notes below it, and the same numbers unrounded."""

    name: str
    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]
    records: Sequence[Record]
    figure: Path | None = None

    def with_figure(self, folder: Path | None, draw: Callable[[Path], None]) -> "Report":
        """Draw the figure into a folder, and return the report with it, or with a note on what is missing."""
        if folder is None:
            return self._with_note("Use --out FOLDER to save the runs there and draw the figure.")
        if not figures.available():
            return self._with_note("There is no figure: matplotlib is missing, pip install 'mpi-ata[plot]'.")
        path = folder / f"{self.name}.png"
        draw(path)
        return replace(self, figure=path)

    def _with_note(self, note: str) -> "Report":
        return replace(self, notes=[*self.notes, note])

    def text(self) -> str:
        """Return the report for a terminal."""
        notes = [*self.notes, *([f"Figure: {self.figure}"] if self.figure else [])]
        return "\n".join([f"{self.title}\n", table(self.lines, self.header), "", *map(_wrap, notes)])

    def markdown(self) -> str:
        """Return the report for a Markdown document."""
        return "\n".join(self._markdown())

    def _markdown(self) -> Iterator[str]:
        yield f"{self.title}\n"
        yield f"{markdown_table(self.lines, self.header)}\n"
        yield from (f"- {note}" for note in self.notes)
        if self.figure:
            yield f"\n![{self.title}]({self.figure})"

    def json(self) -> str:
        """Return the records as a JSON list in one line."""
        return json.dumps(self.records)


def _wrap(note: str) -> str:
    return textwrap.fill(note, 110, initial_indent="- ", subsequent_indent="  ")
