"""The commands for the paper's experiments."""

import sys
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.cli.options import Command, combine, json_option, passed_as, show
from mpi_ata.cli.runs import execute_with_progress, starts_ranks
from mpi_ata.errors import UsageError
from mpi_ata.job.component import LAWS
from mpi_ata.limits import usable_cores
from mpi_ata.paper import experiments, ratios
from mpi_ata.paper.experiments import PaperRequest
from mpi_ata.paper.figures import PaperReport
from mpi_ata.paper.machines import make_real
from mpi_ata.paper.pretrained import make_prior
from mpi_ata.paper.regret import make_regret
from mpi_ata.paper.trials import Watch
from mpi_ata.view.live import Display


def split_names(_: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Return a comma-separated list of names as a tuple."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def split_numbers(
    minimum: int, context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Return a comma-separated list of whole numbers as a tuple."""
    names = split_names(context, option, text)
    if names is not None and not all(name.isdecimal() and int(name) >= minimum for name in names):
        rule = f"a list of whole numbers from {minimum} on, such as 17,51"
        raise click.BadParameter(f"{text!r} is not {rule}", context, option)
    return None if names is None else tuple(map(int, names))


@click.group(name="paper")
def paper_command() -> None:
    """Run the paper's experiments, and compare with its results.

    Prints our results next to those in the paper, with the choices that were made.

    \b
    Examples:
      mpi-ata paper table1
      mpi-ata paper table1 --workers 17,51 --seeds 5 --out results
      mpi-ata paper mix --budget 10 --json
    """


def reported_experiment(command: Command) -> Command:
    """Show the progress of an experiment's runs, and print the report on them."""

    @wraps(command)
    def wrapped(request: PaperRequest, markdown: bool, as_json: bool, **options: Any) -> None:
        line = Display(sys.stderr)

        def watch(progress: str) -> None:
            if line.due():
                line.show(progress)

        try:
            if request.out is not None:  # before time is spent on what it is for
                request.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {request.out}: cannot create this folder: {error.strerror}") from None
        try:
            report: PaperReport | None = command(request, watch, **options)
        finally:
            line.clear()
        if report is not None:
            show(report.json() if as_json else report.markdown() if markdown else report.text())

    return wrapped


shared_options = combine(
    click.option(
        "--workers",
        metavar="N,N,...",
        callback=partial(split_numbers, 1),
        help="Numbers of workers.  [default: as in the paper]",
    ),
    click.option("--budget", type=click.IntRange(min=1), help="Tasks per round.  [default: as in the paper]"),
    click.option(
        "--allocators",
        callback=split_names,
        help="Names, comma-separated; ata-half is ata with half its alpha.",
    ),
    click.option("--rounds", type=click.IntRange(min=1), help="Maximum rounds per run."),
    click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds to repeat everything with."),
    click.option("--seed", "first_seed", type=click.IntRange(0, 2**32), default=1, help="The first seed."),
    click.option(
        "--cores",
        type=click.IntRange(min=1),
        default=usable_cores,
        help="Number of processes.  [default: one per core]",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the figure and the run files; the same command resumes them.",
    ),
    click.option("--markdown", is_flag=True, help="Print the table as Markdown."),
    json_option,
    passed_as("request", PaperRequest),
    reported_experiment,
)
experiment_options = combine(
    click.option(
        "--law", type=click.Choice(sorted(LAWS)), help="Law of task times.  [default: as in the paper]"
    ),
    shared_options,
)
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with train.bin and test.bin of CIFAR-100.",
)


