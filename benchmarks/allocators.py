"""ATA-Auto and ATA-Empirical beside the oracle: clock and worker time divided by OFTA's, with goals.

python -m benchmarks.allocators [--rounds N] [--seeds N] [--first-seed N] [--part I/M] [LAW ...]

Each cell is clock / worker time, a mean over seeds; a goal that is missed is marked with an exclamation mark.
The last column is the clock over that of ATA-Empirical in the same rounds: the largest ratio of any seed and
of any round from 50 to 2,000, and that round.  26,000 rounds of three seeds take about a minute per case and
seed on one core; `--part 1/4` is every fourth case, so that four processes can share the work.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from benchmarks.measuring import options
from mpi_ata import OFTA, SGD, Allocator, ATAAuto, ATAEmpirical, DrawnTimes, Law, Plain, VirtualCluster
from mpi_ata.arrays import Array
from mpi_ata.job.component import LAWS
from mpi_ata.problems.no_work import NoWork
from mpi_ata.times import Constant
from mpi_ata.view.text import table

MARKS = (100, 1_000, 26_000)
WATCHED = slice(49, 2_000)  # rounds 50 to 2,000, in which it must not be behind ATA-Empirical
Goal = tuple[float, float] | None  # clock and worker time, at most


class Case(NamedTuple):
    """A law with n workers and B tasks per round, and the goals at the last mark, without spares and with."""

    law: str
    n: int
    budget: int
    whole: Goal = None
    spares: Goal = None


class Scaled:
    """sqrt(i) times a positive random number of mean 1."""

    def __init__(self, n: int, draw: Callable[[Generator, int], Array]) -> None:
        self.n, self.means, self._draw = n, np.sqrt(np.arange(1.0, n + 1)), draw

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        return np.asarray(self.means * self._draw(rng, self.n))


class Shuffled:
    """The same law with workers in random order."""

    def __init__(self, law: Law, seed: int) -> None:
        self.n, self._law = law.n, law
        self._order = np.random.default_rng(seed).permutation(law.n)
        self.means = law.means[self._order]

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        return self._law.draw(rng)[self._order]


OTHERS: dict[str, Callable[[int], Law]] = {
    "pareto": lambda n: Scaled(n, lambda rng, m: (1.0 + rng.pareto(2.2, m)) * (1.2 / 2.2)),
    "weibull": lambda n: Scaled(n, lambda rng, m: rng.weibull(0.5, m) / 2.0),
    "bimodal": lambda n: Scaled(n, lambda rng, m: np.where(rng.random(m) < 0.05, 10.0, 1.0) / 1.45),
    "two-speed": lambda n: Constant(n, [1.0] * (n // 2) + [5.0] * (n - n // 2)),
    "equal": lambda n: Constant(n),
}
SQRT: tuple[Goal, Goal] = (0.97, 0.90), (0.66, 1.05)
LINEAR: tuple[Goal, Goal] = (0.97, 0.90), (0.72, 1.05)
MIX: tuple[Goal, Goal] = (1.0, 1.03), (0.78, 1.05)
CASES = [
    *(Case("sqrt", n, 23, *SQRT) for n in (17, 51, 153, 459)),
    *(Case("linear", n, 23, *LINEAR) for n in (17, 51, 153)),
    *(Case("mix", n, 23, *MIX) for n in (15, 45, 150)),
    Case("lonestar6", 64, 64),
    Case("lonestar6", 64, 256),
    Case("gpu-generations", 48, 24),
    Case("gpu-generations", 48, 192),
    Case("bytedance-ar", 16, 64),
    Case("bytedance-se", 32, 128),
    Case("frontera", 200, 100),
    Case("longhorn", 300, 64),
    *(Case("sqrt", 51, budget) for budget in (1, 2, 500)),
    *(Case("sqrt", n, 23) for n in (2, 2_000, 10_000)),
    *(Case(law, 40, 60) for law in OTHERS),
]
# On the laws of machines: clock after 100 and 1,000 rounds, at most.
ON_MACHINES = {"whole": {100: 1.06, 1_000: 1.01}, "spares": {100: 1.01}}


def play(allocator: Allocator, law: Law, rounds: int, seed: int) -> Array:
    """Return clock and worker time after each round."""
    problem = NoWork()
    cluster = VirtualCluster(problem, DrawnTimes(law, seed), seed)
    method = SGD(problem.x0, allocator, Plain(1.0))
    found = np.empty((rounds, 2))
    for k in range(rounds):
        method.step(cluster)
        found[k] = cluster.now(), cluster.ledger.worker_time.sum()
    return found


def play_all(case: Case, rounds: int, seed: int) -> dict[str, Array]:
    """Return clock and worker time after each round, by allocator; tasks take the same times for all."""
    n, B = case.n, case.budget
    law = Shuffled((LAWS | OTHERS)[case.law](n), seed)
    allocators: dict[str, Allocator] = {
        "ofta": OFTA(n, B, law.means),
        "ata-empirical": ATAEmpirical(n, B, seed=seed),
        "whole": ATAAuto(n, B, seed=seed),
        "spares": ATAAuto(n, B, spares="auto", seed=seed),
    }
    return {name: play(allocator, law, rounds, seed) for name, allocator in allocators.items()}


def most_behind(runs: Sequence[dict[str, Array]], name: str) -> str:
    """Return the largest clock over that of ATA-Empirical, and the round in which it was."""
    ratios = np.array([(run[name] / run["ata-empirical"])[WATCHED, 0] for run in runs]).max(axis=0)
    if not len(ratios):
        return ""
    k = int(np.argmax(ratios))
    return f"{ratios[k]:.3f} at {k + WATCHED.start + 1}"


def cell(found: Array, goal: tuple[float, float]) -> str:
    """Return clock / worker time, with the goal where there is one, and a mark if it is missed."""
    text = f"{found[0]:.3f}/{found[1]:.2f}"
    stated = "/".join(f"{each:g}" for each in goal if each < np.inf)
    # To the digits that the goals are stated in.
    missed = bool((np.round(found, 2) > np.array(goal)).any())
    return f"{text} ({stated}){'!' if missed else ''}" if stated else text


def goal_at(case: Case, name: str, k: int) -> tuple[float, float]:
    """Return the goals for clock and worker time, infinite where there is none."""
    if name == "ata-empirical":
        return np.inf, np.inf
    if k == MARKS[-1]:
        return (case.whole if name == "whole" else case.spares) or (np.inf, np.inf)
    machine = case.law not in ("sqrt", "linear", "mix", *OTHERS)
    return (ON_MACHINES[name].get(k, np.inf) if machine else np.inf), np.inf


def rows(case: Case, rounds: int, seeds: Sequence[int]) -> list[list[str]]:
    """Return one row per allocator."""
    runs = [play_all(case, rounds, seed) for seed in seeds]
    marks = sorted({k for k in MARKS if k < rounds} | {rounds})
    lines = []
    for name in ("ata-empirical", "whole", "spares"):
        mean = np.mean([run[name] / run["ofta"] for run in runs], axis=0)
        cells = [cell(mean[k - 1], goal_at(case, name, k)) for k in marks]
        lines.append([f"{case.law} {case.n:,}, {case.budget}", name, *cells, most_behind(runs, name)])
    return lines


def main() -> None:
    """Print the rows as they are found."""
    asked = options(__doc__, "laws", laws=[], rounds=MARKS[-1], seeds=3, first_seed=11, part="1/1")
    part, parts = map(int, asked.part.split("/"))
    cases = [case for case in CASES if not asked.laws or case.law in asked.laws]
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    for case in cases[part - 1 :: parts]:
        print(table(rows(case, asked.rounds, seeds)), flush=True)


if __name__ == "__main__":
    main()
