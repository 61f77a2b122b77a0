"""The command line: each command parses, calls one function, prints."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpi_ata import launch, signals
from mpi_ata.console import (
    Line,
    ProgressLine,
    closing_table,
    comparison_table,
    finding_text,
    shown,
    status_table,
    submission_text,
)
from mpi_ata.errors import CONTINUE, RunError, UsageError
from mpi_ata.job import Job, load_job
from mpi_ata.keeper import Keeping, load
from mpi_ata.record import told as told_of
from mpi_ata.run import Outcome, execute, execute_on_ranks, parts_of
from mpi_ata.store import RunFile
from mpi_ata.times import LAWS
from mpi_ata.version import __version__

if TYPE_CHECKING:
    from mpi_ata.paper.experiments import Request
    from mpi_ata.paper.progress import Standing, Watch
    from mpi_ata.paper.report import Report


class Refused(click.ClickException):
    """Wrong usage, told in one sentence without click's lines around it."""

    exit_code = 2


class Unfinished(click.ClickException):
    """Stopped early; what was kept can go on."""

    exit_code = CONTINUE


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpi-ata")
def main() -> None:
    """Adaptive task allocation: give workers of unknown, unequal speed just as many tasks as pay off."""


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
            signals.listen()
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


def told(error: click.ClickException) -> click.ClickException:
    """The error; ranks beside 0 hold it back, since rank 0 has the same one and its end is theirs."""
    if launch.under_launcher() and launch.rank() > 0:
        time.sleep(1)
    else:
        launch.note_failure(error.message)
    return error


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


def keeping_options(command: Callable[..., Any]) -> Callable[..., Any]:
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
        command(job, keeping=Keeping(out, resume, warm_start, prior_weight, any_problem), **options)

    return wrapped


@main.command(name="run")
@job_options
@keeping_options
def run_command(job: Job, keeping: Keeping, virtual: bool, as_json: bool) -> None:
    """Run a job: on the ranks that mpirun or srun started, else on ranks of its own.

    \b
    Examples:
      mpi-ata run jobs/quadratic.toml --virtual
      mpi-ata run jobs/emulated.toml
      mpirun -n 5 mpi-ata run jobs/emulated.toml
      mpi-ata run jobs/quadratic.toml --virtual --workers 51 --set allocator.name=gta
      mpi-ata run jobs/own_problem.toml --virtual --json
      mpi-ata run jobs/quadratic.toml --virtual --out runs/mine.h5 --resume
      mpi-ata run jobs/emulated.toml --warm-start runs/
    """
    if starts_ranks(virtual):
        keeping.check()
        start_ranks([keeping.continued(job)])
    outcome = watched(job, virtual, keeping)
    if outcome is None:
        return
    show(json.dumps(outcome.figures()) if as_json else closing_table(outcome))
    if outcome.reason is None:
        sys.exit(CONTINUE if outcome.resumable else 1)


@main.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on the last line.")
def show_command(run: Path, as_json: bool) -> None:
    """Tell what a run file knows: the job, how far it is, what happened, and who its workers are.

    \b
    Examples:
      mpi-ata show runs/mine.h5
      mpi-ata show runs/mine.h5 --json
    """
    try:
        record, complaint = load(RunFile(run))
    except UsageError as error:
        raise Refused(str(error)) from None
    if complaint:
        click.echo(f"Note: {complaint}", err=True)
    found = told_of(record)
    show(json.dumps(found) if as_json else shown(found))


@main.command()
@job_options
@click.option(
    "--allocators",
    default="ata-empirical,gta,uta",
    show_default=True,
    help="Names, comma-separated; own: the job's own.",
)
def compare(job: Job, virtual: bool, allocators: str, as_json: bool) -> None:
    """Run the same job under several allocators, and print one table.

    \b
    Examples:
      mpi-ata compare jobs/emulated.toml
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
    """
    names = [name.strip() for name in allocators.split(",")]
    variants = job.with_allocators(names)
    if virtual:
        for variant in variants:
            parts_of(variant)  # so that a wrong one is refused before time is spent on the others
    if starts_ranks(virtual):
        start_ranks(variants)
    rows: list[dict[str, Any]] = []
    for name, variant in zip(names, variants, strict=True):
        outcome = watched(variant, virtual, label=f"{name}: ")
        if outcome is not None:
            rows.append({"allocator": name} | outcome.figures())
            if outcome.reason is None:
                break
    if not rows:
        return
    show(json.dumps(rows) if as_json else comparison_table(rows, billed=not virtual))
    if not all(row["finished"] for row in rows):
        sys.exit(1)


