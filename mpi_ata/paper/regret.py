"""The paper's experiment on regret: how it grows with the rounds, and how well ln k fits that."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from mpi_ata.arrays import Array, State
from mpi_ata.errors import UsageError
from mpi_ata.paper import figures
from mpi_ata.paper.bandit import has_numba, play_bandit
from mpi_ata.paper.experiments import LEARNERS, Experiment, PaperRequest, Trial, learns
from mpi_ata.paper.figures import PaperReport, Record
from mpi_ata.paper.pretrained import save_learned
from mpi_ata.paper.trials import ReportRounds, TrialResult, Watch, on_cores
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.plots import save_figure

HEADER = ["allocator", "n", "rounds", "regret", "slope against ln k", "R2 against ln k", "R2 against k"]
MIN_ROUNDS = 100


def fit(history: State) -> tuple[float, float, float]:
    """Fit the last two decades, and return the slope against ln k, its R2, and the R2 of a line in k."""
    late = history["round"] >= history["round"][-1] / 100
    k, regret = history["round"][late], history["regret"][late]
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
    results = on_cores(partial(play, marks=log_spaced(rounds)), experiment.trials(), request.cores, watch)
    return regret_report(experiment, results).with_figure(request.out, partial(draw, results))


def log_spaced(rounds: int) -> list[int]:
    """Return numbers of rounds evenly spaced on a logarithmic scale, 20 per decade."""
    count = 1 + int(20 * np.log10(rounds))
    return sorted({round(mark) for mark in np.geomspace(1, rounds, count)})


def play(trial: Trial, report: ReportRounds, marks: Sequence[int]) -> TrialResult:
    """Play the bandit of a trial, or load it if it was saved, and return its regret."""
    if trial.out is not None and RunFile(trial.out).exists():
        history = load_record(RunFile(trial.out))[0].trace
    else:
        *_, learned = play_bandit(trial.job(), marks, report)
        if trial.out is not None:
            save_learned(learned, trial, trial.out)
        history = learned.trace.history()
    return TrialResult(trial, {"elapsed": float(history["elapsed"][-1])}, history)


def by_kind(results: Sequence[TrialResult]) -> list[list[TrialResult]]:
    """Return the runs in groups that differ only in their seeds."""
    ordered = sorted(results, key=lambda result: result.trial.n)
    return list(figures.grouped(ordered, lambda trial: (trial.n, trial.allocator)).values())


def regret_report(experiment: Experiment, results: Sequence[TrialResult]) -> PaperReport:
    """Return regret and fits, with mean and deviation over the seeds."""
    records = [_record(group) for group in by_kind(results)]
    notes = [*_notes(experiment), figures.total_time(results)]
    lines = [
        [
            *figures.run_cells(r),
            figures.with_deviation(r, "regret", ",.0f"),
            figures.with_deviation(r, "slope", ",.0f"),
            f"{r['r2_log']:.4f}",
            f"{r['r2_linear']:.4f}",
        ]
        for r in records
    ]
    title = experiment.heading(f"{experiment.rounds:,} rounds")
    return PaperReport(experiment.name, title, HEADER, lines, notes, records)


def _record(results: Sequence[TrialResult]) -> Record:
    trial, histories = results[0].trial, [result.history for result in results]
    slopes, logs, lines = zip(*map(fit, histories), strict=True)
    return {
        **figures.described(trial, int(histories[0]["round"][-1])),  # there is no greedy baseline here
        **figures.averaged("regret", [float(history["regret"][-1]) for history in histories]),
        **figures.averaged("slope", slopes),
        "r2_log": fmean(logs),
        "r2_linear": fmean(lines),
        "seeds": len(results),
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


def draw(results: Sequence[TrialResult], path: Path) -> None:
    """Draw the regret over the rounds, with bars of one standard deviation over the seeds."""
    groups = figures.by_workers(results)
    figure, [panels] = figures.new_figure(1, len(groups), width=6.0, height=4.0)
    for (title, group), axes in zip(groups.items(), panels, strict=True):
        for runs in by_kind(group):
            name, regret = runs[0].trial.allocator, np.array([run.history["regret"] for run in runs])
            rounds, colour = runs[0].history["round"], figures.COLOURS.get(name)
            axes.errorbar(rounds, regret.mean(0), regret.std(0), color=colour, label=name, capsize=2)
        axes.set(title=title, xlabel="round k", ylabel="cumulative regret", xscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
    save_figure(figure, path, dpi=figures.DPI)
