"""What `forget = true` costs where speeds stay the same, and how fast it notices changes where they do not.

python -m benchmarks.changing_speeds [ROUNDS]: of the first table
"""

from collections.abc import Iterator
from statistics import mean

import numpy as np

from benchmarks.measuring import options
from mpi_ata.allocators import ATA, OFTA, ATAEmpirical
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.arrays import Array
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.paper.bandit import python_play
from mpi_ata.times import DrawnTimes, Law, Linear, Mix, Sqrt
from mpi_ata.times.drawn import Change
from mpi_ata.view.text import table

SEEDS = (1, 2, 3)
BUDGET = 23
AT = 1000  # the round of the change
LAWS: list[Law] = [*map(Sqrt, (17, 51, 153)), *map(Linear, (17, 51, 153)), *map(Mix, (15, 45, 150))]
FACTORS = (5.0, 0.2, 1.25, 1.2, 0.8)
ATTEMPTS = 1000  # rounds with the worker after the change, at most


def allocators(law: Law, seed: int, name: str) -> Iterator[LowerBoundAllocator]:
    """Yield an allocator that does not forget, and one that does."""
    for forget in (False, True):
        if name == "ata":
            yield ATA(law.n, BUDGET, float(law.means.max()), seed, forget=forget)
        else:
            yield ATAEmpirical(law.n, BUDGET, 1.0, seed, forget=forget)


def played(allocator: LowerBoundAllocator, times: DrawnTimes, rounds: int) -> tuple[float, float, int]:
    """Return clock, worker time and the number of alarms of some rounds."""
    stats, alarms, clock = TaskTimeStats(times.n), 0, 0.0
    play = python_play(allocator, times, stats)
    for _ in range(rounds):
        clock += play(1)[0]
        alarms += len(allocator.speed_changes)
    return clock, float(stats.state()["seconds"].sum()), alarms


def without_changes(law: Law, name: str, rounds: int) -> list[str]:
    """Return a row with what forgetting costs, over not forgetting, and how many alarms there were."""
    clocks, worker_times, alarms = [], [], 0
    for seed in SEEDS:
        off, on = (played(each, DrawnTimes(law, seed), rounds) for each in allocators(law, seed, name))
        clocks.append(on[0] / off[0])
        worker_times.append(on[1] / off[1])
        alarms += on[2]
    label = f"{type(law).__name__.lower()} {law.n}"
    return [label, name, f"{mean(clocks):.4f}", f"{mean(worker_times):.4f}", str(alarms)]


def delay(worker: int, factor: float, seed: int) -> int | None:
    """Return in how many rounds a worker was used from a change of its speed until that was noticed."""
    law = Sqrt(17)
    times, allocator = _changing(law, worker, factor, seed), ATAEmpirical(17, BUDGET, 1.0, seed, forget=True)
    play, used = python_play(allocator, times, TaskTimeStats(17)), 0
    play(AT - 1)
    while used < ATTEMPTS:
        tasks = allocator.K.item(worker)
        play(1)
        if any(change.worker == worker for change in allocator.speed_changes):
            return used + 1
        used += allocator.K.item(worker) > tasks
    return None


def delays(worker: int) -> list[str]:
    """Return a row with the delays of each factor and seed."""
    found = [[delay(worker, factor, seed) for seed in SEEDS] for factor in FACTORS]
    return [str(worker), *(", ".join(str(each or f"> {ATTEMPTS}") for each in row) for row in found)]


def after_change(factor: float, eta: float) -> list[str]:
    """Return a row with clocks, off and on, over those of an oracle that knows the new speed of worker 0."""
    law, ratios = Sqrt(17), []
    for seed in SEEDS:
        means = law.means.copy()
        means[0] *= factor
        oracle = _clocks(OFTA(17, BUDGET, means), _changing(law, 0, factor, seed))
        off, on = (ATAEmpirical(17, BUDGET, eta, seed, forget=forget) for forget in (False, True))
        ratios.append([_clocks(each, _changing(law, 0, factor, seed)) / oracle for each in (off, on)])
    (off_100, off_later), (on_100, on_later) = np.mean(ratios, axis=0)
    return [f"{factor:g}", f"{eta:g}", *(f"{x:.2f}" for x in (off_100, on_100, off_later, on_later))]


def _changing(law: Law, worker: int, factor: float, seed: int) -> DrawnTimes:
    return DrawnTimes(law, seed, changes=[Change(AT, [worker], factor)])


def _clocks(allocator: LowerBoundAllocator | OFTA, times: DrawnTimes) -> Array:
    """Return the clock of the first 100 rounds from the change on, and of the next 900."""
    everyone, rounds = np.ones(times.n, np.bool_), np.zeros(AT + 1000)
    for k in range(1, AT + 1000):
        a = allocator.allocate(everyone)
        for i in np.flatnonzero(a).tolist():
            seconds = times.of(i, k, 0, a.item(i))
            allocator.observe(i, seconds)
            rounds[k] = max(rounds[k], sum(seconds))
    return np.array([rounds[AT : AT + 100].sum(), rounds[AT + 100 :].sum()])


def main() -> None:
    """Print the tables of docs/times.md."""
    rounds = options(__doc__, "rounds", rounds=5_000).rounds
    costs = [without_changes(law, name, rounds) for law in LAWS for name in ("ata-empirical", "ata")]
    print(table(costs, ["law and n", "allocator", "clock on / off", "worker time on / off", "alarms"]))
    print(table([delays(i) for i in (0, 8, 16)], ["worker", *(f"x {factor:g}" for factor in FACTORS)]))
    rows = [after_change(factor, eta) for factor in (5.0, 0.2, 1.25) for eta in (0.1, 1.0)]
    print(table(rows, ["factor", "eta", "first 100, off", "on", "next 900, off", "on"]))


if __name__ == "__main__":
    main()
