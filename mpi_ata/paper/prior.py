"""The paper's experiment on prior knowledge: rounds of the bandit alone, then runs that start from them."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi_ata.allocators import ALLOCATORS
from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.cluster import VirtualCluster
from mpi_ata.errors import UsageError
from mpi_ata.keeper import Keeping
from mpi_ata.paper import figures
from mpi_ata.paper.bandit import Lesson, has_numba, lessons
from mpi_ata.paper.cifar import NETWORK
from mpi_ata.paper.experiments import HALF, Experiment, Plan, Request
from mpi_ata.paper.ratios import Record, ratios, seeds_text, spread
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Note, Result, Watch, execute_plan, on_cores
from mpi_ata.paper.tables import TARGET, unreached
from mpi_ata.run import parts_of
from mpi_ata.trace import Trace

APART = 1_000_000  # between the seeds of lessons and runs, so that no drawn time comes again
HEADER = ["allocator", "n", "prior rounds", "rounds", "worker time, gta / x", "runtime, x / gta"]


def make_prior(
    experiment: Experiment, request: Request, priors: Sequence[int], data: Path | None, watch: Watch
) -> Report:
    """Let allocators learn from rounds of the bandit alone, then make runs that start from that."""
    with TemporaryDirectory() as temporary:
        asked = experiment.asked(request)
        experiment = replace(asked, out=asked.out or Path(temporary))
        if data is not None:
            experiment = experiment.on_data(data)
        plans = experiment.plans()
        parts_of(plans[0].job())  # so that missing data or PyTorch are told at once
        learners = [plan for plan in plans if learns(plan.allocator)]
        if not learners:
            raise UsageError("nobody of these learns: name ata, ata-half or ata-empirical with --allocators")
        marks = sorted(prior for prior in set(priors) if prior)
        if marks:
            on_cores(partial(teach, marks=marks), [pupil(plan) for plan in learners], request.cores, watch)
        started = [after(plan, mark) for plan in learners for mark in marks]
        cold = [plan for plan in plans if 0 in priors or plan not in learners]
        results = on_cores(execute_plan, [*cold, *started], request.cores, watch)
    report = prior_report(experiment, results)
    if request.out is not None:
        report = report.drawn(request.out / "prior.png", lambda path: draw(results, path))
    return report


def learns(allocator: str) -> bool:
    """Whether an allocator has a use for what others learned."""
    kind = ALLOCATORS["ata" if allocator == HALF else allocator]
    return isinstance(kind, type) and issubclass(kind, LowerBoundAllocator)


def pupil(plan: Plan) -> Plan:
    """The rounds of the bandit before a run: other times of the same law."""
    return replace(plan, settings=(*plan.settings, f"run.seed={plan.seed + APART}"))


def lesson_file(plan: Plan, rounds: int) -> Path:
    """Where it is kept what so many rounds of the bandit taught."""
    assert plan.out is not None
    return plan.out.with_name(f"lesson-{rounds}-{plan.out.name}")


def after(plan: Plan, rounds: int) -> Plan:
    """The run that starts from so many rounds of the bandit."""
    assert plan.out is not None
    out = plan.out.with_name(f"after-{rounds}-{plan.out.name}")
    return replace(plan, prior=rounds, lesson=lesson_file(plan, rounds), out=out)


def teach(plan: Plan, note: Note, marks: Sequence[int]) -> None:
    """Let the allocator of a plan learn, and keep what it knows after so many rounds each, as runs do."""
    if all(lesson_file(plan, mark).exists() for mark in marks):
        return
    for lesson in lessons(plan.job(), marks, note):
        path = lesson_file(plan, lesson.allocator.k)
        if not path.exists():
            keep(lesson, plan, path)


def keep(lesson: Lesson, plan: Plan, path: Path) -> None:
    """Write what was learned to a run file, which others can warm-start from."""
    problem, times, method = parts_of(plan.job())
    assert times is not None
    assert method.allocator is not None
    allocator, trace = lesson.allocator, Trace()
    method.k = allocator.k
    method.allocator.restore(allocator.state())
    with closing(VirtualCluster(problem, times)) as cluster:
        trace.round, trace.clock, trace.used = allocator.k, lesson.clock, int(allocator.K.sum())
        cluster.worker_time[:] = allocator.T
        cluster.speeds.restore(lesson.speeds)
        _, keeper = Keeping(path).open(plan.job(), note=lambda text: None)
        keeper.begin(method, cluster, trace)
        keeper.end(method, cluster, trace, f"{allocator.k:,} rounds of the bandit alone", "")


def prior_report(experiment: Experiment, results: Sequence[Result]) -> Report:
    """Ratios by prior rounds, those without any first."""
    records = ratios(results, experiment.budget)
    network = "accuracy" in records[0]
    header = [*HEADER, "test loss", "accuracy"] if network else HEADER
    end = f"{experiment.rounds:,} rounds" if network else f"until f - f* < {TARGET:g}"
    title = (
        f"{experiment.title}: {experiment.law} law, B = {experiment.budget}, {end}, "
        f"{seeds_text(len(experiment.seeds))}"
    )
    lines = [list(_cells(record, network)) for record in records]
    return Report(title, header, lines, list(_notes(network, records)), records)


def _cells(record: Record, network: bool) -> Iterator[str]:
    yield record["allocator"]
    yield str(record["n"])
    yield f"{record['prior']:,}" if learns(record["allocator"]) else "-"
    yield f"{record['rounds']:,}"
    for key in ("worker_time_ratio", "runtime_ratio"):
        yield spread(record[key], record[f"{key}_deviation"])
    if network:
        yield f"{record['loss']:.3f}"
        yield f"{100 * record['accuracy']:.1f} %"


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
