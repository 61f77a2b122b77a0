"""The help of mpi-ata and of each command."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from mpi_ata import __version__
from mpi_ata.cli import COMMANDS, main
from tests.cli.commands import call, start


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_each_command_has_examples_on_lines_of_their_own(command: str, option: str) -> None:
    result = call(command, option)
    assert result.exit_code == 0
    assert f"  Examples:\n    mpi-ata {command} " in result.output


@pytest.mark.parametrize(("arguments", "names"), [([], COMMANDS), (["paper"], ["table1", "real"])])
def test_the_help_lists_the_commands_and_does_not_cut_off_their_summaries(
    arguments: list[str], names: Iterable[str]
) -> None:
    result = start(*arguments, "--help")
    _, _, commands = result.stdout.partition("Commands:\n")
    assert result.returncode == 0
    assert all(f"  {name} " in commands for name in names)
    assert "..." not in commands


@pytest.mark.parametrize(
    ("word", "meant"),
    [("rnu", "; did you mean run?"), ("my.toml", "; did you mean mpi-ata run my.toml?"), ("xyz", "")],
)
def test_what_is_no_command_is_rejected_with_what_was_meant(word: str, meant: str) -> None:
    result = call(word)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: No such command '{word}'{meant}\n")


def every_command(group: click.Group = main) -> Iterator[click.Command]:
    """Yield all commands, those of groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command)


def test_the_help_of_every_command_of_a_group_has_an_example() -> None:
    commands = [command for command in every_command() if not isinstance(command, click.Group)]
    examples = {str(each.name): (each.help or "").partition("Examples:")[2] for each in commands}
    assert [name for name, example in examples.items() if f" {name} " not in example] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_completes_commands_in_a_shell(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "start.md").read_text()
    assert f"_MPI_ATA_COMPLETE={shell}_source mpi-ata" in page
    monkeypatch.setenv("_MPI_ATA_COMPLETE", f"{shell}_source")
    assert f"_MPI_ATA_COMPLETE={shell}_complete" in start().stdout
    monkeypatch.setenv("_MPI_ATA_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "mpi-ata comp")
    monkeypatch.setenv("COMP_CWORD", "comp" if shell == "fish" else "1")
    assert "compare" in start().stdout


@pytest.mark.parametrize(
    ("words", "found", "not_found"),
    [
        ("compare job.toml --allocators ata-auto,g", "ata-auto,gta", "uta"),
        ("run job.toml --set allocator.b", "allocator.budget=", "run.seed="),
        ("run job.toml --set allocator.name=b", "allocator.name=bandit", "allocator.name=gta"),
        ("run job.toml --set run.s", "run.seed=", "method.name="),
    ],
)
def test_keys_and_allocators_are_completed(
    words: str, found: str, not_found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MPI_ATA_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", f"mpi-ata {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    completed = start().stdout.splitlines()
    assert found in completed
    assert not_found not in completed


def test_every_option_of_every_command_has_a_help_text() -> None:
    options = [(c.name, o) for c in every_command() for o in c.params if isinstance(o, click.Option)]
    assert len(options) > 50
    assert [(name, option.opts) for name, option in options if not option.help] == []


def test_the_version_is_printed() -> None:
    result = start("--version")
    assert (result.returncode, result.stdout) == (0, f"mpi-ata, version {__version__}\n")
