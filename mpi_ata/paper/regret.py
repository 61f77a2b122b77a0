"""The paper's experiment on regret: how it grows with the rounds, and how well ln k fits that."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError
from mpi_ata.paper import figures
from mpi_ata.paper.bandit import has_numba
from mpi_ata.paper.experiments import LEARNERS, Experiment, PaperRequest, Trial, learns
from mpi_ata.paper.figures import (
    RATIOS,
    PaperReport,
    Record,
    deviation,
    run_cells,
    total_time_text,
    with_deviation,
)
from mpi_ata.paper.pretrained import play_plan, save_learned
from mpi_ata.paper.trials import ReportRounds, Watch, on_cores
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile

HEADER = ["allocator", "n", "rounds", "regret", "slope against ln k", "R2 against ln k", "R2 against k"]
MIN_ROUNDS = 100


class Curve(NamedTuple):
    """The regret of one run after some of its rounds."""

    trial: Trial
    rounds: Array
    regret: Array
    elapsed: float = 0.0

    def fit(self) -> tuple[float, float, float]:
        """Fit the last two decades, and return the slope against ln k, its R2, and the R2 of a line in k."""
        late = self.rounds >= self.rounds[-1] / 100
        k, regret = self.rounds[late], self.regret[late]
        slope, r2 = fit_line(np.log(k), regret)
        return slope, r2, fit_line(k, regret)[1]


def fit_line(x: Array, y: Array) -> tuple[float, float]:
    """Return slope and R2 of the least-squares line."""
    if not y.var():  # no regret at all
        return 0.0, 1.0
    slope, intercept = np.polyfit(x, y, 1)
    rest = y - (slope * x + intercept)
    return float(slope), float(1 - rest.var() / y.var())


def make_regret(experiment: Experiment, request: PaperRequest, watch: Watch) -> PaperReport:
    """Play the bandit for each allocator and seed, and return the report with fits of the regret."""
    experiment = experiment.with_request(request)
    rounds = experiment.rounds
    if rounds < MIN_ROUNDS:
        raise UsageError(f"{rounds=} must be at least {MIN_ROUNDS}, for a fit over the last two decades")
    if not all(map(learns, experiment.allocators)):
        raise UsageError(f"regret is for allocators that learn; choose some of {LEARNERS} with --allocators")
    experiment = replace(experiment, prefix=f"bandit-{rounds}-")
    curves = on_cores(partial(play, marks=log_spaced(rounds)), experiment.trials(), request.cores, watch)
    return regret_report(experiment, curves).with_figure(request.out, partial(draw, curves))


def log_spaced(rounds: int) -> list[int]:
    """Return numbers of rounds evenly spaced on a logarithmic scale, 20 per decade."""
    count = 1 + int(20 * np.log10(rounds))
    return sorted({round(mark) for mark in np.geomspace(1, rounds, count)})


def play(trial: Trial, report: ReportRounds, marks: Sequence[int]) -> Curve:
    """Play the bandit of a trial, or load it if it was saved, and return its regret."""
    if trial.out is not None and RunFile(trial.out).exists():
        history = load_record(RunFile(trial.out))[0].trace
    else:
        *_, (learned, trace) = play_plan(trial, marks, report)
        if trial.out is not None:
            save_learned(learned, trace, trial, trial.out)
        history = trace.history()
    return Curve(trial, history["round"], history["regret"], float(history["elapsed"][-1]))


def grouped(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Return the curves in groups that differ only in their seeds."""
    groups: dict[tuple[int, str], list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: curve.trial.n):
        groups.setdefault((curve.trial.n, curve.trial.allocator), []).append(curve)
    return list(groups.values())


def regret_report(experiment: Experiment, curves: Sequence[Curve]) -> PaperReport:
    """Return regret and fits, with mean and deviation over the seeds."""
    records = [_record(group) for group in grouped(curves)]
    notes = [*_notes(experiment), total_time_text([curve.elapsed for curve in curves])]
    lines = [
        [
            *run_cells(r),
            with_deviation(r["regret"], r["regret_deviation"], ",.0f"),
            with_deviation(r["slope"], r["slope_deviation"], ",.0f"),
            f"{r['r2_log']:.4f}",
            f"{r['r2_linear']:.4f}",
        ]
        for r in records
    ]
    title = experiment.heading(f"{experiment.rounds:,} rounds")
    return PaperReport(experiment.name, title, HEADER, lines, notes, records)


def _record(curves: Sequence[Curve]) -> Record:
    trial = curves[0].trial
    regret = [float(curve.regret[-1]) for curve in curves]
    slopes, logs, lines = zip(*(curve.fit() for curve in curves), strict=True)
    return {
        "law": trial.law,
        "n": trial.n,
        "allocator": trial.allocator,
        "rounds": int(curves[0].rounds[-1]),
        **dict.fromkeys((*RATIOS, *(f"paper_{key}" for key in RATIOS))),  # there is no greedy baseline here
        "regret": fmean(regret),
        "regret_deviation": deviation(regret),
        "slope": fmean(slopes),
        "slope_deviation": deviation(slopes),
        "r2_log": fmean(logs),
        "r2_linear": fmean(lines),
        "seeds": len(curves),
    }


def _notes(experiment: Experiment) -> Iterator[str]:
    yield (
        "Regret is that of the paper's proxy loss, max a_i mu_i, summed over the rounds. Lines are fitted to "
        "the last two decades of rounds for each seed: an R2 near 1 against ln k, and a lower one against k, "
        "means logarithmic growth."
    )
    values = experiment.alphas()
    yield f"The paper gives no alpha here: ata uses twice the largest mean ({values}), ata-half half of that."
    yield "The paper prints no numbers for this experiment, and says that the regret grows logarithmically."
    if not has_numba():
        yield "The rounds ran in Python; pip install 'mpi-ata[paper]' to compile them, far faster."


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the regret over the rounds, with bars of one standard deviation over the seeds."""
    workers = sorted({curve.trial.n for curve in curves})
    figure, [panels] = figures.new_figure(1, len(workers), width=6.0, height=4.0)
    for n, axes in zip(workers, panels, strict=True):
        for group in grouped([curve for curve in curves if curve.trial.n == n]):
            name, rounds = group[0].trial.allocator, group[0].rounds
            regret, colour = np.array([curve.regret for curve in group]), figures.COLOURS.get(name)
            axes.errorbar(rounds, regret.mean(0), regret.std(0), color=colour, label=name, capsize=2)
        axes.set(title=f"n = {n}", xlabel="round k", ylabel="cumulative regret", xscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
    figures.save(figure, path)
