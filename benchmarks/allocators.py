"""ATA-Auto and ATA-Empirical beside the oracle: clock and worker time divided by OFTA's, with goals.

python -m benchmarks.allocators [--rounds N] [--seeds N] [--first-seed N] [--part I/M] [LAW ...]
python -m benchmarks.allocators --regret [--rounds N] [--seeds N] [--first-seed N]

Each cell is clock / worker time, a mean over seeds; a goal that is missed is marked with an exclamation mark.
The last column is the clock over that of ATA-Empirical in the same rounds: the largest ratio of any seed and
of any round from 50 to 2,000, and that round.  26,000 rounds of three seeds take about a minute per case and
seed on one core; `--part 1/4` is every fourth case, so that four processes can share the work.

With `--regret` it draws docs/pictures/regret.png instead: how much longer the rounds of ten laws were, in
sum, than with the quotas that the allocator itself would choose if it knew mean and deviation of each worker.
In the first four laws the first task of the fastest worker is an accident.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from benchmarks.measuring import options
from mpi_ata import OFTA, SGD, Allocator, ATAAuto, ATAEmpirical, DrawnTimes, Law, Plain, VirtualCluster
from mpi_ata.allocators.round_plan import plan_exactly
from mpi_ata.allocators.task_model import SpeedEstimates
from mpi_ata.arrays import Array, IntArray
from mpi_ata.job.component import LAWS
from mpi_ata.paper import figures
from mpi_ata.problems.no_work import NoWork
from mpi_ata.times import Constant
from mpi_ata.view.plots import save_figure
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


class Hiccups:
    """Steady workers, each with its mean, some of whose tasks take much longer; one may be exponential."""

    def __init__(
        self, usual: list[float], often: float = 0.0, longer: float = 1.0, exponential: bool = False
    ) -> None:
        self.n, self._usual, self._exponential = len(usual), np.array(usual), exponential
        self._often, self._longer = often, longer  # of the first worker
        self.means = self._usual * np.where(np.arange(self.n), 1.0, 1.0 + often * (longer - 1.0))

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker; they deviate by a per cent."""
        times = self._usual * (1.0 + 0.01 * rng.standard_normal(self.n))
        if rng.random() < self._often:
            times[0] *= self._longer
        if self._exponential:
            times[0] = rng.exponential()
        return times


class Setting(NamedTuple):
    """A law whose regret is drawn, and what the first task of worker 0 takes, if that is an accident."""

    title: str
    law: Law
    budget: int
    accident: float = 0.0


SETTINGS = [
    Setting("1, with 5 % 20; 10 ± 1 %", Hiccups([1.0, 10.0], 0.05, 20.0), 1, 20.0),
    Setting("1, with 20 % 20; 15 ± 1 %", Hiccups([1.0, 15.0], 0.2, 20.0), 1, 20.0),
    Setting("1, with 1 % 1,000; 100; 110", Hiccups([1.0, 100.0, 110.0], 0.01, 1000.0), 2, 1000.0),
    Setting("Exp(1); 2 ± 1 %", Hiccups([1.0, 2.0], exponential=True), 1, 3.0),
    Setting("0.1, 1, 1, 9, 9", Constant(5, [0.1, 1.0, 1.0, 9.0, 9.0]), 2),
    Setting("0.1, ten of 1, 39 of 9, ± 1 %", Hiccups([0.1] + [1.0] * 10 + [9.0] * 39), 2),
    Setting("exponential 20", LAWS["exponential"](20), 5),
    Setting("sqrt 17", LAWS["sqrt"](17), 23),
    Setting("linear 17", LAWS["linear"](17), 23),
    Setting("gpu-generations 48", LAWS["gpu-generations"](48), 24),
]
PICTURE = Path("docs/pictures/regret.png")
SAMPLES = 2_000  # draws of each law that give the expected time of a round


