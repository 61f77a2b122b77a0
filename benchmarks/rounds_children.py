"""The contenders of benchmarks.rounds, started by mpirun; rank 0 prints JSON on the last line.

mpirun -n 5 python -m benchmarks.rounds_children floor --size 80000 --active 4
"""

import json
import logging
import os
import signal
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.measuring import options
from mpi_ata import Observer, Round, Task, Trace
from mpi_ata.arrays import Array
from mpi_ata.clusters.interface import Arrival, ClusterSettings
from mpi_ata.clusters.mpi.liveness import Doorbell
from mpi_ata.clusters.mpi.manager import MPICluster
from mpi_ata.clusters.mpi.world import mpi_cluster
from mpi_ata.driver.execute import execute_on_ranks
from mpi_ata.driver.plan import OutputOptions, resolve_on_ranks

Measurements = dict[str, float]
ORDER, END = 1, 2  # tags of the floor
WINDOWS = 20  # in which rounds are counted; the best one shows what the machine can do
MIN_ROUNDS = 15
SLEEP = 0.02  # seconds of a sleeping task
MAX_HISTORY = 1 << 30  # bytes, of libEnsemble's history
answers: dict[int, Array] = {}  # what the tasks of futures return, by size


class Clocks:
    """A problem whose tasks return when they began and the CPU time that their rank has used so far."""

    def __init__(self) -> None:
        self.x0 = np.ones(2)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the monotonic clock, which all processes of a node share, and user + system seconds."""
        return np.array([time.perf_counter(), time.process_time()])


def timed(step: Callable[[], object], seconds: float) -> Measurements:
    """Return rounds per second of a step that is one round."""
    times = [time.perf_counter()]
    while not _enough(times, seconds):
        step()
        times.append(time.perf_counter())
    return _rates(times)


def _enough(times: list[float], seconds: float) -> bool:
    return times[-1] - times[0] > 1.25 * seconds and len(times) > MIN_ROUNDS


def _rates(times: list[float]) -> Measurements:
    """Return rounds per second in the best and the median of many short windows, as the machine is shared.

    The windows are consecutive, and leave out the first fifth of the rounds as a warm-up.
    """
    times = times[len(times) // 5 :]
    window = max(3, len(times) // WINDOWS)
    rates = [window / (after - before) for before, after in pairwise(times[::window])]
    return {"rate": max(rates), "median": statistics.median(rates)}


def ours(size: int, active: int, seconds: float) -> Measurements | None:
    """Run mpi_ata as users do: a job that is saved in its run file."""
    times = list[float]()

    class Watching(Observer):
        def on_round(self, round: Round, trace: Trace) -> None:
            times.append(time.perf_counter())
            if _enough(times, seconds):
                signal.raise_signal(signal.SIGUSR1)

    return _rates(times) if _run_null(Watching(), size, active) else None


def _run_null(observer: Observer, size: int, active: int, *settings: str) -> bool:
    """Run the null job with these settings, and return whether this is rank 0."""
    logging.getLogger("mpi_ata").setLevel(logging.ERROR)  # ranks outnumber cores: that is known here
    settings = (f"problem.size={size}", f"allocator.budget={active}", *settings)
    job = Path(__file__).with_name("null.toml")
    plan = resolve_on_ranks(job, settings, OutputOptions(Path("null.h5")))
    return execute_on_ranks(plan, [observer]) is not None


class Costs(Observer):
    """Measures the CPU time of rank 0 per round; ends the run after enough rounds."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._waiting = seconds, 0.0
        self._rows: list[tuple[float, float, float, float]] = []  # wall, CPU, waiting, decisions
        wait = Doorbell.wait

        def timed_wait(bell: Doorbell, look: Callable[[], Any], *until: float) -> Any:
            useful = 0.0  # seconds spent on reading messages

            def timed_look() -> Any:
                nonlocal useful
                began = time.thread_time()
                if (found := look()) is not None:
                    useful += time.thread_time() - began
                return found

            began = time.thread_time()
            found = wait(bell, timed_look, *until)
            self._waiting += time.thread_time() - began - useful
            return found

        setattr(Doorbell, "wait", timed_wait)  # noqa: B010  (in this process alone)

    def on_start(self, method: Any, cluster: Any, trace: Trace) -> None:
        """Remember who decides."""
        self._allocator = method.allocator

    def on_round(self, round: Round, trace: Trace) -> None:
        """Take the time of all clocks."""
        cpu, decisions = time.thread_time(), self._allocator.cpu_seconds
        self._rows.append((time.perf_counter(), cpu, self._waiting, decisions))
        if len(self._rows) > MIN_ROUNDS and self._rows[-1][0] - self._rows[0][0] > self._seconds:
            signal.raise_signal(signal.SIGUSR1)

    def measured(self, active: int) -> Measurements:
        """Return rounds per second, and the median CPU seconds per active worker and round.

        Decisions are left out; "work" also leaves out what waiting costs: falling asleep, being woken, and
        polling for messages that are not there yet.
        """
        steps = np.diff(np.array(self._rows[len(self._rows) // 5 :]), axis=0)
        wall, cpu, waiting, decisions = steps.T
        return {
            "rate": float(1 / wall.min()),
            "median": float(1 / np.median(wall)),
            "decision": float(np.median(decisions)),
            "cpu": float(np.median(cpu - decisions)) / active,
            "work": float(np.median(cpu - decisions - waiting)) / active,
        }


def sleeping(size: int, active: int, seconds: float) -> Measurements | None:
    """Run mpi_ata with tasks that sleep, so that ranks do not compete for cores while rank 0 works."""
    return _costs(size, active, seconds, sleep=SLEEP)


def busy(size: int, active: int, seconds: float) -> Measurements | None:
    """Run mpi_ata with null tasks, and measure what rank 0 spends on them."""
    return _costs(size, active, seconds, sleep=0.0)


def _costs(size: int, active: int, seconds: float, sleep: float) -> Measurements | None:
    costs = Costs(seconds)
    return costs.measured(active) if _run_null(costs, size, active, f"problem.sleep={sleep}") else None


def floor(size: int, active: int, seconds: float) -> Measurements | None:
    """Run a bare loop of the same exchange and sum, without decisions, updates or accounting."""
    comm = MPI.COMM_WORLD
    if comm.Get_rank():
        _floor_worker(comm, size)
        return None
    ranks, x = range(1, active + 1), np.ones(size)
    results, total = np.ones((active, size)), np.ones(size)

    def step() -> None:
        requests = [comm.Irecv(result, rank) for rank, result in zip(ranks, results, strict=True)]
        requests += [comm.Isend(x, rank, ORDER) for rank in ranks]
        while not MPI.Request.Testall(requests):
            os.sched_yield()
        np.copyto(total, results[0])
        for result in results[1:]:
            np.add(total, result, out=total)

    measured = timed(step, seconds)
    for rank in range(1, comm.Get_size()):
        comm.Send(x[:0], rank, END)
    return measured


def _floor_worker(comm: MPI.Comm, size: int) -> None:
    x, result, status = np.ones(size), np.ones(size), MPI.Status()
    while True:
        order = comm.Irecv(x, 0)
        while not order.Test(status):
            os.sched_yield()
        if status.Get_tag() == END:
            return
        answer = comm.Isend(result, 0)
        while not answer.Test():
            os.sched_yield()


def answer(x: Array) -> Array:
    """Compute a null task for futures."""
    if x.size not in answers:
        answers[x.size] = np.ones(x.size)
    return answers[x.size]


def futures(size: int, active: int, seconds: float) -> Measurements:
    """Run a pool of mpi4py.futures, whose manager is this rank."""
    from mpi4py.futures import MPIPoolExecutor

    from benchmarks.rounds_children import answer as task  # not from __main__, which workers cannot import

    x = np.ones(size)
    with MPIPoolExecutor() as pool:

        def step() -> None:
            for future in [pool.submit(task, x) for _ in range(active)]:
                future.result()

        return timed(step, seconds)


def libensemble(size: int, active: int, seconds: float) -> Measurements | None:
    """Run libEnsemble: a generator on the manager hands out points in rounds."""
    from libensemble.libE import libE  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from libensemble.message_numbers import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        FINISHED_PERSISTENT_GEN_TAG,
    )

    limit = min(MAX_HISTORY // (16 * size), 200_000) // active * active
    found: Measurements = {}
    result = np.ones(1, [("g", float, (size,))])

    def simulate(points: Any, *_: Any) -> Any:
        return result

    def generate(points: Any, persis_info: Any, specs: Any, info: Any) -> Any:
        found.update(_generated(size, active, seconds, limit, info))
        return np.empty(0, [("x", float, (size,))]), persis_info, FINISHED_PERSISTENT_GEN_TAG

    libE(
        {"sim_f": simulate, "in": ["x"], "out": [("g", float, (size,))]},
        {"gen_f": generate, "persis_in": ["g"], "out": [("x", float, (size,))], "user": {}},
        {"sim_max": limit + active},
        {0: {}},
        {"alloc_f": _alloc},
        {"comms": "mpi", "gen_on_manager": True, "disable_log_files": True, "disable_resource_manager": True},
    )
    return found or None


def _generated(size: int, active: int, seconds: float, limit: int, info: Any) -> Measurements:
    """Return rounds per second of a persistent generator, as long as the history has room."""
    from libensemble.message_numbers import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        EVAL_GEN_TAG,
    )
    from libensemble.tools.persistent_support import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        PersistentSupport,
    )

    support = PersistentSupport(info, EVAL_GEN_TAG)
    points = np.ones(active, [("x", float, (size,))])
    times = [time.perf_counter()]
    while not _enough(times, seconds) and len(times) * active <= limit:
        support.send_recv(points)
        times.append(time.perf_counter())
    return _rates(times)


def _alloc(W: Any, H: Any, sim: Any, gen: Any, alloc: Any, persis_info: Any, info: Any) -> Any:
    """Start the generator, give each of its points to a worker, and return all results to it at once."""
    from libensemble.tools.alloc_support import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        AllocSupport,
    )

    support = AllocSupport(W, False, persis_info, info)
    if not info["any_idle_workers"]:
        return {}, persis_info
    if not support.count_persis_gens():
        if persis_info.get("started"):
            return {}, persis_info, 1
        persis_info["started"] = True
        return {0: support.gen_work(0, [], [], {}, persistent=True)}, persis_info
    if (given := info["sim_started_count"]) < len(H):
        workers = support.avail_worker_ids(persistent=False, gen_workers=False)
        pairs = zip(workers, range(given, len(H)), strict=False)
        return {w: support.sim_work(w, H, ["x"], [row], {}) for w, row in pairs}, persis_info
    if info["gen_informed_count"] < len(H) == info["sim_ended_count"]:
        rows = range(info["gen_informed_count"], len(H))
        return {0: support.gen_work(0, ["g"], rows, {}, persistent=True)}, persis_info
    return {}, persis_info


