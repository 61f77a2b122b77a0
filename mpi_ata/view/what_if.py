"""What a run would have taken under other allocators, budgets or workers: its recorded times, replayed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import total
from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.restore import allocator_of
from mpi_ata.job import Job, build_parts
from mpi_ata.methods import Method, Round
from mpi_ata.problems.no_work import NoWork
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.runfile.record import Record
from mpi_ata.view.what_if_question import Question, chosen_workers, own_name, replayed_jobs
from mpi_ata.view.what_if_recording import Recording, recording

LONGEST = 10_000  # rounds that are replayed; later ones are taken to last as long as the last half of these
SHORT = 300  # rounds of a replay that only shows how much the results vary
RESAMPLES = 20  # of those
REPEATS, ENOUGH = 20, 3000  # replays of a short run, and rounds in all of them together


class Totals(NamedTuple):
    """What a replay took."""

    clock: float
    worker_time: float
    used: float
    wasted: float


def what_if(
    record: Record, path: Path, question: Question, begins: Callable[[str], object] = id
) -> dict[str, Any]:
    """Return what the run took, and what it is predicted to take under each allocator; times in seconds.

    Each error is one standard deviation over replays of resampled times.
    """
    recorded = recording(record, path)
    chosen = recorded.only(chosen_workers(recorded, question.workers))
    jobs = replayed_jobs(chosen, question)
    rows = []
    for name, job in zip(question.allocators, jobs, strict=True):
        begins(name)
        rows.append({"allocator": own_name(chosen, name)} | prediction(job, chosen))
    taken = ("rounds", "clock", "worker_time", "workers", "tasks_used", "tasks_wasted")
    return {
        "run": str(path),
        "allocator": own_name(chosen, "own"),
        "recorded": {name: record.summary[name] for name in taken},
        "least_tasks": int(chosen.tasks.min()),
        "untried": recorded.untried,
        "overhead_ratio": float(record.workers["overhead"].sum() / record.workers["seconds"].sum()),
        "predicted": rows,
    }


def prediction(job: Job, recorded: Recording) -> dict[str, Any]:
    """Return what a job is predicted to take with recorded times, and how sure that is."""
    whole, (clock, worker_time) = repeated(job, recorded), spread(job, recorded)
    return {
        "budget": int(job.allocator.keys["budget"]) if job.allocator else None,
        "workers": len(recorded.workers),
        "rounds": recorded.rounds,
        "clock": whole.clock,
        "clock_error": clock * whole.clock,
        "worker_time": whole.worker_time,
        "worker_time_error": worker_time * whole.worker_time,
        "tasks_used": round(whole.used),
        "tasks_wasted": round(whole.wasted),
    }


def repeated(job: Job, recorded: Recording) -> Totals:
    """Return the mean of enough replays that chance hardly matters."""
    count = max(1, min(REPEATS, ENOUGH // recorded.rounds))
    seeds = range(job.run.seed, job.run.seed + count)
    replays = [replay(job.with_seed(seed), recorded, recorded.rounds) for seed in seeds]
    return Totals(*np.mean(replays, axis=0).tolist())


def spread(job: Job, recorded: Recording) -> tuple[float, float]:
    """Return the relative standard deviations of clock and worker time over replays of resampled times."""
    streams, rounds = Streams(job.run.seed, Purpose.TIMES), min(recorded.rounds, SHORT)
    replays = [
        replay(job.with_seed(number), recorded.resampled(streams.at(0, number=number)), rounds)
        for number in range(RESAMPLES)
    ]
    values = np.array([(each.clock, each.worker_time) for each in replays])
    clock, worker_time = values.std(axis=0, ddof=1) / values.mean(axis=0)
    return float(clock), float(worker_time)


def replay(job: Job, recorded: Recording, rounds: int) -> Totals:
    """Run a job for some rounds on the virtual clock, with recorded times."""
    n, problem = len(recorded.workers), NoWork()
    method = build_parts(job, n, problem).method
    cluster = VirtualCluster(
        problem, recorded.times(job.run.seed), job.run.seed, overhead=recorded.overhead_in
    )
    allocator = allocator_of(method)
    if recorded.prior is not None and allocator is not None:
        allocator.inherit(recorded.prior.rounds, recorded.prior.columns)
    length = min(rounds, LONGEST)
    half = _rounds(method, cluster, recorded, length // 2)
    rest = _rounds(method, cluster, recorded, length - length // 2)
    weight = 1.0 + (rounds - length) / (length - length // 2)
    return Totals(*(first + weight * second for first, second in zip(half, rest, strict=True)))


def _rounds(method: Method, cluster: VirtualCluster, recorded: Recording, count: int) -> Totals:
    """Return what the next rounds take."""
    before = cluster.ledger.worker_time.sum()
    rounds = [_counts(method.step(cluster), recorded) for _ in range(count)]
    clock, used, wasted = np.sum(rounds, axis=0) if rounds else np.zeros(3)
    return Totals(clock, cluster.ledger.worker_time.sum() - before, used, wasted)


def _counts(round: Round, recorded: Recording) -> tuple[float, int, int]:
    return round.duration + recorded.gap(round.number), total(round.used), total(round.wasted)