def show(text: str) -> None:
    """Print a result."""
    try:
        click.echo(text)
    except OSError as error:
        raise click.ClickException(f"cannot write the result: {error.strerror}") from None


def noted(line: ProgressLine, text: str) -> None:
    """Tell the user something beside the result."""
    line.clear()
    click.echo(f"Note: {text}", err=True)


def starts_ranks(virtual: bool) -> bool:
    """Whether this process is to start the ranks, since nobody else has."""
    return not virtual and not launch.under_launcher()


def start_ranks(jobs: Sequence[Job]) -> None:
    """Start the ranks, and become their launcher: inside of a Slurm job on what it was given."""
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata import slurm

        given = click.get_current_context().params.get("workers")
        launch.become([*slurm.launcher(given), *launch.rank_command(sys.argv[1:])])
    for job in jobs:
        parts_of(job)
    launch.start_ranks(jobs[0].run.workers or 1, sys.argv[1:])


def watched(job: Job, virtual: bool, keeping: Keeping | None = None, label: str = "") -> Outcome | None:
    """Execute a job with a progress line; None on the rank of a worker."""
    line = ProgressLine(job.stop, sys.stderr, label, bool(os.environ.get(launch.TERMINAL)))
    try:
        return (execute if virtual else execute_on_ranks)(job, line, keeping, partial(noted, line))
    finally:
        line.clear()


@main.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as a JSON list on the last line.")
def doctor_command(as_json: bool) -> None:
    """Tell what is there to run jobs with, and what to mend.

    Looks at Python, the MPI that is loaded and its launcher, cores, threads, the output folder and Slurm, and
    runs a tiny job on two ranks. Exit code 1 if something would keep jobs from running; notes do not count.

    \b
    Examples:
      mpi-ata doctor --json
      mpi-ata doctor
      mpirun -n 5 mpi-ata doctor
    """
    from mpi_ata import doctor

    if launch.under_launcher() and launch.rank() > 0:
        doctor.meeting(doctor.loaded_library())
        return
    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        if not as_json:
            click.echo(finding_text(finding))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    if not all(finding.ok for finding in findings):
        sys.exit(1)


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


@main.group()
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

        def watch(standing: "Standing") -> None:
            if line.due():
                line.show(standing.text())

        try:
            report: Report | None = command(asked(options), watch, **options)
        except UsageError as error:
            raise told(Refused(str(error))) from None
        except RunError as error:
            goes_on = getattr(error, "kept", False)
            raise told((Unfinished if goes_on else click.ClickException)(str(error))) from None
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
        experiment, lambda plan: watched(plan.job(), False, plan.keeping(), f"{plan.allocator}: ")
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
        replace(experiment, rounds=experiments.FULL) if full else experiment, request, data, watch
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


