"""The report of runs: one HTML page that needs no network and no other file."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.runfile.record import Record
from mpi_ata.view.plots_data import run_names
from mpi_ata.view.report_data import report_data
from mpi_ata.view.report_words import Section, run_summary


def check_report_path(path: Path) -> None:
    """Reject a report that cannot be written, before runs are read."""
    if path.suffix.lower() != ".html":
        raise UsageError(f"-o {path}: the name of a report must end in .html")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}; create it, or choose another file")


def write_report(records: Sequence[Record], paths: Sequence[Path], output: Path) -> None:
    """Write a report of these runs."""
    names, sections = run_names(paths), [run_summary(*run) for run in zip(records, paths, strict=True)]
    page = report_page(names, sections, report_data(records, names))
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: the report cannot be written: {error.strerror}") from None


def report_page(names: Sequence[str], sections: Sequence[Section], data: dict[str, Any]) -> str:
    """Return the page; whatever comes from files is escaped."""
    title = f"mpi-ata report: {', '.join(names)}"
    return Template(_part("html")).substitute(
        title=html.escape(title),
        style=_part("css"),
        script=_part("js"),
        summary="\n".join(_section(name, section) for name, section in zip(names, sections, strict=True)),
        data=_embedded(data),
    )


def _part(suffix: str) -> str:
    return (files("mpi_ata.view") / "page" / f"report.{suffix}").read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _section(name: str, section: Section) -> str:
    points = "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in section.sentences)
    commands = "\n".join(_command(*each) for each in section.commands)
    return f"<h3>{html.escape(name)}</h3>\n<ul>\n{points}\n</ul>\n{commands}"


def _command(purpose: str, command: str) -> str:
    return f"<p>{html.escape(purpose)}<br><code>{html.escape(command)}</code></p>"
