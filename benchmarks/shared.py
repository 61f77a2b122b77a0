"""Jobs that share workers, beside one after another, a static split, and fair pull; B = 23.

python -m benchmarks.shared [--rounds N] [--seeds N] [--quick] [LAW ...]
python -m benchmarks.shared --ranks [--rounds N] [--unit SECONDS]

The first simulates m equal jobs and prints, by law, makespan / worker time / mean completion, each over the
bound at which no worker is ever idle: all tasks over the sum of all speeds, n times that for worker time.
Billed is n x makespan, so it has the ratios of the makespan.  ofta and split know all speeds; one by one,
ata-auto keeps what it has learned; sharing learns from nothing.  A goal that is missed, or a baseline that is
sooner where none should be, is marked with an exclamation mark.  300 rounds take about 3 minutes per seed.

The second runs four jobs on a manager and 12 workers whose tasks sleep as drawn, together and one by one,
without faults and with a worker that is killed on the way (one by one, the next job has it again), and prints
jobs per hour, set-up not counted.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.allocators import Shuffled, play
from benchmarks.measuring import ROOT, options
from mpi_ata import GTA, OFTA, Allocator, ATAAuto, Law, Plain, Quadratic, run_jobs
from mpi_ata.arrays import Array, IntArray
from mpi_ata.driver.observers import Observer
from mpi_ata.job.component import LAWS
from mpi_ata.problems import Task
from mpi_ata.problems.no_work import NoWork
from mpi_ata.view.text import table

BUDGET, ROUNDS, COUNTS = 23, 300, (2, 4, 10, 30)
SHARED, SPARES = "shared", "shared, idle spares"
BEHIND = 1.01  # times the makespan of the best baseline, that sharing with spares may take


class Case(NamedTuple):
    """A law with n workers, the goal for the makespan of 10 jobs, and from how many on nobody is sooner."""

    law: str
    n: int
    goal: float
    soonest_from: int = 4


CASES = [
    Case("sqrt", 51, 1.08),
    Case("linear", 51, 1.18),
    Case("mix", 50, 1.25, soonest_from=10),
    Case("gpu-generations", 48, 1.05),
    Case("longhorn", 64, 1.05),
]


class Costs(NamedTuple):
    """When each job was done, and how long workers have worked."""

    completions: Sequence[float]
    worker_time: float

    def over(self, bound: float, n: int) -> Array:
        """Return makespan, worker time and mean completion over the bound."""
        makespan, mean = max(self.completions), float(np.mean(self.completions))
        return np.array([makespan, self.worker_time / n, mean]) / bound


class Part:
    """A law of some of the workers."""

    def __init__(self, law: Law, workers: IntArray) -> None:
        self.n, self.means, self._law, self._workers = len(workers), law.means[workers], law, workers

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw one time for each of them."""
        return self._law.draw(rng)[self._workers]


class Began(Observer):
    """Notes when a job began on the clock of all of them."""

    at = 0.0

    def on_start(self, method: Any, cluster: Any, trace: Any) -> None:
        """Note it."""
        self.at = cluster._time.now


def share(law: Law, jobs: int, rounds: int, seed: int, spares: str = "none") -> Costs:
    """Let all jobs share the workers."""
    began = [Began() for _ in range(jobs)]
    common = {"rounds": rounds, "update": Plain(1.0), "times": law, "evaluate_every": 10**6}
    given = [
        {
            "problem": NoWork(),
            "seed": seed + number,
            "allocator": ATAAuto(law.n, BUDGET, spares, seed=seed + number),
            "observers": [each],
            **common,
        }
        for number, each in enumerate(began)
    ]
    found = [result.summary for result in run_jobs(given, progress=False) or ()]
    ends = [each.at + summary["clock"] for each, summary in zip(began, found, strict=True)]
    return Costs(ends, sum(summary["worker_time"] for summary in found))


def one_by_one(spent: Array, jobs: int, rounds: int) -> Costs:
    """Let jobs wait for each other, given clock and worker time after each round of all that one does."""
    ends = spent[np.arange(1, jobs + 1) * rounds - 1]
    return Costs(ends[:, 0].tolist(), float(ends[-1, 1]))


