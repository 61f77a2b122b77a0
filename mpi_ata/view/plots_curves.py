"""Panels with one curve for each run: loss, round times, regret."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.view.plots_data import PlottedRun, round_times
from mpi_ata.view.plots_style import line_style, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Array, Array]
METRICS = "metrics"  # begins the names of panels of what evaluate() of the problem returned
WIDE = 30.0  # a range beyond this ratio is drawn on a logarithmic axis


class CurvePanel(NamedTuple):
    """One panel: its axes, and the curve of a run in it."""

    x: str
    y: str
    curve: Callable[[PlottedRun], Curve]


def curve_panels(runs: Sequence[PlottedRun]) -> dict[str, CurvePanel]:
    """Return the panels about all runs for which anything is known."""
    loss = "gap" if any(np.isfinite(run.column("gap")).any() for run in runs) else "loss"
    name = "gap f − f*" if loss == "gap" else "loss"
    panels = {
        "clock": CurvePanel("clock [s]", name, lambda run: (run.column("clock"), run.column(loss))),
        "worker-time": CurvePanel(
            "worker time [s]", name, lambda run: (run.column("worker_time"), run.column(loss))
        ),
        "billed": CurvePanel(
            "billed time [core s]", name, lambda run: (run.column("billed"), run.column(loss))
        ),
        "rounds": CurvePanel("round", "time of a round [s]", round_times),
        "regret": CurvePanel("round", "regret, total [s]", _regret),
        **{f"{METRICS}:{name}": _metric_panel(name) for name in _metric_names(runs)},
    }
    return {key: panel for key, panel in panels.items() if any(_drawable(panel, run) for run in runs)}


def _drawable(panel: CurvePanel, run: PlottedRun) -> bool:
    return len(known_points(panel, run)[0]) > 0


def _metric_names(runs: Sequence[PlottedRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def _metric_panel(name: str) -> CurvePanel:
    return CurvePanel("clock [s]", name, lambda run: (run.column("clock"), run.metric(name)))


def _regret(run: PlottedRun) -> Curve:
    return run.column("round"), run.column("regret")


def known_points(panel: CurvePanel, run: PlottedRun) -> Curve:
    """Return the curve of a run where it is known; a single point is no curve."""
    x, y = panel.curve(run)
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    known = known if len(known) > 1 else known[:0]
    return x[known], y[known]


def draw_curves(axes: "Axes", panel: CurvePanel, runs: Sequence[PlottedRun]) -> None:
    """Draw one curve for each run; runs with the same name are repetitions, drawn as mean and spread."""
    names = list(dict.fromkeys(run.name for run in runs))
    for number, name in enumerate(names):
        curves = [known_points(panel, run) for run in runs if run.name == name and _drawable(panel, run)]
        if len(curves) == 1:
            axes.plot(*curves[0], label=name, **line_style(number))
        elif curves:
            _draw_spread(axes, curves, name, number)
    axes.set(xlabel=panel.x, ylabel=panel.y.replace("$", r"\$"))  # names are no formulas
    _scale(axes)


def _draw_spread(axes: "Axes", curves: Sequence[Curve], name: str, number: int) -> None:
    """Draw the mean of several curves, and a band of one standard deviation, as far as all of them go."""
    x = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 200)
    logs = all((y > 0).all() for _, y in curves)
    ys = np.array([np.interp(x, at, np.log(y) if logs else y) for at, y in curves])
    mean, spread = ys.mean(axis=0), ys.std(axis=0, ddof=1)
    middle, low, high = ((np.exp(y) if logs else y) for y in (mean, mean - spread, mean + spread))
    style = line_style(number)
    axes.plot(x, middle, label=name, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _scale(axes: "Axes") -> None:
    """Choose a logarithmic axis where values are positive and span a wide range."""
    values = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()])
    positive = values[values > 0]
    if len(positive) == len(values) and np.median(values) * WIDE < values.max() * WIDE**0.5:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    elif len(values) and 0 <= values.min() < values.max() / 2:
        axes.set_ylim(bottom=0.0)
