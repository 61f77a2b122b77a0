"""The frontier: clock against worker time of all allocators, each divided by the oracle's.

python -m benchmarks.frontier [ROUNDS [PICTURE]]

Prints a table and draws docs/pictures/frontier.png.  Allocators with a parameter that trades one for the
other are drawn as a line: the price of ata-auto, the m of m-sync.  5,000 rounds take about two minutes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.allocators import Shuffled, play
from benchmarks.measuring import options
from mpi_ata import (
    ATA,
    GTA,
    OFTA,
    UTA,
    Allocator,
    ATAAuto,
    ATAEmpirical,
    Bandit,
    Law,
    MSync,
    Proportional,
    Sqrt,
    gpu_generations,
)
from mpi_ata.arrays import Array
from mpi_ata.paper import figures
from mpi_ata.view.plots import save_figure
from mpi_ata.view.text import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDS, SEED = 5_000, 21
PRICES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
PICTURE = Path("docs/pictures/frontier.png")
TICKS = (0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0)
LOOKS = {  # colour (told apart by colour-blind readers: Okabe and Ito), marker, size, whether filled
    "m-sync": ("#CC79A7", "o", 5, True),
    "gta": ("#D55E00", "D", 6, True),
    "uta": ("#999999", "s", 8, True),
    "ata": ("#56B4E9", "o", 5, True),
    "bandit": ("#E69F00", "o", 5, True),
    "proportional": ("#B2A400", "o", 5, True),
    "ata-empirical": ("#009E73", "o", 5, True),
    "ofta": ("#000000", "*", 11, True),
    "ata-auto": ("#0072B2", "o", 5, True),
    "ata-auto, spares": ("#0072B2", "o", 5, False),
}


class Setting(NamedTuple):
    """Workers with a law of task times, and the budget of a round."""

    title: str
    law: Law
    budget: int


class Point(NamedTuple):
    """What one allocator took, relative to the oracle."""

    name: str
    parameter: str
    clock: float
    worker_time: float


def contenders(law: Law, budget: int) -> list[tuple[str, str, Callable[[], Allocator]]]:
    """Return name, parameter and maker of each allocator."""
    n = law.n
    alpha = 2.0 * float(law.means.max())
    return [
        ("ofta", "", lambda: OFTA(n, budget, law.means)),
        ("gta", "", lambda: GTA(n, budget)),
        ("uta", "", lambda: UTA(n, budget)),
        ("ata", "", lambda: ATA(n, budget, alpha, seed=SEED)),
        ("ata-empirical", "", lambda: ATAEmpirical(n, budget, seed=SEED)),
        ("bandit", "", lambda: Bandit(n, budget, seed=SEED)),
        ("proportional", "", lambda: Proportional(n, budget, seed=SEED)),
        *(("m-sync", f"m = {m}", _m_sync(n, budget, m)) for m in _counts(n, budget)),
        ("ata-auto", "", lambda: ATAAuto(n, budget, seed=SEED)),
        *(("ata-auto, spares", f"price {price:g}", _spares(n, budget, price)) for price in PRICES),
    ]


def _counts(n: int, budget: int) -> list[int]:
    most = min(n, budget)
    return [max(most * part // 8, 1) for part in range(2, 9)]


def _m_sync(n: int, budget: int, m: int) -> Callable[[], Allocator]:
    return lambda: MSync(n, budget, m)


def _spares(n: int, budget: int, price: float) -> Callable[[], Allocator]:
    return lambda: ATAAuto(n, budget, spares="auto", price=price, seed=SEED)


def measure(setting: Setting, rounds: int) -> list[Point]:
    """Return the points of all allocators after so many rounds, the oracle first."""
    law, budget = Shuffled(setting.law, SEED), setting.budget
    found: list[tuple[str, str, Array, float, float]] = []
    for name, parameter, make in contenders(law, budget):
        spent = play(make(), law, rounds, SEED)[-1]
        oracle = found[0][2] if found else spent
        found.append((name, parameter, spent, *(spent / oracle)))
    return [Point(name, parameter, clock, time) for name, parameter, _, clock, time in found]


def draw(settings: Sequence[Setting], points: Sequence[Sequence[Point]], path: Path) -> None:
    """Draw one panel per setting."""
    figure, ((*panels,),) = figures.new_figure(1, len(settings), width=4.6, height=3.6)
    for axes, setting, found in zip(panels, settings, points, strict=True):
        for name in LOOKS:
            _draw_allocator(axes, name, [point for point in found if point.name == name])
        axes.set(xscale="log", yscale="log", xlabel="clock / clock of ofta", title=setting.title)
        for axis, ticks in ((axes.xaxis, TICKS), (axes.yaxis, TICKS)):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        _fit(axes, found)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("worker time / worker time of ofta")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    save_figure(figure, path, dpi=figures.DPI)


def _draw_allocator(axes: "Axes", name: str, points: Sequence[Point]) -> None:
    colour, marker, size, filled = LOOKS[name]
    axes.plot(
        [point.clock for point in points],
        [point.worker_time for point in points],
        "-" if len(points) > 1 else "",
        marker=marker,
        markersize=size,
        markerfacecolor=colour if filled else "white",
        color=colour,
        linewidth=1.2,
        label=name,
    )


def _fit(axes: "Axes", points: Sequence[Point]) -> None:
    """Leave a margin of a tenth around all points."""
    clocks, times = [point.clock for point in points], [point.worker_time for point in points]
    axes.set_xlim(min(clocks) / 1.1, max(clocks) * 1.1)
    axes.set_ylim(min(times) / 1.1, max(times) * 1.1)


def main() -> None:
    """Measure, print and draw."""
    asked = options(__doc__, "rounds", "picture", rounds=ROUNDS, picture=PICTURE)
    settings = [
        Setting("sqrt: 51 workers, B = 23", Sqrt(51), 23),
        Setting("16 K80, 16 P100, 16 V100: B = 24", gpu_generations(48), 24),
    ]
    points = []
    for setting in settings:
        points.append(measure(setting, asked.rounds))
        rows = [[p.name, p.parameter, f"{p.clock:.2f}", f"{p.worker_time:.2f}"] for p in points[-1]]
        print(setting.title)
        print(table([["allocator", "parameter", "clock", "worker time"], *rows]), flush=True)
    draw(settings, points, asked.picture)


if __name__ == "__main__":
    main()