def split(law: Law, jobs: int, rounds: int, seed: int) -> Costs:
    """Give each job workers of its own, about equally fast together, whose speeds it knows."""
    parts: list[list[int]] = [[] for _ in range(jobs)]
    for worker in np.argsort(law.means).tolist():
        min(parts, key=lambda part: sum(1.0 / law.means[part])).append(worker)
    spent = [
        play(OFTA(own.n, BUDGET, own.means), own, rounds, seed + number)[-1]
        for number, own in enumerate(Part(law, np.array(part)) for part in parts)
    ]
    return Costs([each[0] for each in spent], sum(each[1] for each in spent))


def pull(law: Law, jobs: int, rounds: int, seed: int) -> Costs:
    """Let whoever is idle take one task of the job that has had the least so far."""
    seconds = _task_times(law, seed)
    begun, done = [0] * jobs, [0] * jobs
    ends, busy = [0.0] * jobs, 0.0
    idle, events, now = list(range(law.n)), list[tuple[float, int, int]](), 0.0
    while min(done) < rounds * BUDGET:
        open_jobs = [j for j in range(jobs) if begun[j] < min(done[j] // BUDGET + 1, rounds) * BUDGET]
        while idle and open_jobs:
            job = min(open_jobs, key=begun.__getitem__)
            begun[job] += 1
            if begun[job] % BUDGET == 0:
                open_jobs.remove(job)
            worker = idle.pop(0)
            busy += (lasts := next(seconds[worker]))
            heappush(events, (now + lasts, worker, job))
        now, worker, job = heappop(events)
        idle.append(worker)
        done[job] += 1
        ends[job] = now
    return Costs(ends, busy)


def _task_times(law: Law, seed: int) -> list[Iterator[float]]:
    """Return the times of each worker's tasks."""
    rng, rows = np.random.default_rng(seed), list[list[float]]()

    def times_of(worker: int) -> Iterator[float]:
        number = 0
        while True:
            if number == len(rows):
                rows.append(law.draw(rng).tolist())
            yield rows[number][worker]
            number += 1

    return [times_of(worker) for worker in range(law.n)]


def simulate(case: Case, rounds: int, seed: int) -> dict[tuple[str, int], Array]:
    """Return the costs over the bound, by policy and number of jobs."""
    n, law = case.n, Shuffled(LAWS[case.law](case.n), seed)
    alone: dict[str, Allocator] = {
        "gta": GTA(n, BUDGET),
        "ofta": OFTA(n, BUDGET, law.means),
        "ata-auto": ATAAuto(n, BUDGET, seed=seed),
    }
    spent = {name: play(allocator, law, max(COUNTS) * rounds, seed) for name, allocator in alone.items()}
    found: dict[tuple[str, int], Array] = {}
    for jobs in COUNTS:
        bound = jobs * rounds * BUDGET / float(np.sum(1.0 / law.means))
        costs = {f"one by one, {name}": one_by_one(each, jobs, rounds) for name, each in spent.items()}
        costs |= {policy.__name__: policy(law, jobs, rounds, seed) for policy in (split, pull)}
        costs[SHARED] = share(law, jobs, rounds, seed)
        costs[SPARES] = share(law, jobs, rounds, seed, "idle")
        found |= {(name, jobs): each.over(bound, n) for name, each in costs.items()}
    return found


def rows(case: Case, found: dict[tuple[str, int], Array]) -> list[list[str]]:
    """Return one row per policy."""
    names = list(dict.fromkeys(name for name, _ in found))
    lines = []
    for name in names:
        cells = ["/".join(f"{value:.2f}" for value in found[name, jobs]) for jobs in COUNTS]
        missed = {SHARED: is_missed, SPARES: is_missed_with_spares}.get(name)
        if missed is not None:
            cells = [cell + "!" * missed(case, found, jobs) for cell, jobs in zip(cells, COUNTS, strict=True)]
        lines.append([f"{case.law} {case.n}", name, *cells])
    return lines


def is_missed(case: Case, found: dict[tuple[str, int], Array], jobs: int) -> bool:
    """Return whether sharing takes longer than its goal, or than a baseline, to the digits that are shown."""
    own, others = round(found[SHARED, jobs].item(0), 2), round(best_baseline(found, jobs), 2)
    return (jobs >= case.soonest_from and own > others) or (jobs == 10 and own > case.goal)


def is_missed_with_spares(case: Case, found: dict[tuple[str, int], Array], jobs: int) -> bool:
    """Return whether sharing with spare tasks takes longer than a baseline, by more than a per cent."""
    return found[SPARES, jobs].item(0) > BEHIND * best_baseline(found, jobs)


def best_baseline(found: dict[tuple[str, int], Array], jobs: int) -> float:
    """Return the shortest makespan of all that do not share, over the bound."""
    return min(
        costs.item(0) for (name, count), costs in found.items() if count == jobs and "shared" not in name
    )


RANKS, JOBS, DYING, KILLED = 12, 4, 3, 2  # workers and jobs; the worker that dies, and in which job
RANK_BUDGET = 6  # with twice as many tasks as workers, one job alone uses nearly all that they can do
JOB = """
[problem]
file = "{file}"
class = "Mortal"
[method]
name = "sgd"
step_size = 0.44
[allocator]
name = "ata-auto"
budget = {budget}
[times]
law = "gpu-generations"
unit = {unit}
[stop]
rounds = {rounds}
[run]
workers = {workers}
seed = 1
evaluate_every = 1000000
"""


class Mortal(Quadratic):
    """A quadratic; a worker dies once in the middle of a job if the file `kill`, with its round, exists."""

    def gradient(self, x: Array, task: Task) -> Array:
        """Return a gradient, unless it is time to die."""
        kill = Path("kill")
        if task.worker == DYING and kill.exists() and task.round >= int(kill.read_text()):
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, task)


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Return the summaries of a run of the job in a folder, or of its several jobs."""
    command = [sys.executable, "-m", "mpi_ata", "run", "job.toml", "--json", *words]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}  # of the problem in this file
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return found if isinstance(found, list) else [found]


def seconds(summary: dict[str, Any]) -> float:
    """Return how long a job took from its first round on."""
    return float(summary["elapsed"] - summary["setup_time"])


def together(folder: Path, dies: Callable[[], None]) -> float:
    """Return the seconds that all jobs take that share the ranks."""
    dies()
    steps = ",".join(str(0.4 + 0.01 * number) for number in range(JOBS))  # the seed says who is slow
    return max(map(seconds, run(folder, "--array", f"method.step_size={steps}", "--out", "together")))


def in_turn(folder: Path, allocator: str, dies: Callable[[], None]) -> float:
    """Return the seconds that all jobs take one by one; each starts from what others have learned."""
    total = 0.0
    for seed in range(1, JOBS + 1):
        if seed == KILLED:
            dies()
        learned = [] if seed == 1 or allocator == "gta" else ["--warm-start", allocator]
        (Path(folder, allocator)).mkdir(exist_ok=True)
        settings = ["--set", f"allocator.name={allocator}"]
        total += seconds(run(folder, *settings, *learned, "--out", f"{allocator}/{seed}.h5")[0])
    return total


def measure(rounds: int, unit: float, dies: bool) -> list[str]:
    """Return jobs per hour of sharing, and of one after another, with or without the death of a worker."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        text = JOB.format(
            file=Path(__file__).resolve(), budget=RANK_BUDGET, rounds=rounds, unit=unit, workers=RANKS
        )
        (folder / "job.toml").write_text(text)

        def plan_death() -> None:
            if dies:
                (folder / "kill").write_text(str(rounds // 2))

        taken = [together(folder, plan_death)]
        taken += [in_turn(folder, allocator, plan_death) for allocator in ("ata-auto", "gta")]
        assert not (folder / "kill").exists(), "nobody died"
    rates = [JOBS * 3600 / each for each in taken]
    gain = rates[0] / max(rates[1:])
    return ["yes" if dies else "no", *(f"{rate:,.0f}" for rate in rates), f"{gain:.2f}"]


def main() -> None:
    """Print the tables."""
    given = {"rounds": 0, "seeds": 3, "first_seed": 11, "quick": False, "ranks": False, "unit": 0.01}
    asked = options(__doc__, "laws", laws=[], **given)
    if asked.ranks:
        header = ["a worker dies", "shared [jobs/h]", "one by one, ata-auto", "one by one, gta", "gain"]
        found = [measure(asked.rounds or 2 * ROUNDS, asked.unit, dies) for dies in (False, True)]
        print(table(found, header))
        return
    rounds, seeds = (40, 1) if asked.quick else (asked.rounds or ROUNDS, asked.seeds)
    for case in [case for case in CASES if not asked.laws or case.law in asked.laws]:
        runs = [simulate(case, rounds, seed) for seed in range(asked.first_seed, asked.first_seed + seeds)]
        mean = {key: np.mean([each[key] for each in runs], axis=0) for key in runs[0]}
        print(table(rows(case, mean), ["law", "policy", *(f"{jobs} jobs" for jobs in COUNTS)]), flush=True)


if __name__ == "__main__":
    main()
