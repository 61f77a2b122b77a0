"""What rounds of the bandit alone taught: kept in run files, as runs are, so that others start from it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.loop import parts_of
from mpi_ata.driver.recorder import OutputOptions
from mpi_ata.driver.trace import Trace
from mpi_ata.paper.bandit import Checkpoint, checkpoints
from mpi_ata.paper.experiments import Plan
from mpi_ata.paper.runs import Note


def pretrained(plan: Plan, marks: Sequence[int], note: Note) -> Iterator[tuple[Checkpoint, Trace]]:
    """Play the bandit of a plan: what it knows after each of `marks` rounds, with the history up to there."""
    trace = Trace()
    for checkpoint in checkpoints(plan.job(), marks, note):
        allocator = checkpoint.allocator
        trace.round, trace.clock, trace.regret = allocator.k, checkpoint.clock, checkpoint.regret
        trace.used, trace.worker_time = int(allocator.K.sum()), float(allocator.T.sum())
        trace.record()
        yield checkpoint, trace


def keep(checkpoint: Checkpoint, trace: Trace, plan: Plan, path: Path) -> None:
    """Write what was learned to a run file."""
    problem, times, method = parts_of(plan.job())
    assert times is not None
    assert method.allocator is not None
    allocator = checkpoint.allocator
    method.k = allocator.k
    method.allocator.restore(allocator.state())
    with closing(VirtualCluster(problem, times)) as cluster:
        cluster.ledger.worker_time[:] = allocator.T
        cluster.ledger.stats.restore(checkpoint.speeds)
        _, keeper = OutputOptions(path).open(plan.job(), note=lambda text: None)
        keeper.begin(method, cluster, trace)
        keeper.end(method, cluster, trace, f"{allocator.k:,} rounds of the bandit alone", "")
