"""Figures of runs: curves of all of them together, then a row of pictures of the workers of each."""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.driver.recorder import group_size
from mpi_ata.errors import UsageError
from mpi_ata.runfile.load import LATEST
from mpi_ata.runfile.schema import Record
from mpi_ata.view.learned import Learned, learned

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # a HOME that is not writable matters to nobody

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec


MOST = 100  # rows of workers in a picture; more workers are averaged in groups of similar speed
MOST_ROUNDS = 512  # points of a curve over rounds
METRICS = "metrics"  # begins the names of columns and panels of what evaluate() of the problem returned
STYLE = Path(__file__).parent / "page" / "figure.mplstyle"


@dataclass(frozen=True)
class PlottedRun:
    """One run in a figure; `workers` is None where only its curves are known."""

    name: str
    history: State  # with what else was evaluated along it, see with_metrics()
    cores: float | None = None  # billed while it lasts
    workers: Learned | None = None
    times: Array = field(default_factory=lambda: np.zeros((0, 0)))  # sampled task times, a row per worker
    task_map: State = field(default_factory=dict)

    def column(self, name: str) -> Array:
        """Return a column of the history, as floats, NaN where it has none; `billed` is cores x elapsed."""
        if name == "billed":
            return self.column("elapsed") * (np.nan if self.cores is None else self.cores)
        return np.asarray(self.history.get(name, np.full(len(self.history["round"]), np.nan)), np.float64)


class WorkerRows(NamedTuple):
    """How the workers of a run become the rows of a picture."""

    groups: list[IntArray]  # the workers of each row
    label: str  # of the axis

    def averaged(self, values: Array) -> Array:
        """Return the mean of values of workers, along the first axis, for each row; NaN is ignored."""
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of a row without any
            return np.array([np.nanmean(values[group], axis=0) for group in self.groups])


def plotted(record: Record, name: str) -> PlottedRun:
    """Return what figures show of a saved run."""
    billed, elapsed = record.summary.get("billed"), record.summary["elapsed"]
    return PlottedRun(
        name,
        with_metrics(record.trace, record.metrics),
        billed / elapsed if billed and elapsed else None,
        learned(record),
        record.workers.get("times", np.zeros((0, 0))),
        record.task_map,
    )


def with_metrics(history: State, metrics: State) -> State:
    """Return the columns of a history, and those of what else was evaluated under names of their own."""
    known = {name: values for name, values in metrics.items() if not name.startswith(LATEST)}
    return history | {f"{METRICS}:{name}": values for name, values in known.items()}


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each run file: its stem, or its path where several have the same stem."""
    stems = Counter(path.stem for path in paths)
    return [path.stem if stems[path.stem] == 1 else str(path.with_suffix("")) for path in paths]


def worker_rows(run: PlottedRun) -> WorkerRows:
    """Return the rows of a picture of workers: one each, or groups of similar speed where there are many."""
    assert run.workers is not None
    n = len(run.workers.means)
    if n <= MOST:
        return WorkerRows([np.array([worker]) for worker in range(n)], "worker")
    order = np.argsort(run.workers.means, kind="stable")  # those never tried, NaN, come last
    groups = np.array_split(order, MOST)
    return WorkerRows(groups, f"workers, fastest first\n(groups of {len(groups[0]):,})")


def round_times(run: PlottedRun) -> tuple[Array, Array]:
    """Return rounds, and the mean length of a round since the previous one of them."""
    round, clock = run.column("round"), run.column("clock")
    step = max(1, len(round) // MOST_ROUNDS)
    round, clock = round[::step], clock[::step]
    length, count = np.diff(clock), np.diff(round)
    some = count > 0
    return round[1:][some], length[some] / count[some]


def task_rates(run: PlottedRun) -> tuple[Array, Array, str]:
    """Return times on the clock, the tasks per round between them for each row of workers, and its label.

    Where the file counts groups of neighbours, it is these that make up the rows.
    """
    assert run.workers is not None
    clock = np.concatenate([[0.0], run.task_map["clock"]])
    rounds = np.diff(np.concatenate([[0], run.task_map["round"]]))
    tasks = (np.diff(run.task_map["tasks"], axis=0, prepend=0) / rounds[:, None]).T
    n = len(run.workers.means)
    if len(tasks) == n:
        rows = worker_rows(run)
        return clock, rows.averaged(tasks), rows.label
    groups = np.array_split(np.arange(len(tasks)), min(MOST, len(tasks)))
    rates = WorkerRows(groups, "").averaged(tasks) / group_size(n)
    return clock, rates, f"workers\n(groups of {len(groups[0]) * group_size(n):,})"


# Okabe and Ito's palette without its yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")  # for more runs than colours
GREY = "#666666"
NARROW = 200.0  # a range up to this ratio has ticks at 1, 2 and 5
WIDTH, HEIGHT = 9.6, 2.4  # inches: of a figure, of a row of panels


def check_output(path: Path, what: str, *endings: str) -> None:
    """Reject a file that cannot be written, before time is spent on what it shows."""
    if path.suffix.lower() not in endings:
        known = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise UsageError(f"-o {path}: the name of a {what} must end in {known}")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}; create it, or choose another file")


def check_figure_path(path: Path) -> None:
    """Reject a figure that cannot be drawn, before time is spent on what it shows."""
    check_output(path, "figure", ".png", ".pdf", ".svg")
    if find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib; install it with: pip install 'mpi-ata[plot]'")


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of a run."""
    rows, column = divmod(number, len(COLOURS))
    return {"color": COLOURS[column], "linestyle": DASHES[rows % len(DASHES)]}


