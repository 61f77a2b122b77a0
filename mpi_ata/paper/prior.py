"""The paper's experiment on prior knowledge: rounds of the bandit alone, then runs that start from them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi_ata.driver.loop import parts_of
from mpi_ata.errors import UsageError
from mpi_ata.paper import figures
from mpi_ata.paper.bandit import has_numba
from mpi_ata.paper.cifar import NETWORK, learned_cells
from mpi_ata.paper.experiments import LEARNERS, Experiment, Plan, Request, learns
from mpi_ata.paper.pretraining import keep, pretrained
from mpi_ata.paper.progress import Watch
from mpi_ata.paper.ratios import NAMES, Record, effort, ratio_cells, ratios
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Note, Result, RunsInterruptedError, execute_plan, on_cores
from mpi_ata.paper.tables import TARGET, unreached

APART = 1_000_000  # between the seeds of lessons and runs, so that no drawn time comes again
HEADER = ["allocator", "n", "prior rounds", "rounds", *NAMES]


def make_prior(
    experiment: Experiment, request: Request, priors: Sequence[int], data: Path | None, watch: Watch
) -> Report:
    """Let allocators learn from rounds of the bandit alone, then make runs that start from that."""
    with TemporaryDirectory() as temporary:
        asked = experiment.asked(request)
        experiment = replace(asked, out=asked.out or Path(temporary))
        if data is not None:
            experiment = experiment.on_data(data)
        try:
            results = _made(experiment, priors, request.cores, watch)
        except RunsInterruptedError as error:
            raise RunsInterruptedError(error.done, error.runs, kept=request.out is not None) from None
    return prior_report(experiment, results).drawn(request.out, partial(draw, results))


def _made(experiment: Experiment, priors: Sequence[int], processes: int, watch: Watch) -> list[Result]:
    """All runs, after the rounds of the bandit that they start from."""
    plans = experiment.plans()
    parts_of(plans[0].job())  # so that missing data or PyTorch are told at once
    learners = [plan for plan in plans if learns(plan.allocator)]
    if not learners:
        raise UsageError(f"nobody of these learns; name some of {LEARNERS} with --allocators")
    marks = sorted(prior for prior in set(priors) if prior)
    if marks:
        pupils = [pretraining_plan(plan, marks[-1]) for plan in learners]
        on_cores(partial(pretrain, marks=marks), pupils, processes, watch)
    started = [after(plan, mark) for plan in learners for mark in marks]
    cold = [plan for plan in plans if 0 in priors or plan not in learners]
    return on_cores(execute_plan, [*cold, *started], processes, watch)


def pretraining_plan(plan: Plan, rounds: int) -> Plan:
    """So many rounds of the bandit before a run: other times of the same law."""
    return replace(plan, rounds=rounds, settings=(*plan.settings, f"run.seed={plan.seed + APART}"))


def pretraining_file(plan: Plan, rounds: int) -> Path:
    """Where it is kept what so many rounds of the bandit taught."""
    assert plan.out is not None
    return plan.out.with_name(f"lesson-{rounds}-{plan.out.name}")


def after(plan: Plan, rounds: int) -> Plan:
    """The run that starts from so many rounds of the bandit."""
    assert plan.out is not None
    out = plan.out.with_name(f"after-{rounds}-{plan.out.name}")
    return replace(plan, prior=rounds, checkpoint=pretraining_file(plan, rounds), out=out)


def pretrain(plan: Plan, note: Note, marks: Sequence[int]) -> None:
    """Let the allocator of a plan learn, and keep what it knows after so many rounds each, as runs do."""
    if all(pretraining_file(plan, mark).exists() for mark in marks):
        return
    for checkpoint, trace in pretrained(plan, marks, note):
        path = pretraining_file(plan, trace.round)
        if not path.exists():
            keep(checkpoint, trace, plan, path)


def prior_report(experiment: Experiment, results: Sequence[Result]) -> Report:
    """Ratios by prior rounds, those without any first."""
    records = ratios(results, experiment.budget)
    network = "accuracy" in records[0]
    header = [*HEADER, "test loss", "accuracy"] if network else HEADER
    end = f"{experiment.rounds:,} rounds" if network else f"until f - f* < {TARGET:g}"
    title = experiment.heading(end)
    lines = [list(_cells(record, network)) for record in records]
    notes = [*_notes(network, records), effort(results)]
    return Report(experiment.name, title, header, lines, notes, records)


def _cells(record: Record, network: bool) -> Iterator[str]:
    yield record["allocator"]
    yield str(record["n"])
    yield f"{record['prior']:,}" if learns(record["allocator"]) else "-"
    yield f"{record['rounds']:,}"
    yield from ratio_cells(record)
    if network:
        yield from learned_cells(record)


def _notes(network: bool, records: Sequence[Record]) -> Iterator[str]:
    if not network:
        yield from unreached(records)
    yield (
        "Prior rounds are rounds of the bandit alone: quotas are decided and task times learned, without "
        "gradients. Runs start from them as by --warm-start. Their times have a seed of their own."
    )
    if network:
        yield NETWORK
    else:
        yield "The runs are of the quadratic; with --data FOLDER of the network on CIFAR-100, like the paper."
    yield "The paper prints no figures for this experiment, only curves that come near to that of ofta."
    if not has_numba():
        yield "Prior rounds ran in Python; pip install 'mpi-ata[paper]' compiles them, which is far faster."


def draw(results: Sequence[Result], path: Path) -> None:
    """A row of pictures for each number of prior rounds; who does not learn is in all of them."""
    network = "accuracy" in results[0].figures["evaluation"]
    panels = figures.LOSS_PANELS if network else figures.PANELS[:2]
    groups = {}
    for title, group in figures.by_workers(results).items():
        for prior in sorted({result.plan.prior for result in group if learns(result.plan.allocator)}):
            groups[f"{title}, P = {prior:,}"] = [
                result for result in group if result.plan.prior == prior or not learns(result.plan.allocator)
            ]
    figures.draw_runs(groups, path, panels)