@paper_command.command()
@experiment_options
@click.option("--mpi", is_flag=True, help="Run on real ranks with emulated times; compare with a simulation.")
@click.option(
    "--unit",
    type=click.FloatRange(0, min_open=True),
    default=1e-4,
    help="With --mpi: seconds per unit of the law.",
)
def table1(request: PaperRequest, watch: Watch, mpi: bool, unit: float) -> PaperReport | None:
    """Ratios to greedy allocation under the square-root law: Table 1.

    With --mpi, runs 1,000 rounds for one number of workers, each on a rank of its own.

    \b
    Examples:
      mpi-ata paper table1 --seeds 5 --out results
      mpi-ata paper table1 --mpi --workers 17
    """
    if not mpi:
        return ratios.make_table(experiments.TABLE1, request, watch)
    experiment = ratios.for_ranks(experiments.TABLE1, request, unit)
    if starts_ranks(virtual=False):
        launch.start_ranks(experiment.workers[0], launch.rank_command(sys.argv[1:]))
    return ratios.make_table_on_ranks(
        experiment,
        lambda trial: execute_with_progress(trial.plan(on_ranks=True), False, f"{trial.allocator}: "),
    )


@paper_command.command()
@experiment_options
def table2(request: PaperRequest, watch: Watch) -> PaperReport:
    """Ratios to greedy allocation under the linear law: Table 2.

    \b
    Examples:
      mpi-ata paper table2 --workers 17,51 --out results
    """
    return ratios.make_table(experiments.TABLE2, request, watch)


@paper_command.command()
@experiment_options
def mix(request: PaperRequest, watch: Watch) -> PaperReport:
    """Ratios to greedy allocation under a mix of five laws.

    \b
    Examples:
      mpi-ata paper mix --budget 10 --json
    """
    return ratios.make_table(experiments.MIX, request, watch)


@paper_command.command()
@experiment_options
def regret(request: PaperRequest, watch: Watch) -> PaperReport:
    """Growth of the regret with the rounds, and a fit against ln k.

    \b
    Examples:
      mpi-ata paper regret --out results
    """
    return make_regret(experiments.REGRET, request, watch)


@paper_command.command()
@experiment_options
@data_option
@click.option("--full", is_flag=True, help="Run 25,000 rounds instead of 3,000.")
def cifar(request: PaperRequest, watch: Watch, data: Path | None, full: bool) -> PaperReport:
    """A network on CIFAR-100 under each allocator; needs PyTorch.

    \b
    Examples:
      mpi-ata paper cifar --data cifar-100-binary --workers 17 --out results
    """
    experiment = replace(experiments.CIFAR, rounds=experiments.FULL_ROUNDS) if full else experiments.CIFAR
    return ratios.make_cifar(experiment, request, data, watch)


@paper_command.command()
@experiment_options
@data_option
@click.option(
    "--prior",
    "priors",
    metavar="N,N,...",
    callback=partial(split_numbers, 0),
    default="0,500000,5000000",
    help="Pretraining rounds, of the bandit alone.",
)
def prior(request: PaperRequest, watch: Watch, data: Path | None, priors: tuple[int, ...]) -> PaperReport:
    """Runs that start with prior knowledge of the workers.

    The prior comes from rounds of the bandit alone: it decides quotas and learns times, without gradients.

    With --data, runs 3,000 rounds of the network on CIFAR-100, as in the paper; otherwise the quadratic.

    \b
    Examples:
      mpi-ata paper prior --out results
      mpi-ata paper prior --prior 0,50000 --workers 17
    """
    experiment = experiments.PRIOR if data is None else experiments.PRIOR_ON_CIFAR
    return make_prior(experiment, request, priors, data, watch)


@paper_command.command()
@shared_options
@click.option("--laws", help="Laws of task times, comma-separated.  [default: all real machines]")
def real(request: PaperRequest, watch: Watch, laws: str | None) -> PaperReport:
    """All allocators on real machines, against the oracle.

    Clock and worker time after 100, 1,000 and 26,000 rounds without gradients, divided by those of ofta,
    which knows the true mean times.  Any other law can be named too; by default with 51 workers and B = 23.

    \b
    Examples:
      mpi-ata paper real --rounds 1000
      mpi-ata paper real --laws lonestar6,gpu-generations --allocators uta,ata-empirical --seeds 3
    """
    return make_real(laws, request, watch)
