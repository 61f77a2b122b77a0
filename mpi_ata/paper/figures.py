"""The paper's figures; they need matplotlib, from the extra [plot]."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError
from mpi_ata.paper.runs import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "gta": "tab:red",
    "ofta": "black",
    "uta": "tab:gray",
    "ata": "tab:blue",
    "ata-half": "tab:cyan",
    "ata-empirical": "tab:green",
}
Columns = dict[str, Array]  # of a trace, by name


class Panel(NamedTuple):
    """What one panel of a figure shows of each run."""

    x: str
    y: str
    select: Callable[[Columns], tuple[Array, Array]]
    log_x: bool = False
    log_y: bool = False


PANELS = [
    Panel("runtime", "f - f*", lambda c: (c["clock"], c["gap"]), log_y=True),
    Panel("total worker time", "f - f*", lambda c: (c["worker_time"], c["gap"]), log_x=True, log_y=True),
    Panel("round", "average iteration time", lambda c: (c["round"], c["clock"] / c["round"]), log_x=True),
    Panel("round", "averaged regret", lambda c: (c["round"], c["regret"] / c["round"]), True, True),
]


LOSS_PANELS = [
    Panel("runtime", "test loss", lambda c: (c["clock"], c["loss"])),
    Panel("total worker time", "test loss", lambda c: (c["worker_time"], c["loss"]), log_x=True),
]


def available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(
    rows: int, columns: int, width: float = 4.0, height: float = 3.0
) -> "tuple[Figure, list[list[Axes]]]":
    """Return an empty figure, which needs no display, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def by_workers(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs grouped by number of workers."""
    workers = sorted({result.trial.n for result in results})
    return {f"n = {n}": [result for result in results if result.trial.n == n] for n in workers}


def draw_runs(groups: Mapping[str, Sequence[Result]], path: Path, panels: Sequence[Panel] = PANELS) -> None:
    """Draw groups of runs into a file."""
    save(make_figure(groups, panels), path)


def make_figure(groups: Mapping[str, Sequence[Result]], panels: Sequence[Panel] = PANELS) -> "Figure":
    """Return a figure with a row of panels per group and a curve per allocator, of the first seed."""
    figure, grid = new_figure(len(groups), len(panels))
    for (title, results), row in zip(groups.items(), grid, strict=True):
        first = min(result.trial.seed for result in results)
        for panel, axes in zip(panels, row, strict=True):
            _draw(axes, panel, [result for result in results if result.trial.seed == first])
        row[0].set_title(title, loc="left")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 3 * len(panels)))
    return figure


def _draw(axes: "Axes", panel: Panel, results: Sequence[Result]) -> None:
    for result in results:
        columns = dict(zip(result.rows[0]._fields, np.array(result.rows[1:]).T, strict=True))
        x, y = panel.select(columns)
        shown = np.isfinite(y) & ((y > 0) | (not panel.log_y))
        if shown.any():
            name = result.trial.allocator
            dashes, above = (
                ("--", 3) if name == "ofta" else ("-", 2)
            )  # dashed and on top, as others may coincide with the oracle
            axes.plot(
                x[shown], y[shown], dashes, color=COLOURS.get(name), label=name, linewidth=1.2, zorder=above
            )
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.grid(alpha=0.3)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of its file name."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the figure cannot be written: {error}") from None
