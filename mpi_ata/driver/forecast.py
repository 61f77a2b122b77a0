"""What a job would take on other workers than it had, from the speeds that runs have learned.

A round of one job lasts as long as its exact plan says; rounds of jobs that share ranks are played, by the
rule that divides them on real ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from mpi_ata.allocators.round_plan import plan_exactly
from mpi_ata.allocators.task_model import SpeedEstimates, TaskModel
from mpi_ata.arrays import IntArray
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.farm import shares
from mpi_ata.clusters.identity import VIRTUAL
from mpi_ata.errors import UsageError
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.priors import RunStats, match_prior
from mpi_ata.runfile.schema import Record
from mpi_ata.times.replayed import recorded_rounds

PLAYED_ROUNDS = 60  # of the longest of several jobs that share ranks


class Node(NamedTuple):
    """A node that runs have seen: which workers its ranks would be, the one that may be the manager first."""

    host: str
    hardware: str
    rows: IntArray


@dataclass(frozen=True)
class KnownJob:
    """What is known of a job: how much it has to do, and how fast each worker is at it."""

    budget: int
    rounds: int
    speeds: SpeedEstimates
    latency: float  # seconds of a round that are not a worker's tasks
    gap: float  # seconds between two rounds
    setup: float  # seconds before the first round
    cores: int  # per rank

    def perturbed(self, rng: Generator) -> "KnownJob":
        """Return what might as well be true, given how sure the means are."""
        mu, sd, un = self.speeds
        factor = np.exp(rng.standard_normal(len(mu)) * un / mu)
        return replace(self, speeds=SpeedEstimates(mu * factor, sd * factor, np.zeros_like(mu)))


def known_job(
    record: Record, sources: Sequence[RunStats], who: Sequence[WorkerIdentity], path: Path
) -> KnownJob:
    """Return what runs know about the job of one of them on these workers."""
    tables, summary, done = record.job.tables, record.summary, int(record.method["k"])
    budget = tables.get("allocator", {}).get("budget")
    if not isinstance(budget, int):
        rule = "its method has no allocator with a budget; a forecast needs one, such as sgd"
        raise UsageError(f"{path}: {rule}")
    known = match_prior(sources, who).columns
    model = TaskModel(len(who))
    model.inherit(known["tasks"], known["seconds"], known["squares"], known["unfinished"])
    if not done or not (tried := np.flatnonzero(known["tasks"])).size:
        raise UsageError(f"{path}: there is no finished task to learn from yet; wait for some rounds")
    found, speeds = model.speeds(tried).shrunk(), np.empty((3, len(who)))
    speeds[:] = np.median(found, axis=1)[:, None]  # of workers that this job has not tried
    speeds[:, tried] = found
    setup, ranks = summary.get("setup_time"), ranks_for(len(record.identities))
    starts = 1 + sum(event.kind == "resumed" for event in record.events)
    cores = (summary.get("billed") or 0.0) / max(summary["elapsed"], 1e-9) / ranks
    return KnownJob(
        budget,
        int(tables.get("stop", {}).get("rounds", done)),
        SpeedEstimates(*speeds),
        latency(record, done),
        0.0 if setup is None else max(summary["elapsed"] - setup - summary["clock"], 0.0) / done,
        (setup or 0.0) / starts,
        max(round(cores), 1),
    )


def latency(record: Record, rounds: int) -> float:
    """Return the mean seconds of a round that an order is on its way, or that are the manager's."""
    orders = np.minimum(record.workers["arrivals"], rounds).sum()  # single arrivals share an order
    own = recorded_rounds(record.rounds, len(record.identities)).gaps if record.rounds else np.zeros(1)
    return float(record.workers["overhead"].sum() / max(orders, 1) + own.mean())


def known_nodes(sources: Sequence[RunStats]) -> tuple[list[WorkerIdentity], list[Node]]:
    """Return the workers that runs have seen, and their nodes, as each was in the latest run on it."""
    latest: dict[str, list[WorkerIdentity]] = {}
    for source in sources:
        hosts: dict[str, list[WorkerIdentity]] = {}
        for each in source.identities:  # a simulated worker is a node of its own
            name = f"worker {each.local_index}" if each.host == VIRTUAL else each.host
            hosts.setdefault(name, []).append(each)
        latest |= hosts
    who = [each for several in latest.values() for each in several]
    number, nodes = {each: row for row, each in enumerate(who)}, []
    for host, several in sorted(latest.items()):
        rows = np.array([number[each] for each in several])
        ranks = 1 if several[0].host == VIRTUAL else max(several[0].ranks_on_host, len(several))
        # A rank that nothing is known of, such as the manager's, is taken to be like another one there.
        missing = np.full(ranks - len(rows), rows[0])
        nodes.append(Node(host, several[0].hardware, np.concatenate([missing, rows])))
    return who, nodes


class Prediction(NamedTuple):
    """What a job is expected to take, or several together."""

    clock: float
    worker_time: float
    elapsed: float


def predict(jobs: Sequence[KnownJob], rows: IntArray, rng: Generator) -> Prediction:
    """Return what jobs take on some workers."""
    setup = max(job.setup for job in jobs)
    if len(jobs) > 1:
        clock, worker_time = play(jobs, rows, rng)
        return Prediction(clock, worker_time, clock + setup)
    (job,) = jobs
    plan, _ = plan_exactly(job.speeds.of(rows), job.budget)
    clock = job.rounds * (plan.length + job.latency)
    return Prediction(clock, job.rounds * plan.worker_time, clock + job.rounds * job.gap + setup)


def play(jobs: Sequence[KnownJob], rows: IntArray, rng: Generator) -> tuple[float, float]:
    """Return makespan and worker time of jobs that share workers: as the real ones do, with drawn times."""
    part = min(1.0, PLAYED_ROUNDS / max(job.rounds for job in jobs))
    speeds = [job.speeds.of(rows) for job in jobs]
    alone = [plan_exactly(own, job.budget)[0].quota for job, own in zip(jobs, speeds, strict=True)]
    left = [max(1, round(part * job.rounds)) for job in jobs]
    free, worked = np.zeros(len(rows)), 0.0  # when each worker has done all that it was given
    due = [(0.0, number) for number in range(len(jobs))]
    while due:
        now, j = heappop(due)
        ready, (mu, sd, _) = np.maximum(free - now, 0.0), speeds[j]
        quota = shares(ready, mu, jobs[j].budget) if ready.any() else alone[j]
        busy = np.flatnonzero(quota)
        variance = np.square(sd[busy] / mu[busy])
        seconds = rng.gamma(quota[busy] / variance, mu[busy] * variance)
        free[busy] = np.maximum(free[busy], now) + seconds
        worked += float(seconds.sum())
        ended = float(free[busy].max()) + jobs[j].latency
        left[j] -= 1
        if left[j]:
            heappush(due, (ended + jobs[j].gap, j))
    return max(float(free.max()), ended) / part, worked / part
