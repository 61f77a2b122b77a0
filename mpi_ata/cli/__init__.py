"""The command line: each command parses, calls one function, prints."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.errors import (
    CONTINUE,
    LossError,
    RunError,
    UsageError,
    command_line,
    did_you_mean,
    explained,
    printable,
)
from mpi_ata.launch.exit_report import exit_code_of, note_exit
from mpi_ata.launch.signals import SIGNALLED
from mpi_ata.layout import MANAGER
from mpi_ata.version import __version__

MODULES = {  # and the commands in each; only the one that is called is imported, since every rank does so
    "batch": ("batch", "status", "stop", "submit"),
    "compare": ("compare",),
    "doctor": ("doctor",),
    "new": ("new",),
    "paper": ("paper",),
    "results": ("explain", "plot", "recommend", "report", "show", "watch", "what-if"),
    "run_files": ("export", "runs"),
    "runs": ("run",),
}
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands}


class WrongUsage(click.ClickException):
    """Wrong usage, reported in one sentence without click's usage lines."""

    exit_code = 2


class StoppedEarly(click.ClickException):
    """Stopped early; what was saved can be resumed."""

    exit_code = CONTINUE


class Interrupted(click.ClickException):
    """Ended by Ctrl-C where there is nothing to save."""

    exit_code = SIGNALLED + signal.SIGINT


def reported(error: click.ClickException) -> click.ClickException:
    """Return the error; ranks other than 0 wait first, since rank 0 reports the same one and ends them."""
    if launch.under_launcher() and launch.rank() != MANAGER:
        time.sleep(1)
    else:
        launch.note_failure(error.message)
    return error


@contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Turn errors that a user can cause into one sentence and an exit code."""
    try:
        yield
    except UsageError as error:
        raise reported(WrongUsage(str(error))) from None
    except LossError as error:  # not reported as a failure: on other workers the run may continue
        raise click.ClickException(str(error)) from None
    except RunError as error:
        raise reported((StoppedEarly if error.resumable else click.ClickException)(str(error))) from None
    except KeyboardInterrupt:
        raise Interrupted("stopped by Ctrl-C") from None
    except Exception as error:
        if not (what := explained(error)):
            raise
        raise reported(click.ClickException(what)) from None


class LazyGroup(click.Group):
    """Imports a command when it is called, or shown in a list, and reports errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"mpi_ata.cli.{COMMANDS[cmd_name]}")
        command: click.Command = vars(module)[f"{cmd_name.replace('-', '_')}_command"]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; of an unknown one, say what was probably meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}{_meant(args[0])}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Call a command."""
        with one_sentence_errors():
            return super().invoke(ctx)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command; a manager reports its exit code to the process that started the ranks."""
        launch.open_closed_streams()
        try:
            return super().main(*args, **options)
        except SystemExit as end:
            if launch.under_launcher() and launch.rank() == MANAGER:
                note_exit(exit_code_of(end))
            raise


def _meant(word: str) -> str:
    """Return what to type instead of a word that is no command, if that can be guessed."""
    for ending, command in ((".toml", "run"), (".h5", "show")):
        if word.endswith(ending):
            return printable(f"; did you mean {command_line('mpi-ata', command, word)}?")
    return did_you_mean(word, COMMANDS)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpi-ata")
def main() -> None:
    """Adaptive task allocation over MPI: learn how fast workers are, and give each its share of tasks."""