def whole_numbers(axis: "Axis", most: int = 8) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def plain_log_ticks(axis: "Axis") -> None:
    """Put few and plain numbers on a logarithmic axis that spans little."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    if high < NARROW * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of so many inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path, **options: Any) -> None:
    """Write a figure in the format of its file name; the same figure gives the same bytes, except in SVG."""
    stamp = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
    try:
        figure.savefig(path, metadata=stamp, **options)
    except OSError as error:
        raise UsageError(f"{path}: the figure cannot be written: {error.strerror}") from None


Curve = tuple[Array, Array]
GetCurve = Callable[[PlottedRun], Curve]
WIDE = 30.0  # a range beyond this ratio is drawn on a logarithmic axis


class CurvePanel(NamedTuple):
    """One panel: its axes, and the curve of a run in it."""

    x: str
    y: str
    curve: GetCurve

    def points(self, run: PlottedRun) -> Curve:
        """Return the curve of a run where it is known; a single point is no curve."""
        x, y = self.curve(run)
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        known = known if len(known) > 1 else known[:0]
        return x[known], y[known]


def curve_panels(runs: Sequence[PlottedRun]) -> dict[str, CurvePanel]:
    """Return the panels about all runs for which anything is known."""

    def columns(x: str, y: str) -> GetCurve:
        return lambda run: (run.column(x), run.column(y))

    loss = "gap" if any(np.isfinite(run.column("gap")).any() for run in runs) else "loss"
    name = "gap f − f*" if loss == "gap" else "loss"
    found = dict.fromkeys(column for run in runs for column in run.history)
    metrics = [column for column in found if column.startswith(METRICS)]
    panels = {
        "clock": CurvePanel("clock [s]", name, columns("clock", loss)),
        "worker-time": CurvePanel("worker time [s]", name, columns("worker_time", loss)),
        "billed": CurvePanel("billed time [core s]", name, columns("billed", loss)),
        "rounds": CurvePanel("round", "time of a round [s]", round_times),
        "regret": CurvePanel("round", "regret, total [s]", columns("round", "regret")),
        **{key: CurvePanel("clock [s]", key.partition(":")[2], columns("clock", key)) for key in metrics},
    }
    return {key: panel for key, panel in panels.items() if any(len(panel.points(run)[0]) for run in runs)}


def draw_curves(
    panel: CurvePanel, runs: Sequence[PlottedRun], figure: "Figure", place: "SubplotSpec"
) -> None:
    """Draw one curve for each run; runs with the same name are repetitions, drawn as mean and spread."""
    axes = figure.add_subplot(place)
    names = list(dict.fromkeys(run.name for run in runs))
    for number, name in enumerate(names):
        found = [panel.points(run) for run in runs if run.name == name]
        curves = [curve for curve in found if len(curve[0])]
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
    if (values > 0).all() and np.median(values) * WIDE < values.max() * WIDE**0.5:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    elif len(values) and 0 <= values.min() < values.max() / 2:
        axes.set_ylim(bottom=0.0)


BINS = 40  # of a histogram
WIDE_TIMES = 10.0  # times that span more are binned by their logarithms
PALETTE = "cividis"  # the same to readers with and without colour blindness


def draw_means(figure: "Figure", place: "SubplotSpec", run: PlottedRun) -> None:
    """Draw the estimated mean of each worker down to its lower bound, and below it the next quotas."""
    assert run.workers is not None
    rows, known = worker_rows(run), run.workers
    inner = place.subgridspec(2, 1, height_ratios=(5, 2), hspace=0.0)
    above = figure.add_subplot(inner[0])
    below = figure.add_subplot(inner[1], sharex=above)
    x = np.arange(len(rows.groups))
    means, bounds = rows.averaged(known.means), rows.averaged(known.bounds)
    above.vlines(x, np.fmin(bounds, means), means, color=COLOURS[4], linewidth=2, label="to its lower bound")
    above.plot(x, means, "o", color=COLOURS[0], markersize=2.5, label="estimate")
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
    rows = worker_rows(run)
    edges, shares = histograms(run.times, rows)
    axes = _draw_mesh(figure, place, (edges, shares), "share of its tasks")
    axes.set(xlabel="task time [s]", ylabel=rows.label)
    if edges[-1] > WIDE_TIMES * edges[0]:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)


def histograms(times: Array, rows: WorkerRows) -> tuple[Array, Array]:
    """Return edges of bins, and the share of each row's sampled task times in each bin; NaN without any."""
    found = times[~np.isnan(times)]
    low, high = (found.min(), found.max()) if len(found) else (0.1, 1.0)
    high = high if high > 1.001 * low else 1.001 * low
    edges = (np.geomspace if high > WIDE_TIMES * low else np.linspace)(low, high, BINS + 1)
    counts = [np.histogram(times[group], edges)[0] for group in rows.groups]  # NaN is in no bin
    with np.errstate(invalid="ignore"):
        return edges, np.array([count / count.sum() for count in counts])


