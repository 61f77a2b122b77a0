"""Figures of runs: curves of all of them together, then a row of pictures of the workers of each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpi_ata.errors import UsageError
from mpi_ata.view.plots_curves import METRICS, curve_panels, draw_curves
from mpi_ata.view.plots_data import PlottedRun
from mpi_ata.view.plots_style import new_figure, save_figure, styled
from mpi_ata.view.plots_workers import draw_map, draw_means, draw_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

CURVES = ("clock", "worker-time", "billed", "rounds", "regret", METRICS)
WORKERS = ("means", "times", "map")
PANELS = (*CURVES, *WORKERS)
COLUMNS = 4  # panels in a row, at most
MOST_RUNS = 6  # of which the workers are drawn too

Drawing = Callable[["Figure", "SubplotSpec"], None]


def draw_runs(runs: Sequence[PlottedRun], path: Path, panels: Sequence[str] = PANELS) -> None:
    """Draw runs into a file: those of the panels for which anything is known."""
    check_panels(panels)
    rows = [*_curve_rows(runs, panels), *_worker_rows(runs, panels)]
    if not rows:
        raise UsageError(
            f"none of the panels {', '.join(panels)} can be drawn: the runs have no such data yet"
        )
    with styled():
        figure = new_figure(len(rows))
        grid = figure.add_gridspec(len(rows), 1)
        for i, row in enumerate(rows):
            places = grid[i].subgridspec(1, len(row))
            for j, draw in enumerate(row):
                draw(figure, places[j])
        _add_legend(figure)
        save_figure(figure, path)


def check_panels(panels: Sequence[str]) -> None:
    """Reject names of panels that do not exist."""
    for name in panels:
        if name not in PANELS:
            raise UsageError(f"--panels: there is no panel {name!r}; choose from {', '.join(PANELS)}")


def _curve_rows(runs: Sequence[PlottedRun], panels: Sequence[str]) -> list[list[Drawing]]:
    """Return the panels about all runs together, up to four in a row, in rows of similar length."""

    def drawing(name: str) -> Drawing:
        return lambda figure, place: draw_curves(figure.add_subplot(place), found[name], runs)

    found = curve_panels(runs)
    drawings = [drawing(name) for name in found if name.partition(":")[0] in panels]
    if not drawings:
        return []
    rows = -(-len(drawings) // COLUMNS)
    length = -(-len(drawings) // rows)
    return [drawings[i : i + length] for i in range(0, len(drawings), length)]


def _worker_rows(runs: Sequence[PlottedRun], panels: Sequence[str]) -> list[list[Drawing]]:
    """Return one row of panels for the workers of each run."""
    shown = [run for run in runs if run.workers is not None]
    if len(shown) > MOST_RUNS:
        return []
    rows = [_worker_row(run, panels, titled=len(runs) > 1) for run in shown]
    return [row for row in rows if row]


def _worker_row(run: PlottedRun, panels: Sequence[str], titled: bool) -> list[Drawing]:
    draws = {"means": draw_means, "times": draw_times, "map": draw_map}
    some = {"means": True, "times": run.times.size > 0, "map": bool(len(run.task_map.get("round", ())))}

    def drawing(name: str) -> Drawing:
        def draw(figure: "Figure", place: "SubplotSpec") -> None:
            draws[name](figure, place, run)
            if titled:  # the last axes are those of quotas or colours
                figure.axes[-2].set_title(run.name, loc="left")

        return draw

    return [drawing(name) for name in WORKERS if name in panels and some[name]]


def _add_legend(figure: "Figure") -> None:
    """Name the runs once, above all panels, where there are several."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) > 1 and figure.axes[0].get_legend() is None:
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 4))
