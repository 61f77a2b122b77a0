"""What rounds of the bandit alone taught: kept in run files, as runs are, so that others start from it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from mpi_ata.cluster import VirtualCluster
from mpi_ata.keeper import Keeping
from mpi_ata.paper.bandit import Lesson, lessons
from mpi_ata.paper.experiments import Plan
from mpi_ata.paper.runs import Note
from mpi_ata.run import parts_of
from mpi_ata.trace import Trace


def taught(plan: Plan, marks: Sequence[int], note: Note) -> Iterator[tuple[Lesson, Trace]]:
    """Play the bandit of a plan: what it knows after each of `marks` rounds, with the history up to there."""
    trace = Trace()
    for lesson in lessons(plan.job(), marks, note):
        allocator = lesson.allocator
        trace.round, trace.clock, trace.regret = allocator.k, lesson.clock, lesson.regret
        trace.used, trace.worker_time = int(allocator.K.sum()), float(allocator.T.sum())
        trace.record()
        yield lesson, trace


def keep(lesson: Lesson, trace: Trace, plan: Plan, path: Path) -> None:
    """Write what was learned to a run file."""
    problem, times, method = parts_of(plan.job())
    assert times is not None
    assert method.allocator is not None
    allocator = lesson.allocator
    method.k = allocator.k
    method.allocator.restore(allocator.state())
    with closing(VirtualCluster(problem, times)) as cluster:
        cluster.worker_time[:] = allocator.T
        cluster.speeds.restore(lesson.speeds)
        _, keeper = Keeping(path).open(plan.job(), note=lambda text: None)
        keeper.begin(method, cluster, trace)
        keeper.end(method, cluster, trace, f"{allocator.k:,} rounds of the bandit alone", "")
