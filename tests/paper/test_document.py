"""The document on the paper covers every experiment, and its results can be updated."""

import os
import shlex
from pathlib import Path

import pytest

from mpi_ata.cli.paper import paper_command
from mpi_ata.paper import figures
from tests.paper import document
from tests.paper.document import DOCUMENT, FIGURES, RESULTS, update

COMMAND = """```console
$ mpi-ata paper table1 --workers 3,4 --rounds 20 --allocators ofta --out results
```
"""
SMALL = f"Before\n\n{COMMAND}\n<!-- results -->\nold\n<!-- end -->\n\nAfter\n"


def test_the_document_has_results_for_every_experiment() -> None:
    blocks = list(RESULTS.finditer(DOCUMENT.read_text()))
    assert {shlex.split(block[2])[1] for block in blocks} == set(paper_command.commands)
    assert all(block[0].count("\n| ") > 2 for block in blocks)


def test_figures_of_the_document_are_small_and_all_of_them_are_used() -> None:
    text = DOCUMENT.read_text()
    for figure in FIGURES.iterdir():
        assert figure.stat().st_size < 150_000
        assert f"](paper/{figure.name})" in text


@pytest.mark.slow
@pytest.mark.skipif(not figures.available(), reason="matplotlib is not installed")
def test_results_are_written_below_their_commands_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "FIGURES", tmp_path / "figures")
    runs = tmp_path / "runs"
    before, *results, after = update(SMALL, runs, []).split("<!-- ")
    assert (before, after) == (SMALL.split("<!-- ")[0], SMALL.split("<!-- ")[-1])
    assert "old" not in results[0]
    assert "](figures/table1.png)" in results[0]
    rows = [line.split(" | ")[0] for line in results[0].splitlines() if line.startswith("|")]
    assert [row for row in rows if "---" not in row] == ["| n", "| 3", "| 4"], (
        "a row for each number of workers"
    )
    assert os.listdir(tmp_path / "figures") == ["table1.png"]
    assert update(SMALL, runs, ["table2"]) == SMALL
