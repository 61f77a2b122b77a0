"""What docs/cheat-sheet.md lists exists: commands and their options, keys, names and public functions."""

import re
from pathlib import Path

import click
import pytest

import mpi_ata
from mpi_ata.cli import COMMANDS, main
from mpi_ata.job.component import ALLOCATORS, LAWS, METHODS, PROBLEMS, UPDATES
from tests.job_file import BLOCK, keys_of
from tests.pages import DOCS, ROOT

PAGE = (DOCS / "cheat-sheet.md").read_text()
ROWS = re.findall(r"(?m)^\| `(mpi-ata (\S+).*?)` \| (.*) \|$", PAGE)
TABLES = re.findall(r"(?m)^\| `\[+([\w.]+)\]+` \| (.*) \|$", PAGE)
DOCUMENTED = [block[2] for block in BLOCK.finditer((DOCS / "job-file.md").read_text())]
NAMES = {
    "problems": PROBLEMS,
    "methods": METHODS,
    "updates": UPDATES,
    "allocators": ALLOCATORS,
    "laws": LAWS,
}


def code_in(text: str) -> list[str]:
    """Return what a cell shows as code."""
    return re.findall(r"`([^`]+)`", text)


def test_every_command_is_listed() -> None:
    assert {name for _, name, _ in ROWS} == set(COMMANDS)


@pytest.mark.parametrize(("call", "name", "meaning"), ROWS, ids=[call for call, _, _ in ROWS])
def test_the_options_of_a_command_exist(call: str, name: str, meaning: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"(?<!\S|\w)--?[a-z][a-z-]*", f"{call} {' '.join(code_in(meaning))}")) <= known


@pytest.mark.parametrize(("table", "keys"), TABLES, ids=[table for table, _ in TABLES])
def test_the_keys_of_a_table_exist(table: str, keys: str) -> None:
    assert set(code_in(keys)) <= {key.name for key in keys_of(table)}


def test_every_table_is_listed_with_all_keys_that_are_no_parameters_of_a_problem() -> None:
    listed = {table: set(code_in(keys)) for table, keys in TABLES}
    missing = {table: {key.name for key in keys_of(table)} - listed.get(table, set()) for table in DOCUMENTED}
    missing["problem"], missing["times"] = set(), missing["times"] - {"changes"}  # a row of its own
    assert {table: keys for table, keys in missing.items() if keys} == {}


@pytest.mark.parametrize("table", NAMES)
def test_the_names_that_a_table_can_choose_exist(table: str) -> None:
    (row,) = re.findall(rf"(?m)^\| {table} \| (.*) \|$", PAGE)
    assert {name for name in code_in(row) if not name.startswith("torch.")} <= set(NAMES[table])


def test_the_functions_and_the_members_of_a_task_are_public() -> None:
    assert set(re.findall(r"mpi_ata\.(\w+)\(", PAGE)) <= set(mpi_ata.__all__)
    assert all(hasattr(mpi_ata.Task, name) for name in re.findall(r"`task\.(\w+)", PAGE))


def test_the_variables_are_known_to_the_program() -> None:
    code = "".join(file.read_text() for file in Path(ROOT / "mpi_ata").rglob("*.py"))
    _, _, table = PAGE.partition("| variable | meaning |")
    assert [name for name in re.findall(r"(?m)^\| `(\w+)` ", table) if name not in code] == []
