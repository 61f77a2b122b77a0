"""The paper's figures; they need matplotlib, from the extra [plot]."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.paper.experiments import GREEDY, Trial, paper_ratios
from mpi_ata.paper.trials import TrialResult
from mpi_ata.view import plots
from mpi_ata.view.text import duration, markdown_table, table

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
DPI = 120
Columns = dict[str, Array]  # of a trace, by name
Key = TypeVar("Key")  # of a group of runs


class Panel(NamedTuple):
    """What one panel of a figure shows of each run."""

    x: str
    y: str
    select: Callable[[Columns], tuple[Array, Array]]
    log_x: bool = False
    log_y: bool = False


AVERAGE_TIME = Panel(
    "round", "average iteration time", lambda c: (c["round"], c["clock"] / c["round"]), log_x=True
)
PANELS = [
    Panel("runtime", "f - f*", lambda c: (c["clock"], c["gap"]), log_y=True),
    Panel("total worker time", "f - f*", lambda c: (c["worker_time"], c["gap"]), log_x=True, log_y=True),
    AVERAGE_TIME,
    Panel("round", "averaged regret", lambda c: (c["round"], c["regret"] / c["round"]), True, True),
]


LOSS_PANELS = [
    Panel("runtime", "test loss", lambda c: (c["clock"], c["loss"])),
    Panel("total worker time", "test loss", lambda c: (c["worker_time"], c["loss"]), log_x=True),
]


def available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(
    rows: int, columns: int, width: float = 4.0, height: float = 3.0
) -> "tuple[Figure, list[list[Axes]]]":
    """Return an empty figure, which needs no display, and its axes."""
    figure = plots.new_figure(width * columns, height * rows + 0.5)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def grouped(results: Sequence[TrialResult], key: Callable[[Trial], Key]) -> dict[Key, list[TrialResult]]:
    """Return the runs in groups of the same key."""
    groups: dict[Key, list[TrialResult]] = {}
    for result in results:
        groups.setdefault(key(result.trial), []).append(result)
    return groups


def by_workers(results: Sequence[TrialResult]) -> dict[str, list[TrialResult]]:
    """Return the runs grouped by number of workers."""
    return grouped(sorted(results, key=lambda result: result.trial.n), lambda trial: f"n = {trial.n}")


def draw_runs(
    groups: Mapping[str, Sequence[TrialResult]], path: Path, panels: Sequence[Panel] = PANELS
) -> None:
    """Draw groups of runs into a file."""
    plots.save_figure(make_figure(groups, panels), path, dpi=DPI)


def make_figure(groups: Mapping[str, Sequence[TrialResult]], panels: Sequence[Panel] = PANELS) -> "Figure":
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


def _draw(axes: "Axes", panel: Panel, results: Sequence[TrialResult]) -> None:
    for result in results:
        x, y = panel.select({name: column[1:] for name, column in result.history.items()})
        shown = np.isfinite(y) & ((y > 0) | (not panel.log_y))
        if shown.any():
            name = result.trial.allocator
            # The oracle is dashed and on top, as others may coincide with it.
            dashes, above = ("--", 3) if name == "ofta" else ("-", 2)
            style: dict[str, Any] = {"color": COLOURS.get(name), "linewidth": 1.2, "zorder": above}
            axes.plot(x[shown], y[shown], dashes, label=name, **style)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.grid(alpha=0.3)


Record = dict[str, Any]
RATIOS = ("worker_time_ratio", "runtime_ratio")
RATIO_NAMES = ("worker time, gta / x", "runtime, x / gta")  # in tables


def ratios(results: Sequence[TrialResult], budget: int) -> list[Record]:
    """Return one record per prior, number of workers and allocator: means and deviations over the seeds."""
    runs = {(r.trial.prior, r.trial.n, r.trial.allocator, r.trial.seed): r for r in results}
    kinds = sorted(dict.fromkeys(key[:3] for key in runs), key=lambda kind: kind[:2])
    seeds = sorted({seed for *_, seed in runs})
    records = []
    for prior, n, name in kinds:
        own = [runs[prior, n, name, seed] for seed in seeds]
        greedy = [runs[0, n, GREEDY, seed].summary for seed in seeds]
        records.append(_record(own[0].trial, [run.summary for run in own], greedy, budget))
    return records


def _record(trial: Trial, runs: Sequence[Record], greedy: Sequence[Record], budget: int) -> Record:
    """Return the record of one allocator, given its summary and that of greedy allocation for each seed."""
    pairs = list(zip(runs, greedy, strict=True))
    paper = paper_ratios(trial, budget)
    gaps = [run["gap"] for run in runs]
    return {
        **described(trial, round(fmean(run["rounds"] for run in runs))),
        **averaged("worker_time_ratio", [base["worker_time"] / own["worker_time"] for own, base in pairs]),
        **averaged("runtime_ratio", [own["clock"] / base["clock"] for own, base in pairs]),
        "paper_worker_time_ratio": paper[0],
        "paper_runtime_ratio": paper[1],
        "seeds": len(runs),
        "prior": trial.prior,
        "loss": _mean([run["loss"] for run in runs]),
        "gap": None if None in gaps else max(gaps),
        **{name: _mean([run["evaluation"][name] for run in runs]) for name in runs[0]["evaluation"]},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def described(trial: Trial, rounds: int) -> Record:
    """Return how the record of a run begins; ratios are None unless there are some."""
    known = {"law": trial.law, "n": trial.n, "allocator": trial.allocator, "rounds": rounds}
    return known | dict.fromkeys((*RATIOS, *(f"paper_{key}" for key in RATIOS)))


def averaged(name: str, values: Sequence[float]) -> Record:
    """Return mean and sample standard deviation over the seeds; None for a single value."""
    return {name: fmean(values), f"{name}_deviation": stdev(values) if len(values) > 1 else None}


def total_time(results: Sequence[TrialResult]) -> str:
    """Return a note on the total wall time of the runs."""
    seconds = sum(result.summary["elapsed"] for result in results)
    return f"The {len(results)} runs took {duration(seconds)} in total."


def ratio_header(other: str) -> list[str]:
    """Return the header of ratio_lines()."""
    return ["allocator", "n", "rounds", *(cell for name in RATIO_NAMES for cell in (name, other, "off by"))]


def ratio_lines(records: Sequence[Record], other: str, form: str = "g") -> list[list[str]]:
    """Return rows of our ratios, those whose keys begin with `other`, and their differences."""
    lines = []
    for r in records:
        cells = run_cells(r)
        for key, own in zip(RATIOS, ratio_cells(r), strict=True):
            value = r[f"{other}_{key}"]
            cells += [own, "-", "-"]
            if value is not None:
                cells[-2:] = f"{value:{form}}", f"{100 * (r[key] / value - 1):+.1f} %"
        lines.append(cells)
    return lines


def run_cells(record: Record) -> list[str]:
    """Return allocator, workers and rounds."""
    return [record["allocator"], str(record["n"]), f"{record['rounds']:,}"]


def ratio_cells(record: Record) -> list[str]:
    """Return both ratios without others to compare them with."""
    return [with_deviation(record, key) for key in RATIOS]


def with_deviation(record: Record, key: str, form: str = ".2f") -> str:
    """Return a mean with its deviation, if there is one."""
    mean, deviation = record[key], record[f"{key}_deviation"]
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")


@dataclass(frozen=True)
class PaperReport:
    """A titled table with notes below it, and the same numbers unrounded."""

    name: str
    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]
    records: Sequence[Record]
    figure: Path | None = None

    def with_figure(self, folder: Path | None, draw: Callable[[Path], None]) -> "PaperReport":
        """Draw the figure into a folder, and return the report with it, or with a note on what is missing."""
        note = "Use --out FOLDER to save the runs there and draw the figure."
        if folder is not None and available():
            path = folder / f"{self.name}.png"
            draw(path)
            return replace(self, figure=path)
        if folder is not None:
            note = "There is no figure: matplotlib is missing, pip install 'mpi-ata[plot]'."
        return replace(self, notes=[*self.notes, note])

    def text(self) -> str:
        """Return the report for a terminal."""
        notes = [*self.notes, *([f"Figure: {self.figure}"] if self.figure else [])]
        wrapped = [textwrap.fill(note, 110, initial_indent="- ", subsequent_indent="  ") for note in notes]
        return "\n".join([f"{self.title}\n", table(self.lines, self.header), "", *wrapped])

    def markdown(self) -> str:
        """Return the report for a Markdown document."""
        notes = [f"- {note}" for note in self.notes]
        figure = [f"\n![{self.title}]({self.figure})"] if self.figure else []
        return "\n".join([f"{self.title}\n", f"{markdown_table(self.lines, self.header)}\n", *notes, *figure])

    def json(self) -> str:
        """Return the records as a JSON list in one line."""
        return json.dumps(self.records)
