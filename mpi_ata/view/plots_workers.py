"""Panels about the workers of one run: means and quotas, task times, and who did tasks when."""

from typing import TYPE_CHECKING

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.view.plots_data import PlottedRun, Rows, task_rates, worker_rows
from mpi_ata.view.plots_style import COLOURS, GREY, plain_log_ticks, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

BINS = 40  # of a histogram
WIDE = 10.0  # times that span more are binned by their logarithms
PALETTE = "cividis"  # the same to readers with and without colour blindness


def draw_means(figure: "Figure", place: "SubplotSpec", run: PlottedRun) -> None:
    """Draw the learned mean of each worker down to its lower bound, and below it the next quotas."""
    assert run.workers is not None
    rows, known = worker_rows(run), run.workers
    inner = place.subgridspec(2, 1, height_ratios=(5, 2), hspace=0.0)
    above = figure.add_subplot(inner[0])
    below = figure.add_subplot(inner[1], sharex=above)
    x = np.arange(len(rows.groups))
    means, bounds = rows.averaged(known.means), rows.averaged(known.bounds)
    above.vlines(x, np.fmin(bounds, means), means, color=COLOURS[4], linewidth=2, label="to its lower bound")
    above.plot(x, means, "o", color=COLOURS[0], markersize=2.5, label="mean")
    above.set_ylabel("task time [s]")
    above.margins(y=0.1)  # the largest mean is a point at the top
    above.set_ylim(bottom=0.0)
    above.legend(loc="best", handlelength=1, fontsize=7)
    above.tick_params(bottom=False, labelbottom=False)
    quota = np.zeros(len(known.means)) if known.quota is None else known.quota.astype(np.float64)
    below.bar(x, rows.averaged(quota), color=GREY, width=0.8)
    below.set(xlabel=rows.label, ylabel="quota")
    whole_numbers(below.xaxis)
    whole_numbers(below.yaxis, most=3)


def draw_times(figure: "Figure", place: "SubplotSpec", run: PlottedRun) -> None:
    """Draw how often each worker's tasks took how long: a histogram for each row of workers."""
    axes, rows = figure.add_subplot(place), worker_rows(run)
    edges, shares = histograms(run.times, rows)
    mesh = axes.pcolormesh(edges, _edges(len(rows.groups)), shares, cmap=PALETTE, vmin=0.0, rasterized=True)
    axes.set(xlabel="task time [s]", ylabel=rows.label)
    if edges[-1] > WIDE * edges[0]:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    _finish(figure, axes, mesh, "share of its tasks")


def histograms(times: Array, rows: Rows) -> tuple[Array, Array]:
    """Return edges of bins, and the share of each row's sampled task times in each bin; NaN without any."""
    found = times[~np.isnan(times)]
    low, high = (found.min(), found.max()) if len(found) else (0.1, 1.0)
    high = high if high > 1.001 * low else 1.001 * low
    edges = np.geomspace(low, high, BINS + 1) if high > WIDE * low else np.linspace(low, high, BINS + 1)
    counts = [np.histogram(_known(times[group]), edges)[0] for group in rows.groups]
    with np.errstate(invalid="ignore"):
        return edges, np.array([count / count.sum() for count in counts])


def _known(times: Array) -> Array:
    return times[~np.isnan(times)]


def draw_map(figure: "Figure", place: "SubplotSpec", run: PlottedRun) -> None:
    """Draw how many tasks per round each worker did over the run."""
    axes, (clock, rates, label) = figure.add_subplot(place), task_rates(run)
    mesh = axes.pcolormesh(clock, _edges(len(rates)), rates, cmap=PALETTE, vmin=0.0, rasterized=True)
    axes.set(xlabel="clock [s]", ylabel=label)
    _finish(figure, axes, mesh, "tasks per round")


def _edges(count: int) -> Array:
    """Return the borders of rows that are centred at 0, 1, ..."""
    return np.arange(count + 1) - 0.5


def _finish(figure: "Figure", axes: "Axes", mesh: "QuadMesh", label: str) -> None:
    axes.grid(False)
    whole_numbers(axes.yaxis)
    bar = figure.colorbar(mesh, ax=axes, label=label, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
