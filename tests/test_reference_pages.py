"""What the pages of reference list is what the code has: keys of a job file, commands, names and messages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mpi_ata.cli import COMMANDS, main
from mpi_ata.job.schema import TABLES
from tests.job_file import BLOCK, NAMES, PAGE, meanings_in, rewritten
from tests.pages import DOCS, ROOT

SOURCES = [file.read_text() for file in Path(ROOT / "mpi_ata").rglob("*.py")]
BLOCKS = {block[2]: block for block in BLOCK.finditer(PAGE.read_text())}  # of docs/job-file.md
CHEAT_SHEET = (DOCS / "cheat-sheet.md").read_text()
COMMAND_ROWS = re.findall(r"(?m)^\| `(mpi-ata (\S+).*?)` \| (.*) \|$", CHEAT_SHEET)


def code_in(text: str) -> list[str]:
    """Return what a cell shows as code."""
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("table", BLOCKS)
def test_a_table_has_the_keys_types_and_defaults_of_the_code_and_meanings(table: str) -> None:
    block, rows = BLOCKS[table], BLOCKS[table][3]
    assert rewritten(block) == block[0], "python -m tests.job_file rewrites it"
    assert [key for key, meaning in meanings_in(rows).items() if not meaning] == []
    names = [name for choices in NAMES.get(table, {}).values() for name in choices]
    assert [name for name in names if f"`{name}`" not in rows] == []


def test_every_table_of_a_job_has_a_section() -> None:
    assert [table for table in BLOCKS if "." not in table] == list(TABLES)


def test_the_cheat_sheet_lists_every_command_and_only_options_that_exist() -> None:
    assert {name for _, name, _ in COMMAND_ROWS} == set(COMMANDS)
    for call, name, meaning in COMMAND_ROWS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        shown = f"{call} {' '.join(code_in(meaning))}"
        assert set(re.findall(r"(?<!\S|\w)--?[a-z][a-z-]*", shown)) <= known, call


def test_the_variables_of_the_cheat_sheet_exist() -> None:
    _, _, table = CHEAT_SHEET.partition("| variable | meaning |")
    code = "".join(SOURCES)
    assert [name for name in re.findall(r"(?m)^\| `(\w+)` ", table) if name not in code] == []


def texts_in(tree: ast.AST) -> Iterator[str]:
    """Yield all texts in a file, with ... for each value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            yield re.sub(r"%s|\{\d\}", "...", written(node))


def written(node: ast.expr) -> str:
    """Return a text as it is written, with ... in place of what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def test_the_messages_that_the_page_on_troubleshooting_quotes_are_in_the_code() -> None:
    messages = re.findall(r"(?m)^\| `(.+?)` \| .+ \|$", (DOCS / "troubleshooting.md").read_text())
    texts = "\n".join(text for source in SOURCES for text in texts_in(ast.parse(source)))
    assert len(messages) > 20
    assert [message for message in messages if message not in texts] == []
