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
from mpi_ata.cli.start import execute_with_progress, starts_ranks
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.names import LAWS
from mpi_ata.view.progress import Line

if TYPE_CHECKING:
    from mpi_ata.paper.experiments import Request
    from mpi_ata.paper.progress import RunsProgress, Watch
    from mpi_ata.paper.report import Report

    NumbersType = click.ParamType[tuple[int, ...]]
else:
    NumbersType = click.ParamType  # generic since click 8.4 only


class Numbers(NumbersType):
    """A comma-separated list of whole numbers."""

    name = "N,N,..."

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers as a tuple."""
        parts = value.split(",") if isinstance(value, str) else value
        if not all(str(part).strip().isdecimal() and int(part) >= self.minimum for part in parts):
            rule = f"a list of whole numbers from {self.minimum} on, such as 17,51"
            self.fail(f"{value!r} is not {rule}", param, ctx)
        return tuple(int(part) for part in parts)


@click.group()
def paper() -> None:
    """Run the paper's experiments, and compare with its results.

    Prints our results next to those in the paper, with the choices that were made.

    \b
    Examples:
      mpi-ata paper table1
      mpi-ata paper table1 --workers 17,51 --seeds 5 --out results
      mpi-ata paper mix --budget 10 --json
    """


def experiment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all experiments share, and print the report in the requested format."""

    @click.option("--workers", type=Numbers(), help="Numbers of workers.  [default: as in the paper]")
    @click.option("--budget", type=click.IntRange(min=1), help="Tasks per round.  [default: as in the paper]")
    @click.option("--allocators", help="Names, comma-separated; ata-half is ata with half its alpha.")
    @click.option("--rounds", type=click.IntRange(min=1), help="Maximum rounds per run.")
    @click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds to repeat everything with.")
    @click.option("--seed", "first_seed", type=click.IntRange(0, 2**32), default=1, help="The first seed.")
    @click.option("--cores", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the figure and the run files; the same command resumes them.",
    )
    @click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
    @click.option(
        "--json", "as_json", is_flag=True, help="Print the results as a JSON list on the last line."
    )
    @wraps(command)
    def wrapped(markdown: bool, as_json: bool, **options: Any) -> None:
        line = Line(sys.stderr)

        def watch(progress: "RunsProgress") -> None:
            if line.due():
                line.show(progress.text())

        try:
            report: Report | None = command(take_request(options), watch, **options)
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


LAW = click.option(
    "--law", type=click.Choice(sorted(LAWS)), help="Law of task times.  [default: as in the paper]"
)


def take_request(options: dict[str, Any]) -> "Request":
    """Take the options that all experiments share out of `options`."""
    from mpi_ata.paper.experiments import Request
    from mpi_ata.paper.runs import cores

    shared = {field.name: options.pop(field.name) for field in fields(Request) if field.name in options}
    if shared["allocators"] is not None:
        shared["allocators"] = tuple(name.strip() for name in shared["allocators"].split(","))
    shared["cores"] = shared["cores"] or cores()
    if shared["out"] is not None:
        try:
            shared["out"].mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {shared['out']}: cannot create this folder: {error.strerror}") from None
    return Request(**shared)


@paper.command()
@experiment_options
@LAW
@click.option("--mpi", is_flag=True, help="Run on real ranks with emulated times; compare with a simulation.")
@click.option(
    "--unit",
    type=click.FloatRange(0, min_open=True),
    default=1e-4,
    help="With --mpi: seconds per unit of the law.",
)
def table1(request: "Request", watch: "Watch", mpi: bool, unit: float) -> "Report | None":
    """Ratios to greedy allocation under the square-root law: Table 1.

    With --mpi, runs 1,000 rounds for one number of workers, each on a rank of its own.

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
@LAW
def table2(request: "Request", watch: "Watch") -> "Report":
    """Ratios to greedy allocation under the linear law: Table 2.

    \b
    Examples:
      mpi-ata paper table2 --workers 17,51 --out results
    """
    from mpi_ata.paper import experiments, tables

    return tables.make_table(experiments.TABLE2, request, watch)


@paper.command()
@experiment_options
@LAW
def mix(request: "Request", watch: "Watch") -> "Report":
    """Ratios to greedy allocation under a mix of five laws.

    \b
    Examples:
      mpi-ata paper mix --budget 10 --json
    """
    from mpi_ata.paper import experiments, tables

    return tables.make_table(experiments.MIX, request, watch)


@paper.command()
@experiment_options
@LAW
def regret(request: "Request", watch: "Watch") -> "Report":
    """Growth of the regret with the rounds, and a fit against ln k.

    \b
    Examples:
      mpi-ata paper regret --out results
    """
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
@LAW
@DATA
@click.option("--full", is_flag=True, help="Run 25,000 rounds instead of 3,000.")
def cifar(request: "Request", watch: "Watch", data: Path | None, full: bool) -> "Report":
    """A network on CIFAR-100 under each allocator; needs PyTorch.

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
@LAW
@DATA
@click.option(
    "--prior",
    "priors",
    type=Numbers(0),
    default="0,500000,5000000",
    help="Pretraining rounds, of the bandit alone.",
)
def prior(request: "Request", watch: "Watch", data: Path | None, priors: tuple[int, ...]) -> "Report":
    """Runs that start with prior knowledge of the workers.

    The prior comes from rounds of the bandit alone: it decides quotas and learns times, without gradients.

    With --data, runs 3,000 rounds of the network on CIFAR-100, as in the paper; otherwise the quadratic.

    \b
    Examples:
      mpi-ata paper prior --out results
      mpi-ata paper prior --prior 0,50000 --workers 17
    """
    from mpi_ata.paper import experiments
    from mpi_ata.paper.prior import make_prior

    experiment = experiments.PRIOR if data is None else experiments.PRIOR_ON_CIFAR
    return make_prior(experiment, request, priors, data, watch)


@paper.command()
@experiment_options
@click.option("--laws", help="Laws of task times, comma-separated.  [default: all real machines]")
def real(request: "Request", watch: "Watch", laws: str | None) -> "Report":
    """All allocators on real machines, against the oracle.

    Clock and worker time after 100, 1,000 and 26,000 rounds without gradients, divided by those of ofta,
    which knows the true mean times.  Any other law can be named too; by default with 51 workers and B = 23.

    \b
    Examples:
      mpi-ata paper real --rounds 1000
      mpi-ata paper real --laws lonestar6,gpu-generations --allocators uta,ata-empirical --seeds 3
    """
    from mpi_ata.paper.real import make_real

    return make_real(laws, request, watch)
