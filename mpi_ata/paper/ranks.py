"""An experiment on real ranks with emulated times, compared with a simulation of the same rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from mpi_ata import launch
from mpi_ata.driver.execute import Outcome, execute
from mpi_ata.driver.plan import Plan
from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts
from mpi_ata.layout import MANAGER, ranks_for
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import Experiment, Request, Trial
from mpi_ata.paper.ratios import RATIOS, ratio_header, ratio_lines, ratios, total_time
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Result, finished_result, interrupted

ROUNDS = 1_000


def for_ranks(experiment: Experiment, request: Request, unit: float) -> Experiment:
    """Return the experiment for ranks: one number of workers, fewer rounds, a unit in seconds."""
    if request.workers is None or len(request.workers) > 1:
        raise UsageError("--mpi needs one number of workers, each of which is a rank: --mpi --workers 17")
    workers = request.workers[0]
    ranks = ranks_for(workers)
    if launch.under_launcher() and launch.world_size() != ranks:
        raise UsageError(
            f"--workers {workers} needs {ranks} ranks, one of them the manager, "
            f"but {launch.world_size()} were started; use mpirun -n {ranks}, or leave it out"
        )
    rounds = request.rounds or ROUNDS
    experiment = replace(
        experiment.with_request(request), unit=unit, rounds=rounds, prefix=f"ranks-{unit:g}-"
    )
    for trial in experiment.trials():  # reports errors before any rank is started
        finished_result(trial)
        build_parts(trial.job())
    return replace(experiment, name=f"{experiment.name}-mpi")


def make_table_on_ranks(experiment: Experiment, run: Callable[[Trial], Outcome | None]) -> Report | None:
    """Do all runs on the ranks of this world, simulate them, and return the report; None on workers."""
    from mpi_ata.clusters.world import bcast_text

    trials, results = experiment.trials(), list[Result]()
    for trial in trials:
        earlier = finished_result(trial) if launch.rank() == MANAGER else None
        if bcast_text("finished" if earlier else ""):
            results += [earlier] if earlier else []
        elif outcome := run(trial):
            if outcome.reason is None:
                raise interrupted(len(results), trials)
            results.append(Result(trial, outcome.summary(), outcome.trace.rows))
    if not results:
        return None
    virtual = [Result(trial, execute(Plan(trial.job())).summary(), []) for trial in trials]
    draw = partial(figures.draw_runs, figures.by_workers(results))
    return ranks_report(experiment, results, virtual).with_figure(experiment.out, draw)


def ranks_report(experiment: Experiment, results: Sequence[Result], virtual: Sequence[Result]) -> Report:
    """Return ratios on ranks, next to the simulated ones."""
    records = ratios(results, experiment.budget)
    for record, other in zip(records, ratios(virtual, experiment.budget), strict=True):
        record |= {f"virtual_{key}": other[key] for key in RATIOS}
    title = (
        f"{experiment.title}, on {experiment.workers[0]} worker ranks and a manager: {experiment.law} law in "
        f"units of {experiment.unit:g} s, B = {experiment.budget}, {experiment.rounds:,} rounds"
    )
    header, lines = ratio_header("virtual"), ratio_lines(records, "virtual", ".2f")
    return Report(experiment.name, title, header, lines, [*_notes(), total_time(results)], records)


def _notes() -> Iterator[str]:
    yield (
        "Both did the same rounds with the same drawn times. On ranks a worker sleeps that long, its tasks "
        "are measured, and message transfer adds to the runtime."
    )
    yield (
        "The paper's ratios are for about 26,000 rounds; after so few, learning allocators are still "
        "exploring. Only ofta, which does not learn, is comparable."
    )
