"""What commands share: options, and errors in one sentence."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.driver.output import OutputOptions
from mpi_ata.errors import CONTINUE, LossError, RunError, UsageError
from mpi_ata.launch.held_signals import hold_stop_signals
from mpi_ata.layout import MANAGER

Command = Callable[..., Any]


class WrongUsage(click.ClickException):
    """Wrong usage, reported in one sentence without click's usage lines."""

    exit_code = 2


class StoppedEarly(click.ClickException):
    """Stopped early; what was saved can be resumed."""

    exit_code = CONTINUE


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
        raise reported(click.ClickException(str(error))) from None


def errors_in_one_sentence(command: Command) -> Command:
    """Let a command report errors without a traceback."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        with one_sentence_errors():
            return command(*arguments, **options)

    return wrapped


def combine(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


set_option = click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), help="The run file.  [default: a fresh name in runs/]"
)


def job_options(command: Command) -> Command:
    """Add the options that say which job to run, where, and with which changes."""

    @click.argument("job", type=click.Path(path_type=Path))
    @click.option("--virtual", is_flag=True, help="Simulate the workers in this process, on a virtual clock.")
    @click.option("--workers", type=click.IntRange(min=1), help="Number of workers; overrides run.workers.")
    @set_option
    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line.")
    @wraps(command)
    def wrapped(job: Path, workers: int | None, settings: tuple[str, ...], **options: Any) -> None:
        if launch.under_launcher():
            hold_stop_signals()
        with one_sentence_errors():
            if options["virtual"] and launch.world_size() > 1:
                raise UsageError("--virtual simulates all workers in one process: leave out mpirun or srun")
            if workers is not None:
                settings = (*settings, f"run.workers={workers}")
            command(job, settings, **options)

    return wrapped


accept_option = click.option(
    "--accept-changes", is_flag=True, help="Resume although the job or a file that it names was edited."
)
resume_options = combine(
    click.option("--resume", is_flag=True, help="Continue the run in --out, if there is one."), accept_option
)
prior_options = combine(
    click.option(
        "--warm-start",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Start with the worker speeds learned in a run file, or in a folder of them; may be repeated.",
    ),
    click.option(
        "--prior-weight",
        type=float,
        default=1.0,
        help="Weight of what --warm-start reads, above 0 and at most 1; smaller values relearn sooner.",
    ),
    click.option("--any-problem", is_flag=True, help="Warm-start from runs of other problems too."),
)
lead_options = combine(
    click.option("--signal", default="USR1", show_default=True, help="The signal that asks a run to save."),
    click.option(
        "--lead",
        type=click.IntRange(min=1),
        help="How many seconds before the time limit to send that signal.  [default: as measured]",
    ),
)


def output_options(command: Command) -> Command:
    """Add the options that say where a run is recorded, and what it starts from."""

    @out_option
    @resume_options
    @prior_options
    @wraps(command)
    def wrapped(
        *arguments: Any,
        out: Path | None,
        resume: bool,
        accept_changes: bool,
        warm_start: tuple[Path, ...],
        prior_weight: float,
        any_problem: bool,
        **options: Any,
    ) -> None:
        output = OutputOptions(out, resume, warm_start, prior_weight, any_problem, accept_changes)
        command(*arguments, output=output, **options)

    return wrapped


def show(text: str) -> None:
    """Print a result."""
    try:
        click.echo(text)
    except OSError as error:
        raise click.ClickException(f"cannot write the result: {error.strerror}") from None
