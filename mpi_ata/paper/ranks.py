"""An experiment on real ranks with emulated times, beside a virtual run of the same rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mpi_ata.errors import RunError, UsageError
from mpi_ata.paper.experiments import Experiment, Plan, Request
from mpi_ata.paper.ratios import Record, ratios, spread
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Result
from mpi_ata.run import Outcome, execute, parts_of

ROUNDS = 1_000
BOTH = ("worker_time_ratio", "runtime_ratio")
HEADER = [
    "allocator",
    "n",
    "rounds",
    "worker time, gta / x",
    "virtual",
    "off by",
    "runtime, x / gta",
    "virtual",
    "off by",
]


def for_ranks(experiment: Experiment, request: Request, unit: float) -> Experiment:
    """The experiment as it is to be made on ranks: one number of workers, fewer rounds, a unit in seconds."""
    if request.workers is None or len(request.workers) > 1:
        raise UsageError("--mpi needs one number of workers, each of which is a rank: --mpi --workers 17")
    experiment = replace(experiment.asked(request), unit=unit, rounds=request.rounds or ROUNDS, out=None)
    for plan in experiment.plans():
        parts_of(plan.job())  # so that what cannot be is refused before ranks are started
    return experiment


def make_table_on_ranks(experiment: Experiment, run: Callable[[Plan], Outcome | None]) -> Report | None:
    """Make all runs on the ranks of this world, and virtually; there is no report on a worker's rank."""
    results: list[Result] = []
    for plan in experiment.plans():
        outcome = run(plan)
        if outcome is not None:
            if outcome.reason is None:
                raise RunError(f"interrupted after {len(results)} of {len(experiment.plans())} runs")
            results.append(Result(plan, outcome.figures(), outcome.trace.rows))
    if not results:
        return None
    virtual = [Result(plan, execute(plan.job()).figures(), []) for plan in experiment.plans()]
    return ranks_report(experiment, results, virtual)


def ranks_report(experiment: Experiment, results: Sequence[Result], virtual: Sequence[Result]) -> Report:
    """Ratios on ranks, and virtual ones beside them."""
    records = ratios(results, experiment.budget)
    for record, other in zip(records, ratios(virtual, experiment.budget), strict=True):
        record |= {f"virtual_{key}": other[key] for key in BOTH}
    lines = [
        [record["allocator"], str(record["n"]), f"{record['rounds']:,}", *_cells(record)]
        for record in records
    ]
    title = (
        f"{experiment.title}, over {experiment.workers[0]} real ranks and a manager: {experiment.law} law in "
        f"units of {experiment.unit:g} s, B = {experiment.budget}, {experiment.rounds:,} rounds"
    )
    return Report(title, HEADER, lines, list(_notes()), records)


def _cells(record: Record) -> Iterator[str]:
    for key in BOTH:
        virtual = record[f"virtual_{key}"]
        yield spread(record[key], record[f"{key}_deviation"])
        yield f"{virtual:.2f}"
        yield f"{100 * (record[key] / virtual - 1):+.1f} %"


def _notes() -> Iterator[str]:
    yield (
        "Both made the same rounds with the same drawn times. On ranks a worker sleeps that long, its tasks "
        "are measured, and what messages take on their way lengthens the runtime."
    )
    yield (
        "The paper's ratios belong to about 26,000 rounds; after so few, those who learn are still learning. "
        "Only ofta, which learns nothing, compares."
    )
