"""Runs every job of a list on the ranks of one world, then interrupts and resumes one; prints JSON lines."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi_ata.arrays import Array
from mpi_ata.clusters import Arrival, Cluster
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.world import mpi_cluster, workers_in_world
from mpi_ata.driver.trace import Trace
from mpi_ata.job import build_parts, load_job
from mpi_ata.methods import Ringmaster
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import Task
from mpi_ata.script.run import run
from mpi_ata.times import DrawnTimes, Linear
from mpi_ata.updates import Plain

COUNTS = ("used", "wasted", "lost", "largest_delay", "loss", "worker_time")


class Listening:
    """A cluster with a list of its arrivals."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.arrivals: list[Arrival] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def wait(self, timeout: float | None = None) -> Arrival:
        arrival = self._cluster.wait(timeout)
        assert isinstance(arrival, Arrival)
        self.arrivals.append(arrival._replace(result=arrival.result.copy()))  # the method may overwrite it
        return arrival


class Telling:
    """A result identifies its tasks: how many, and the sums of their rounds, workers and numbers."""

    def __init__(self) -> None:
        self.x0: Array = np.zeros(4)

    def gradient(self, x: Array, task: Task) -> Array:
        return np.array([1.0, task.round, task.worker, task.number])


def run_job(path: str, settings: list[str]) -> dict[str, Any] | None:
    """Return the outcome of a job and how often each rank computed a gradient; None on a worker's rank."""
    job = load_job(Path(path), settings)
    problem, times, method = build_parts(job, workers_in_world())
    drawn = job.times is not None and job.times.report == "drawn"
    trace, used = Trace(), np.zeros(workers_in_world(), np.int64)
    with mpi_cluster(ClusterSettings(problem, times, job.run.seed, drawn, job.digest)) as cluster:
        if cluster is not None:
            for round in run(method, cluster, problem, job.stop, trace=trace):
                used += round.used
                assert min(round.used.min(), round.wasted.min(), round.lost.min()) >= 0
            before = cluster.ledger.mark()
            cluster.close()
            trace.settle(cluster.ledger, before)
            assert used.sum() == trace.used
            story = {
                "started": (used + cluster.ledger.stopped).tolist(),
                **{name: getattr(trace, name) for name in COUNTS},
                "x": method.x.tobytes().hex(),
            }
    calls = np.empty(workers_in_world() + 1, np.int64)
    counted: Any = problem
    MPI.COMM_WORLD.Gather(np.array([counted.calls // MethodAbilities.of(method).points_per_task]), calls)
    return None if cluster is None else story | {"calls": calls.tolist()}


def tell_tasks(make: Any) -> dict[str, Any] | None:
    """Return the tasks delivered to a method in three rounds: round, worker, number."""
    problem, times = Telling(), DrawnTimes(Linear(workers_in_world(), 1.0), 2, unit=2e-3)
    with mpi_cluster(ClusterSettings(problem, times, 2)) as cluster:
        if cluster is None:
            return None
        method, listening = make(problem.x0, cluster.n), Listening(cluster)
        for _ in range(3):
            method.step(listening)
        return {"tasks": [arrival.result[1:].tolist() for arrival in listening.arrivals]}


def break_and_resume() -> dict[str, Any] | None:
    """Interrupt Ringmaster after three rounds and resume it in a new cluster on the same ranks."""
    states: list[Any] = []
    lost, accounts = list[list[int]](), list[list[float]]()
    for _ in range(2):
        problem, times = Telling(), DrawnTimes(Linear(workers_in_world(), 1.0), 2, unit=2e-3)
        with mpi_cluster(ClusterSettings(problem, times, 2)) as cluster:
            if cluster is None:
                continue
            method = Ringmaster(problem.x0, cluster.n, Plain(0.1), delay=50, budget=6)
            if states:
                method.restore(states[0])
                cluster.restore(states[1])
            accounts.append(cluster.ledger.worker_time.tolist())
            lost.append(cluster.ledger.lost.tolist())
            for _ in range(3):
                assert not method.step(cluster).lost.any()
            states = [method.state(), cluster.state()]
            accounts.append(cluster.ledger.worker_time.tolist())
    return {"lost": lost, "accounts": accounts, "k": method.k, "s": method.s} if states else None


def ringmaster(x0: Array, n: int) -> Ringmaster:
    return Ringmaster(x0, n, Plain(0.1), delay=3, budget=9)


if __name__ == "__main__":
    stories = [run_job(*each) for each in json.loads(sys.argv[1])]
    for story in [*stories, tell_tasks(ringmaster), break_and_resume()]:
        if story is not None:
            print(json.dumps(story), flush=True)