def draw_map(figure: "Figure", place: "SubplotSpec", run: PlottedRun) -> None:
    """Draw how many tasks per round each worker did over the run."""
    clock, rates, label = task_rates(run)
    _draw_mesh(figure, place, (clock, rates), "tasks per round").set(xlabel="clock [s]", ylabel=label)


def _draw_mesh(figure: "Figure", place: "SubplotSpec", cells: Curve, label: str) -> "Axes":
    """Draw coloured cells, given the edges of their columns and their values in rows centred at 0, 1, ..."""
    axes, (edges, values) = figure.add_subplot(place), cells
    borders = np.arange(len(values) + 1) - 0.5
    mesh = axes.pcolormesh(edges, borders, values, cmap=PALETTE, vmin=0.0, rasterized=True)
    axes.grid(False)
    whole_numbers(axes.yaxis)
    bar = figure.colorbar(mesh, ax=axes, label=label, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
    return axes


WORKERS = {"means": draw_means, "times": draw_times, "map": draw_map}
PANELS = ("clock", "worker-time", "billed", "rounds", "regret", METRICS, *WORKERS)
COLUMNS = 4  # panels in a row, at most
MOST_RUNS = 6  # of which the workers are drawn too

Drawing = Callable[["Figure", "SubplotSpec"], None]


def draw_runs(runs: Sequence[PlottedRun], path: Path, panels: Sequence[str] = PANELS) -> None:
    """Draw runs into a file: those of the panels for which anything is known."""
    rows = [*_curve_rows(runs, panels), *_worker_rows(runs, panels)]
    if not rows:
        rule = "can be drawn: the runs have no such data yet"
        raise UsageError(f"none of the panels {', '.join(panels)} {rule}")
    from matplotlib import style

    with style.context(STYLE, after_reset=True):  # whatever the settings of the user are
        figure = new_figure(WIDTH, HEIGHT * len(rows) + 0.3)
        grid = figure.add_gridspec(len(rows), 1)
        for i, row in enumerate(rows):
            places = grid[i].subgridspec(1, len(row))
            for j, draw in enumerate(row):
                draw(figure, places[j])
        _add_legend(figure, dict.fromkeys(run.name for run in runs))
        save_figure(figure, path, dpi=110, bbox_inches="tight", pad_inches=0.05)


def check_panels(panels: Sequence[str]) -> None:
    """Reject names of panels that do not exist."""
    for name in panels:
        if name not in PANELS:
            raise UsageError(f"--panels: there is no panel {name!r}; choose from {', '.join(PANELS)}")


def _curve_rows(runs: Sequence[PlottedRun], panels: Sequence[str]) -> list[list[Drawing]]:
    """Return the panels about all runs together, up to four in a row, in rows of similar length."""
    chosen = [panel for name, panel in curve_panels(runs).items() if name.partition(":")[0] in panels]
    rows = np.array_split(np.arange(len(chosen)), -(-len(chosen) // COLUMNS)) if chosen else []
    return [[partial(draw_curves, chosen[i], runs) for i in row.tolist()] for row in rows]


def _worker_rows(runs: Sequence[PlottedRun], panels: Sequence[str]) -> list[list[Drawing]]:
    """Return one row of panels for the workers of each run."""
    shown = [run for run in runs if run.workers is not None]
    rows = [_worker_row(run, panels, titled=len(runs) > 1) for run in shown if len(shown) <= MOST_RUNS]
    return [row for row in rows if row]


def _worker_row(run: PlottedRun, panels: Sequence[str], titled: bool) -> list[Drawing]:
    some = {"means": True, "times": run.times.size, "map": len(run.task_map.get("round", ()))}

    def draw(name: str, figure: "Figure", place: "SubplotSpec") -> None:
        WORKERS[name](figure, place, run)
        if titled:  # the last axes are those of quotas or colours
            figure.axes[-2].set_title(run.name, loc="left")

    return [partial(draw, name) for name in WORKERS if name in panels and some[name]]


def _add_legend(figure: "Figure", names: Iterable[str]) -> None:
    """Name the runs that have curves once, above all panels, where there are several."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    labels = [name for name in names if name in lines]
    if len(labels) > 1:
        places = [lines[name] for name in labels]
        figure.legend(places, labels, loc="outside upper left", ncols=min(len(labels), 4))