def idle(size: int, active: int, seconds: float) -> Measurements | None:
    """Measure the idle CPU time of workers, and how fast they start a task."""
    with mpi_cluster(ClusterSettings(Clocks())) as cluster:
        if cluster is None:
            return None
        first = _clocks(cluster, 1)
        time.sleep(seconds)
        used = _clocks(cluster, 2) - first
        percent = 100 * used[:, 1] / used[:, 0]
        idle_orders = [_woken(cluster, k, pause=0.02) for k in range(3, 103)]
        busy = [_woken(cluster, k, pause=0.0) for k in range(103, 403)]
        return {
            "cpu": float(percent.mean()),
            "cpu_worst": float(percent.max()),
            "wake_up": statistics.median(wake_up for wake_up, _ in idle_orders),
            "wake_up_worst": max(wake_up for wake_up, _ in idle_orders),
            "overhead": statistics.median(overhead for _, overhead in idle_orders),
            "overhead_busy": statistics.median(overhead for _, overhead in busy),
        }


def _clocks(cluster: MPICluster, round: int) -> Array:
    """Return the clocks of all workers."""
    clocks = np.empty((cluster.n, 2))
    cluster.start(np.arange(cluster.n), np.ones(2), round)
    for _ in range(cluster.n):
        arrival = cluster.wait()
        assert isinstance(arrival, Arrival)
        clocks[arrival.worker] = arrival.result
    return clocks


def _woken(cluster: MPICluster, round: int, pause: float) -> tuple[float, float]:
    """Return the seconds from an order to its task, and its overhead; with a pause, workers take turns."""
    time.sleep(pause)
    worker = np.array([round % cluster.n if pause else 0])
    sent = time.perf_counter()
    cluster.start(worker, np.ones(2), round)
    arrival = cluster.wait()
    assert isinstance(arrival, Arrival)
    return float(arrival.result[0]) - sent, arrival.overhead


ROLES = {"mpi_ata": ours, "floor": floor, "futures": futures, "libensemble": libensemble, "idle": idle}
ROLES |= {"busy": busy, "sleeping": sleeping}


def main() -> None:
    """Run one role; only rank 0 prints."""
    asked = options(__doc__, "role", role="", size=1, active=1, seconds=2.0, alarm=60)
    signal.alarm(asked.alarm)  # ends a rank that waits for another one
    measured = ROLES[asked.role](asked.size, asked.active, asked.seconds)
    if measured is not None:
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
