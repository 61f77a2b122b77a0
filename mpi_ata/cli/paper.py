"""The commands for the paper's experiments."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpi_ata import launch
from mpi_ata.cli.options import StoppedEarly, WrongUsage, reported, show
from mpi_ata.cli.running import execute_with_progress, starts_ranks
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.names import LAWS
from mpi_ata.view.progress import Line

if TYPE_CHECKING:
    from mpi_ata.paper.experiments import Request
    from mpi_ata.paper.progress import RunsProgress, Watch
    from mpi_ata.paper.report import Report


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers, comma-separated."""

    name = "N,N,..."

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of them."""
        parts = value.split(",") if isinstance(value, str) else value
        if not all(str(part).strip().isdecimal() and int(part) >= self.least for part in parts):
            rule = f"a list of whole numbers from {self.least} on, such as 17,51"
            self.fail(f"{value!r} is not {rule}", param, ctx)
        return tuple(int(part) for part in parts)


@click.group()
def paper() -> None:
    """The paper's experiments: our figures beside the printed ones, and the choices that were made.

    \b
    Examples:
      mpi-ata paper table1
      mpi-ata paper table1 --workers 17,51 --seeds 5 --out results
      mpi-ata paper mix --budget 10 --json
    """


def experiment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that all experiments have; their report is printed as it is asked for."""

    @click.option("--workers", type=Numbers(), help="Numbers of workers; else those of the paper.")
    @click.option("--budget", type=click.IntRange(min=1), help="Tasks a round; else that of the paper.")
    @click.option("--law", type=click.Choice(sorted(LAWS)), help="Law of task times; else that of the paper.")
    @click.option("--allocators", help="Names, comma-separated; ata-half is ata with half of its alpha.")
    @click.option("--rounds", type=click.IntRange(min=1), help="Rounds of a run, at most.")
    @click.option("--seeds", type=click.IntRange(min=1), help="How many seeds to repeat everything with.")
    @click.option("--seed", "first_seed", type=click.IntRange(0, 2**32), default=1, help="The first of them.")
    @click.option("--cores", type=click.IntRange(min=1), help="Processes at a time; else one for each core.")
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for run files, which the same command goes on with, and for the figure.",
    )
    @click.option("--markdown", is_flag=True, help="Print the table for a document.")
    @click.option(
        "--json", "as_json", is_flag=True, help="Print the figures as a JSON list on the last line."
    )
    @wraps(command)
    def wrapped(markdown: bool, as_json: bool, **options: Any) -> None:
        line = Line(sys.stderr)

        def watch(progress: "RunsProgress") -> None:
            if line.due():
                line.show(progress.text())

        try:
            report: Report | None = command(asked(options), watch, **options)
        except UsageError as error:
            raise reported(WrongUsage(str(error))) from None
        except RunError as error:
            resumable = getattr(error, "resumable", False)
            raise reported((StoppedEarly if resumable else click.ClickException)(str(error))) from None
        finally:
            line.clear()
        if report is not None:
            show(report.json() if as_json else report.markdown() if markdown else report.text())

    return wrapped


def asked(options: dict[str, Any]) -> "Request":
    """Take out of the options what all experiments understand."""
    from mpi_ata.paper.experiments import Request
    from mpi_ata.paper.runs import cores

    given = {field.name: options.pop(field.name) for field in fields(Request)}
    if given["allocators"] is not None:
        given["allocators"] = tuple(name.strip() for name in given["allocators"].split(","))
    given["cores"] = given["cores"] or cores()
    if given["out"] is not None:
        try:
            given["out"].mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {given['out']}: no such folder can be made: {error.strerror}") from None
    return Request(**given)


@paper.command()
@experiment_options
@click.option("--mpi", is_flag=True, help="On real ranks with emulated times, beside a virtual run.")
@click.option(
    "--unit",
    type=click.FloatRange(0, min_open=True),
    default=1e-4,
    help="With --mpi: seconds that a unit of the law lasts.",
)
def table1(request: "Request", watch: "Watch", mpi: bool, unit: float) -> "Report | None":
    """Ratios to greedy allocation under the square-root law: Table 1.

    With --mpi, 1,000 rounds for one number of workers, each of which is a rank.

    \b
    Examples:
      mpi-ata paper table1 --seeds 5 --out results
      mpi-ata paper table1 --mpi --workers 17
    """
    from mpi_ata.paper import experiments, ranks, tables

    if not mpi:
        return tables.make_table(experiments.TABLE1, request, watch)
    experiment = ranks.for_ranks(experiments.TABLE1, request, unit)
    if starts_ranks(virtual=False):
        launch.start_ranks(experiment.workers[0], sys.argv[1:])
    return ranks.make_table_on_ranks(
        experiment, lambda trial: execute_with_progress(trial.plan_on_ranks(), False, f"{trial.allocator}: ")
    )


@paper.command()
@experiment_options
def table2(request: "Request", watch: "Watch") -> "Report":
    """Ratios to greedy allocation under the linear law: Table 2."""
    from mpi_ata.paper import experiments, tables

    return tables.make_table(experiments.TABLE2, request, watch)


@paper.command()
@experiment_options
def mix(request: "Request", watch: "Watch") -> "Report":
    """Ratios to greedy allocation under a mix of five laws."""
    from mpi_ata.paper import experiments, tables

    return tables.make_table(experiments.MIX, request, watch)


@paper.command()
@experiment_options
def regret(request: "Request", watch: "Watch") -> "Report":
    """How the regret grows with the rounds, and a fit against ln k."""
    from mpi_ata.paper import experiments
    from mpi_ata.paper.regret import make_regret

    return make_regret(experiments.REGRET, request, watch)


DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with train.bin and test.bin of CIFAR-100.",
)


@paper.command()
@experiment_options
@DATA
@click.option("--full", is_flag=True, help="25,000 rounds instead of 3,000.")
def cifar(request: "Request", watch: "Watch", data: Path | None, full: bool) -> "Report":
    """A network on CIFAR-100, trained under each allocator; needs PyTorch.

    \b
    Examples:
      mpi-ata paper cifar --data cifar-100-binary --workers 17 --out results
    """
    from mpi_ata.paper import experiments
    from mpi_ata.paper.cifar import make_cifar

    experiment = experiments.CIFAR
    return make_cifar(
        replace(experiment, rounds=experiments.FULL_ROUNDS) if full else experiment, request, data, watch
    )


@paper.command()
@experiment_options
@DATA
@click.option(
    "--prior", "priors", type=Numbers(0), default="0,500000,5000000", help="Rounds of the bandit alone."
)
def prior(request: "Request", watch: "Watch", data: Path | None, priors: tuple[int, ...]) -> "Report":
    """Runs that start from prior knowledge of the workers.

    It comes from rounds of the bandit alone: quotas are decided and times learned, without gradients.

    With --data, 3,000 rounds of the network on CIFAR-100, as in the paper; else runs of the quadratic.

    \b
    Examples:
      mpi-ata paper prior --out results
      mpi-ata paper prior --prior 0,50000 --workers 17
    """
    from mpi_ata.paper import experiments
    from mpi_ata.paper.prior import make_prior

    experiment = experiments.PRIOR if data is None else experiments.PRIOR_ON_CIFAR
    return make_prior(experiment, request, priors, data, watch)