class RoundTimes:
    """The expected time of a round with any quotas, by simulation; the same draws for all of them."""

    def __init__(self, setting: Setting) -> None:
        rng, most = np.random.default_rng(1), setting.budget
        draws = np.array([[setting.law.draw(rng) for _ in range(most)] for _ in range(SAMPLES)])
        self.means, self.deviations = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
        self._ends = np.cumsum(draws, axis=1)
        self._found: dict[bytes, float] = {}

    def of(self, quota: IntArray) -> float:
        """Return the expected time of a round."""
        if (key := quota.tobytes()) not in self._found:
            busy = np.flatnonzero(quota)
            self._found[key] = float(self._ends[:, quota[busy] - 1, busy].max(axis=1).mean())
        return self._found[key]


def regret(setting: Setting, times: RoundTimes, allocator: Allocator, rounds: int, seed: int) -> Array:
    """Return by how much all rounds so far were longer than those that the allocator would choose."""
    law, B, rng = setting.law, setting.budget, np.random.default_rng(seed)
    place = np.random.default_rng([seed, 1]).permutation(law.n)  # of each worker of the law
    speeds = SpeedEstimates(times.means, times.deviations + 1e-6 * times.means, np.zeros(law.n))
    auto = isinstance(allocator, ATAAuto)
    least = times.of(plan_exactly(speeds, B)[0].quota if auto else OFTA(law.n, B, law.means).quota)
    longer, everyone, accident = np.empty(rounds), np.ones(law.n, np.bool_), setting.accident
    for k in range(rounds):
        quota = allocator.allocate(everyone)[place]
        longer[k] = max(times.of(quota) - least, 0.0)
        draws = np.array([law.draw(rng) for _ in range(quota.max())])
        if accident and quota[0]:
            draws[0, 0], accident = accident, 0.0
        for i in np.flatnonzero(quota).tolist():
            allocator.observe(int(place[i]), draws[: quota[i], i].tolist())
    return np.cumsum(longer) / least


def draw_regret(rounds: int, seeds: Sequence[int]) -> None:
    """Draw the regret of both allocators under each law, a mean over seeds, against the logarithm of k."""
    figure, grid = figures.new_figure(2, 5, width=2.6, height=2.4)
    panels = [axes for row in grid for axes in row]
    k = np.unique(np.geomspace(1, rounds, 200).astype(int))
    for axes, setting in zip(panels, SETTINGS, strict=True):
        n, B, times = setting.law.n, setting.budget, RoundTimes(setting)
        for name, make in (("ata-empirical", ATAEmpirical), ("ata-auto", ATAAuto)):
            found = np.mean(
                [regret(setting, times, make(n, B, seed=seed), rounds, seed) for seed in seeds], axis=0
            )
            axes.plot(k, found[k - 1], label=name, color="#009E73" if name == "ata-empirical" else "#0072B2")
            marks = [found[m - 1] for m in (rounds // 100, rounds // 10, rounds)]
            print(f"{setting.title:32} {name:14} " + " ".join(f"{x:10,.1f}" for x in marks), flush=True)
        axes.set(xscale="log", yscale="log", title=f"{setting.title}\nB = {B}")
        axes.title.set_fontsize("small")
        axes.grid(alpha=0.3)
    figure.supxlabel("round k")
    figure.supylabel("regret [rounds]")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, PICTURE, dpi=figures.DPI)


def main() -> None:
    """Print the rows as they are found."""
    asked = options(
        __doc__, "laws", laws=[], rounds=MARKS[-1], seeds=3, first_seed=11, part="1/1", regret=False
    )
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.regret:
        draw_regret(asked.rounds, seeds)
        return
    part, parts = map(int, asked.part.split("/"))
    cases = [case for case in CASES if not asked.laws or case.law in asked.laws]
    for case in cases[part - 1 :: parts]:
        print(table(rows(case, asked.rounds, seeds)), flush=True)


if __name__ == "__main__":
    main()
