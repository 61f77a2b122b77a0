"""What commands have in common: options, and errors that are told in one sentence."""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.driver.recorder import OutputOptions
from mpi_ata.errors import CONTINUE, RunError, UsageError
from mpi_ata.job.schema import Job, load_job
from mpi_ata.launch import signals


class Refused(click.ClickException):
    """Wrong usage, told in one sentence without click's lines around it."""

    exit_code = 2


class Resumable(click.ClickException):
    """Stopped early; what was kept can go on."""

    exit_code = CONTINUE


def told(error: click.ClickException) -> click.ClickException:
    """The error; ranks beside 0 hold it back, since rank 0 has the same one and its end is theirs."""
    if launch.under_launcher() and launch.rank() > 0:
        time.sleep(1)
    else:
        launch.note_failure(error.message)
    return error


def told_in_one_sentence(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command's errors be told without a traceback."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except UsageError as error:
            raise Refused(str(error)) from None
        except RunError as error:
            raise click.ClickException(str(error)) from None

    return wrapped


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which job, where and with which changes; errors are told in one sentence."""

    @click.argument("job", type=click.Path(path_type=Path))
    @click.option("--virtual", is_flag=True, help="Simulate the workers in this process, on a virtual clock.")
    @click.option(
        "--workers", type=click.IntRange(min=1), help="How many workers; overrides workers in [run]."
    )
    @click.option(
        "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line.")
    @wraps(command)
    def wrapped(job: Path, workers: int | None, settings: tuple[str, ...], **options: Any) -> None:
        if launch.under_launcher():
            signals.hold_stop_signals()
        try:
            if options["virtual"] and launch.world_size() > 1:
                raise UsageError("--virtual simulates all workers in one process: leave out mpirun or srun")
            if workers is not None:
                settings = (*settings, f"run.workers={workers}")
            command(load_job(job, settings), **options)
        except UsageError as error:
            raise told(Refused(str(error))) from None
        except RunError as error:
            raise told(click.ClickException(str(error))) from None

    return wrapped


def prior_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a new run knows of its workers."""

    @click.option(
        "--warm-start",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A run file, or a folder of them, whose knowledge of the workers is taken over.",
    )
    @click.option(
        "--prior-weight",
        type=float,
        default=1.0,
        help="How much that knowledge counts, from 0 (excluded) to 1; below 1 it is soon outweighed.",
    )
    @click.option("--any-problem", is_flag=True, help="Warm-start from runs of other problems too.")
    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        command(*arguments, **options)

    return wrapped


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where a run is kept, and what it starts from."""

    @click.option(
        "--out", type=click.Path(path_type=Path), help="The run file; a fresh name in runs/ if left out."
    )
    @click.option("--resume", is_flag=True, help="Go on with the run in --out, if there is one.")
    @prior_options
    @wraps(command)
    def wrapped(
        job: Job,
        out: Path | None,
        resume: bool,
        warm_start: tuple[Path, ...],
        prior_weight: float,
        any_problem: bool,
        **options: Any,
    ) -> None:
        command(job, keeping=OutputOptions(out, resume, warm_start, prior_weight, any_problem), **options)

    return wrapped


def show(text: str) -> None:
    """Print a result."""
    try:
        click.echo(text)
    except OSError as error:
        raise click.ClickException(f"cannot write the result: {error.strerror}") from None
