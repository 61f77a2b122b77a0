"""Methods compared: clock and worker time until f - f* < 1e-5 on the paper's quadratic, on the virtual clock.

python -m benchmarks.methods [DIMENSION [PICTURE]]

Prints a table in Markdown and draws docs/pictures/methods.png.  Workers' times follow the sqrt law.  With
data of their own, worker i has f_i(x) = f(x) + <c_i, x>, where the c_i sum to 0 and E |c_i|^2 = 0.05^2, so
that f is the mean of all f_i.  Each method has the step size of its grid that takes the least clock, on
average over all seeds; they are tried from the largest until it takes longer.  A run ends at the limit.
Tasks of Rennala MVR take twice as long, since they compute two gradients.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measuring import options
from mpi_ata import (
    ASGD,
    GTA,
    LMO,
    SGD,
    ATAEmpirical,
    DrawnTimes,
    HeterogeneousDataASGD,
    HeterogeneousDataSGD,
    Malenia,
    Method,
    Plain,
    Quadratic,
    RennalaMVR,
    RescaledASGD,
    Ringleader,
    Ringmaster,
    Sqrt,
    Task,
    TwoPoints,
    VirtualCluster,
)
from mpi_ata.arrays import Array
from mpi_ata.paper import figures
from mpi_ata.view.plots import save_figure
from mpi_ata.view.text import significant

GOAL, LIMIT = 1e-5, 8e5  # f - f*; seconds on the clock
DIMENSION, B, SIZES, SEEDS = 20, 23, (17, 51), (5, 6, 7)
DIFFERENCE = 0.05  # root of E |c_i|^2, five times the noise
PICTURE = Path("docs/pictures/methods.png")

MINIBATCH = (1.9, 1.8, 1.6, 1.2, 0.8)
SINGLE = (0.4, 0.28, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.018, 0.0125)
NORMALIZED = (2e-3, 1.4e-3, 1e-3, 7e-4, 5e-4, 3.5e-4, 2.5e-4, 1.8e-4)
Make = Callable[[Array, int, float], Method]  # of x0, the number of workers and the step size


class Way(NamedTuple):
    """A method with its settings, and the step sizes to try, from the largest."""

    make: Make
    grid: Sequence[float]


def quotas(n: int) -> ATAEmpirical:
    """Return the allocator of all methods that have one and are not greedy."""
    return ATAEmpirical(n, B, seed=SEEDS[0])


SAME = {
    "sgd, gta (Rennala)": Way(lambda x, n, s: SGD(x, GTA(n, B), Plain(s)), MINIBATCH),
    "sgd, ata-empirical": Way(lambda x, n, s: SGD(x, quotas(n), Plain(s)), MINIBATCH),
    "rennala-mvr, gta": Way(lambda x, n, s: RennalaMVR(x, GTA(n, B), Plain(s), a=0.2), MINIBATCH),
    "rennala-mvr, ata-empirical": Way(lambda x, n, s: RennalaMVR(x, quotas(n), Plain(s), a=0.2), MINIBATCH),
    "asgd, ata-empirical": Way(lambda x, n, s: ASGD(x, quotas(n), Plain(s)), SINGLE),
    "ringmaster": Way(lambda x, n, s: Ringmaster(x, n, Plain(s), delay=n, budget=B), SINGLE),
    "asgd, ata-empirical, lmo": Way(lambda x, n, s: ASGD(x, quotas(n), LMO(s)), NORMALIZED),
    "ringmaster, lmo": Way(lambda x, n, s: Ringmaster(x, n, LMO(s), delay=n, budget=B), NORMALIZED),
}
OWN = {
    "heterogeneous-data-sgd, ata-empirical": Way(
        lambda x, n, s: HeterogeneousDataSGD(x, quotas(n), Plain(s)), MINIBATCH
    ),
    "malenia, S = n": Way(lambda x, n, s: Malenia(x, Plain(s), S=n), MINIBATCH),
    "ringleader": Way(lambda x, n, s: Ringleader(x, n, Plain(s)), SINGLE),
    "rescaled-asgd": Way(lambda x, n, s: RescaledASGD(x, n, Plain(s), budget=B), SINGLE),
    "heterogeneous-data-asgd, ata-empirical": Way(
        lambda x, n, s: HeterogeneousDataASGD(x, quotas(n), Plain(s)), SINGLE
    ),
    "ringmaster (for the same data)": SAME["ringmaster"]._replace(grid=SINGLE[4::3]),
}
DATA = {"the same": SAME, "own": OWN}


class OwnData(Quadratic):
    """The quadratic, with a linear part for each worker; these sum to 0."""

    def __init__(self, dimension: int, n: int) -> None:
        super().__init__(dimension)
        c = np.random.default_rng(n).standard_normal((n, dimension)) * DIFFERENCE / math.sqrt(dimension)
        self._c = c - c.mean(axis=0)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return a stochastic gradient of the worker's own function."""
        g = super().gradient(x, task)
        g += self._c[task.worker]
        return g

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of several, all of one worker."""
        g = super().gradients(x, tasks)
        g += len(tasks) * self._c[tasks[0].worker]
        return g


class Progress(NamedTuple):
    """What a run came to: clock, worker time and gap after each round."""

    rows: Array
    reached: bool


def race(make: Make, step: float, problem: Quadratic, n: int, seed: int, limit: float) -> Progress:
    """Run until the gap is below the goal, or the limit of the clock is reached, or the run diverges."""
    method = make(problem.x0, n, step)
    twice = isinstance(method, RennalaMVR)
    times = DrawnTimes(Sqrt(n, 29.0), seed, unit=2.0 if twice else 1.0)
    cluster = VirtualCluster(TwoPoints(problem) if twice else problem, times, seed)
    first = gap = problem.loss(method.x) - problem.minimum
    rows = [(0.0, 0.0, gap)]
    while GOAL <= gap < 10 * first and cluster.now() < limit:
        method.step(cluster)
        gap = problem.loss(method.x) - problem.minimum
        rows.append((cluster.now(), cluster.ledger.worker_time.sum(), gap))
    cluster.close()
    rows[-1] = (cluster.now(), cluster.ledger.worker_time.sum(), gap)
    return Progress(np.array(rows), gap < GOAL)


def best(way: Way, problem: Quadratic, n: int) -> tuple[float, list[Progress]]:
    """Return the best step size and its runs; where none reaches the goal, the run that comes closest."""
    found: tuple[float, list[Progress]] | None = None
    closest: tuple[float, list[Progress]] = (0.0, [])
    limit = LIMIT * len(SEEDS)  # of all seeds together
    for step in way.grid:
        paths, spent = [], 0.0
        for seed in SEEDS:
            paths.append(race(way.make, step, problem, n, seed, min(limit - spent, LIMIT)))
            spent += paths[-1].rows[-1, 0]
            if not paths[-1].reached:
                break
        if all(path.reached for path in paths):
            found, limit = (step, paths), spent
        elif found is not None:  # smaller steps take still longer
            break
        elif not closest[1] or paths[-1].rows[-1, 2] < closest[1][-1].rows[-1, 2]:
            closest = step, paths[-1:]
    return found or closest


def row(data: str, n: int, name: str, way: Way, step: float, paths: Sequence[Progress]) -> str:
    """Return one line of the table."""
    grid = f"{way.grid[-1]:g} to {way.grid[0]:g}"
    if paths[0].reached:
        ends = np.mean([path.rows[-1, :2] for path in paths], axis=0) / 1e6
        cells = [significant(float(value), 3) for value in ends]
    else:
        cells = [f"not reached: f - f* = {paths[0].rows[-1, 2]:.1e}", ""]
    return f"| {' | '.join([data, str(n), name, f'{step:g}', grid, *cells])} |"


def draw(panels: Sequence[tuple[str, dict[str, Progress]]], path: Path) -> None:
    """Draw the gap over clock and worker time, one row of panels per setting."""
    figure, grid = figures.new_figure(len(panels), 2, width=4.6, height=3.2)
    for axes, (title, paths) in zip(grid, panels, strict=True):
        for name, found in paths.items():
            rows = found.rows[:: max(len(found.rows) // 400, 1)]
            for column, panel in enumerate(axes):
                panel.plot(rows[:, column] / 1e6, rows[:, 2], label=name, linewidth=1.2)
        for panel, label in zip(axes, ("clock", "worker time"), strict=True):
            panel.set(
                xscale="log", yscale="log", xlabel=f"{label} [million s]", title=title, ylim=(GOAL, 0.2)
            )
            panel.grid(alpha=0.3)
        axes[0].set_ylabel("f - f*")
        axes[0].legend(fontsize="x-small")
    save_figure(figure, path, dpi=figures.DPI)


def main() -> None:
    """Measure, print and draw."""
    asked = options(__doc__, "dimension", "picture", dimension=DIMENSION, picture=PICTURE)
    print("| data | n | method | step size | grid | clock [million s] | worker time [million s] |")
    print("|---|---|---|---|---|---|---|")
    panels = []
    for data, ways in DATA.items():
        for n in SIZES:
            problem = Quadratic(asked.dimension) if data == "the same" else OwnData(asked.dimension, n)
            shown = {}
            for name, way in ways.items():
                step, paths = best(way, problem, n)
                shown[name] = paths[0]
                print(row(data, n, name, way, step, paths), flush=True)
            if n == SIZES[-1]:
                panels.append((f"{data if data == 'own' else 'same'} data, n = {n}", shown))
    draw(panels, asked.picture)


if __name__ == "__main__":
    main()
