"""Rounds of the bandit alone, saved in run files that other runs can warm-start from."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.trace import Trace
from mpi_ata.job import build_parts
from mpi_ata.paper.bandit import Learned, play_bandit
from mpi_ata.paper.experiments import Trial
from mpi_ata.paper.runs import ReportRounds
from mpi_ata.runfile.store import RunFile


def play_plan(trial: Trial, marks: Sequence[int], report: ReportRounds) -> Iterator[tuple[Learned, Trace]]:
    """Play the bandit of a trial, and yield what it learned after each of `marks` rounds, with its trace."""
    trace = Trace()
    for learned in play_bandit(trial.job(), marks, report):
        allocator = learned.allocator
        trace.round, trace.clock, trace.regret = allocator.k, learned.clock, learned.regret
        trace.used, trace.worker_time = int(allocator.K.sum()), float(allocator.T.sum())
        trace.record()
        yield learned, trace


def save_learned(learned: Learned, trace: Trace, trial: Trial, path: Path) -> None:
    """Save what was learned in a run file."""
    problem, times, method = build_parts(trial.job())
    assert times is not None
    assert method.allocator is not None
    allocator = learned.allocator
    method.k = allocator.k
    method.allocator.restore(allocator.state())
    with closing(VirtualCluster(problem, times)) as cluster:
        cluster.ledger.worker_time[:] = allocator.T
        cluster.ledger.stats.restore(learned.stats)
        recorder = RunRecorder(Plan(trial.job()), RunFile(path), method, cluster, trace)
        recorder.begin([])
        recorder.finish(f"{allocator.k:,} rounds of the bandit alone")
        recorder.save_summary()