@main.command(name="submit")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--nodes", "-N", type=click.IntRange(min=1), help="Nodes.")
@click.option("--ntasks", "-n", type=click.IntRange(min=1), help="Ranks in all: the manager and the workers.")
@click.option("--ntasks-per-node", type=click.IntRange(min=1), help="Ranks on each node.")
@click.option("--cpus-per-task", "-c", type=click.IntRange(min=1), help="Cores of each rank.")
@click.option("--time", "-t", help="Time limit of each start, such as 02:00:00.")
@click.option("--partition", "-p")
@click.option("--account", "-A")
@click.option("--gpus-per-task", help="GPUs of each rank; the manager uses none.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="Any further option of sbatch's.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
)
@click.option(
    "--array",
    "sweep",
    multiple=True,
    metavar="TABLE.KEY=V,V,...",
    help="Run once for each value, or for all combinations, where given several times.",
)
@click.option("--at-once", type=click.IntRange(min=1), help="So many runs of --array at the same time.")
@click.option("--chain", type=click.IntRange(min=1), help="So many Slurm jobs, each going on from the last.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run file; a fresh name in runs/ by default."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, if it exists.")
@prior_options
@click.option("--signal", default="USR1", show_default=True, help="The signal that tells a run to save.")
@click.option("--lead", type=click.IntRange(min=1), help="Seconds before the time limit at which it comes.")
@click.option(
    "--source", type=click.Path(path_type=Path), help="A shell file to read first, say with `module load`."
)
@click.option("--no-check", is_flag=True, help="Do not build the problem here: its data are on the nodes.")
@click.option("--dry-run", is_flag=True, help="Print script and command, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line.")
@told_in_one_sentence
def submit_command(
    job: Path,
    sweep: tuple[str, ...],
    at_once: int | None,
    no_check: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Give a job to Slurm; it is requeued and goes on by itself until it is finished.

    Job and problem files are copied: editing them afterwards changes nothing.

    \b
    Examples:
      mpi-ata submit jobs/emulated.toml --nodes 4 --ntasks-per-node 8 --time 02:00:00
      mpi-ata submit jobs/emulated.toml -N 4 -n 32 --sbatch "--constraint=fast" --dry-run
      mpi-ata submit jobs/emulated.toml -n 32 --warm-start runs/ --json
      mpi-ata submit jobs/emulated.toml -n 32 --array allocator.budget=8,16,32 --at-once 2
      mpi-ata submit jobs/emulated.toml -n 32 --time 30 --chain 4
    """
    from mpi_ata import slurm

    names = ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "time", "partition", "account")
    resources = slurm.Resources(**{name: given.pop(name) for name in (*names, "gpus_per_task", "more")})
    members = slurm.Sweep.of(sweep, at_once) if sweep else None
    submission = slurm.Submission(job, resources, sweep=members, check=not no_check, **given)
    result = slurm.submit(submission, dry_run)
    show(json.dumps(result) if as_json else submission_text(result))


@main.command(name="status")
@click.argument("which", required=False, metavar="[JOBID|RUN.h5]")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list on the last line.")
@told_in_one_sentence
def status_command(which: str | None, as_json: bool) -> None:
    """Tell how far submitted runs are: those in runs/ and in the queue, or one of them.

    \b
    Examples:
      mpi-ata status 1234 --json
      mpi-ata status
      mpi-ata status runs/emulated-20250101-120000.h5
    """
    from mpi_ata import slurm

    rows = slurm.status(which)
    show(json.dumps(rows) if as_json else status_table(rows))


@main.command(name="stop")
@click.argument("which", metavar="JOBID|RUN.h5")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list on the last line.")
@told_in_one_sentence
def stop_command(which: str, as_json: bool) -> None:
    """End a submitted run for good: it is saved, and not started again.

    Go on with it later by `mpi-ata submit JOB.toml --out RUN.h5 --resume`.

    \b
    Examples:
      mpi-ata stop 1234
      mpi-ata stop runs/emulated-20250101-120000.h5
    """
    from mpi_ata import slurm

    rows = slurm.stop(which)
    show(json.dumps(rows) if as_json else status_table(rows))


@main.command(name="batch")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run file; by default named after the Slurm job."
)
@click.option("--kept", type=click.Path(path_type=Path), help="What mpi-ata submit has prepared.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
)
@prior_options
@click.option("--siblings", is_flag=True, help="Learn speeds from finished runs of the same sweep.")
@click.option("--requeue/--no-requeue", default=True, help="Whether Slurm may start the job again.")
@click.option("--signal", default="USR1", show_default=True, help="The signal that tells a run to save.")
@click.option("--lead", type=click.IntRange(min=1), help="Seconds before the time limit to send it.")
@told_in_one_sentence
def batch_command(
    job: Path,
    out: Path | None,
    kept: Path | None,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """What a batch script calls: run a job until it is finished, through time limits and preemption.

    Begin the line with `exec`, so that the signals of Slurm's come through; slurm/run.sbatch is an example.

    \b
    Examples:
      mpi-ata batch jobs/emulated.toml
      mpi-ata batch jobs/emulated.toml --set allocator.budget=16 --warm-start runs/
    """
    from mpi_ata import slurm

    batch = slurm.prepared(job, out, kept, settings, **options)
    sys.exit(slurm.carry_out(batch, partial(click.echo, err=True)))
