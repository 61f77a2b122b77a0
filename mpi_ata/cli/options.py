"""The options that commands share, each declared once."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError, printable
from mpi_ata.launch.signals import hold_stop_signals

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def combine(*decorators: Decorator) -> Decorator:
    """Return a decorator that does what these do, the first as the outermost."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def passed_as(name: str, kind: type[Any]) -> Decorator:
    """Return a decorator that passes all options that are fields of a dataclass as one object."""
    names = {field.name for field in fields(kind)}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            own = {key: options.pop(key) for key in names & options.keys()}
            return command(*arguments, **{name: kind(**own)}, **options)

        return wrapped

    return decorate


PATH = click.Path(path_type=Path)


def complete_setting(_context: click.Context, _option: click.Parameter, text: str) -> list[str]:
    """Return the keys, and the names that stand for classes, with which what was typed may continue."""
    from mpi_ata.job.schema import setting_names

    return [name for name in setting_names() if name.startswith(text)]


def complete_allocators(_context: click.Context, _option: click.Parameter, text: str) -> list[str]:
    """Return the lists of allocators with which what was typed may continue."""
    from mpi_ata.job.component import ALLOCATORS

    before, comma, last = text.rpartition(",")
    return [f"{before}{comma}{name}" for name in [*ALLOCATORS, "own"] if name.startswith(last)]


job_argument = click.argument("job", type=PATH)


def jobs_argument(command: Command) -> Command:
    """Add the job files to run, or a script and its arguments."""

    @click.argument("words", type=click.Path(), nargs=-1, required=True, metavar="JOB...")
    @wraps(command)
    def wrapped(words: tuple[str, ...], **options: Any) -> None:
        count = 1 if words[0].endswith(".py") else len(words)
        command(jobs=tuple(map(Path, words[:count])), args=words[count:], **options)

    return wrapped


run_argument = click.argument("run", type=PATH)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override a key of the job; KEY=VALUE: an option of a script.",
    shell_complete=complete_setting,
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on the last line."
)
price_option = click.option(
    "--price",
    type=float,
    default=1.0,
    show_default=True,
    help="How many per cent of billed one per cent of time is worth; 0 recommends the cheapest.",
)
prior_options = combine(
    click.option(
        "--accept-changes", is_flag=True, help="Resume although the job or code that it names was edited."
    ),
    click.option(
        "--warm-start",
        multiple=True,
        type=PATH,
        help="Start with the worker speeds learned in a run file, or in a folder of them; may be repeated.",
    ),
    click.option(
        "--prior-weight",
        type=float,
        default=1.0,
        help="Weight of what --warm-start reads, above 0 and at most 1; smaller values relearn sooner.",
    ),
    click.option("--any-problem", is_flag=True, help="Warm-start from runs of other problems too."),
    passed_as("output", OutputOptions),
)
output_options = combine(
    click.option("--out", type=PATH, help="The run file.  [default: a fresh name in runs/]"),
    click.option("--resume", is_flag=True, help="Continue the run in --out, if there is one."),
    prior_options,
)
array_options = combine(
    click.option(
        "--array",
        multiple=True,
        metavar="TABLE.KEY=V,V,...",
        shell_complete=complete_setting,
        help="Run once for each value; if given several times, for all combinations.",
    ),
    click.option("--at-once", type=click.IntRange(min=1), help="Maximum runs of --array at the same time."),
)
lead_options = combine(
    click.option("--signal", default="USR1", show_default=True, help="The signal that asks a run to save."),
    click.option(
        "--lead",
        type=click.IntRange(min=1),
        help="How many seconds before the time limit to send that signal.  [default: as measured]",
    ),
    click.option("--give-back", is_flag=True, help="Give nodes back to Slurm that the run can do without."),
)


def job_options(command: Command) -> Command:
    """Add the options that say which job to run, where, and with which changes."""
    return job_argument(where_options(command))


def where_options(command: Command) -> Command:
    """Add the options that say where to run jobs, and with which changes."""

    @click.option("--virtual", is_flag=True, help="Simulate the workers in this process, on a virtual clock.")
    @click.option("--workers", type=click.IntRange(min=1), help="Number of workers; overrides run.workers.")
    @set_option
    @json_option
    @wraps(command)
    def wrapped(workers: int | None, settings: tuple[str, ...], **options: Any) -> None:
        if launch.under_launcher():
            hold_stop_signals()
        if options["virtual"] and launch.world_size() > 1:
            raise UsageError("--virtual simulates all workers in one process: leave out mpirun or srun")
        if workers is not None:
            settings = (*settings, f"run.workers={workers}")
        command(settings=settings, **options)

    return wrapped


def show(text: str, err: bool = False) -> None:
    """Print a result, or a note if `err`; nothing else prints, so that no file can control the terminal."""
    try:
        click.echo(printable(text), err=err)
    except OSError as error:
        if err:  # a note that nobody can read ends nothing
            return
        raise click.ClickException(f"cannot write the result: {error.strerror}") from None
