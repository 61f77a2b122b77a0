"""All allocators on the recorded speeds of real machines, after few and many rounds, beside the oracle."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from mpi_ata.errors import UsageError
from mpi_ata.job.component import ALLOCATORS, LAWS, MACHINES
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import ATA_HALF, BUDGET, MINDFLAYER, Experiment, PaperRequest
from mpi_ata.paper.figures import (
    PaperReport,
    Record,
    averaged,
    described,
    grouped,
    total_time,
    with_deviation,
)
from mpi_ata.paper.trials import TrialResult, Watch, execute_trial, on_cores

ORACLE = "ofta"
MARKS = (100, 1_000, 26_000)  # rounds
MAX_ROUNDS = 400_000  # beyond that a run thins out its trace, and with it the totals at the first marks
SIZES = {  # workers, and tasks per round
    "lonestar6": (64, 64),
    "longhorn": (300, 64),
    "frontera": (200, 100),
    "gpu-generations": (48, 24),
    "bytedance-ar": (16, 16),
    "bytedance-se": (32, 128),
}
QUANTITIES = ("clock", "worker_time")
WORKER_TIME = figures.Panel(
    "round", "worker time per round", lambda c: (c["round"], c["worker_time"] / c["round"]), log_x=True
)
PANELS = [figures.AVERAGE_TIME, WORKER_TIME]


def make_real(laws: str | None, request: PaperRequest, watch: Watch) -> PaperReport:
    """Run all allocators under each law, and return the report."""
    names = dict.fromkeys(MACHINES if laws is None else map(str.strip, laws.split(",")))
    for name in names:
        if name not in LAWS:
            raise UsageError(f"unknown law {name!r} in --laws; valid names: {', '.join(LAWS)}")
    experiments = [experiment_for(law).with_request(request) for law in names]
    if experiments[0].rounds > MAX_ROUNDS:
        raise UsageError(f"--rounds {experiments[0].rounds} must be at most {MAX_ROUNDS:,} here")
    trials = [trial for experiment in experiments for trial in experiment.trials()]
    trials.sort(key=lambda trial: trial.n, reverse=True)  # the longest first
    results = on_cores(execute_trial, trials, request.cores, watch)
    groups = grouped(results, lambda trial: f"{trial.law}, n = {trial.n}")
    draw = partial(figures.draw_runs, groups, panels=PANELS)
    return real_report(experiments, results).with_figure(request.out, draw)


def experiment_for(law: str) -> Experiment:
    """Return the runs of all allocators under one law."""
    n, budget = SIZES.get(law, (51, BUDGET))
    names = tuple(dict.fromkeys((ORACLE, *ALLOCATORS, MINDFLAYER)))
    title = "Recorded speeds of real machines"
    chosen = Experiment("real", law, (n,), title, budget, "real.toml", names, ORACLE, prefix="real-")
    return replace(chosen, rounds=MARKS[-1])


def real_report(experiments: Sequence[Experiment], results: Sequence[TrialResult]) -> PaperReport:
    """Return clock and worker time of each allocator, divided by those of the oracle."""
    runs = grouped(results, lambda trial: (trial.law, trial.n, trial.allocator))
    records, lines, marks = list[Record](), list[list[str]](), marks_until(experiments[0].rounds)
    for each in experiments:
        for n, name in product(each.workers, each.allocators):
            own, oracle = runs[each.law, n, name], runs[each.law, n, ORACLE]
            row = [_record(own, oracle, mark) | {"budget": each.budget} for mark in marks]
            cells = [with_deviation(record, f"{key}_to_ofta") for key in QUANTITIES for record in row]
            lines.append([each.law, str(n), str(each.budget), name, *cells])
            records += row
    title = f"{experiments[0].title}: ratios to {ORACLE}, {experiments[0].repeats()}"
    columns = [f"{name}, {mark:,}" for name in ("clock", "worker time") for mark in marks]
    header, notes = ["law", "n", "B", "allocator", *columns], [*_notes(records), total_time(results)]
    return PaperReport("real", title, header, lines, notes, records)


def marks_until(rounds: int) -> list[int]:
    """Return after how many rounds ratios are taken, the last of which is `rounds`."""
    return [*(mark for mark in MARKS if mark < rounds), rounds]


def _record(own: Sequence[TrialResult], oracle: Sequence[TrialResult], mark: int) -> Record:
    """Return mean and deviation of the ratios after so many rounds, given the runs of each seed."""
    record = described(own[0].trial, mark) | {"seeds": len(own)}
    for name in QUANTITIES:
        pairs = zip(own, oracle, strict=True)
        record |= averaged(f"{name}_to_ofta", [after(a, mark, name) / after(b, mark, name) for a, b in pairs])
    return record


def after(run: TrialResult, mark: int, name: str) -> float:
    """Return a total of a run after so many rounds."""
    return float(run.history[name][np.searchsorted(run.history["round"], mark)])


def _notes(records: Sequence[Record]) -> Iterator[str]:
    yield (
        f"Columns: clock and worker time after so many rounds, divided by those of {ORACLE}, which knows the "
        "true mean times; below 1.00 is better than it. Rounds compute no gradients."
    )
    yield (
        "Workers are drawn from the recorded GPUs or ranks by the seed. Stopping a task is instant and free "
        "here, which favours gta, m-sync and mindflayer."
    )
    allocators = {record["allocator"] for record in records}
    if allocators & {"ata", ATA_HALF}:
        yield "ata: alpha is twice the largest mean, as in the paper."
    if MINDFLAYER in allocators:
        yield "mindflayer: the method with time limits, with the quotas of ofta."
    if any(record["law"] == "bytedance-se" for record in records):
        yield (
            "bytedance-se: long sequences are slow, so the first B results, which gta and m-sync use, and "
            "those within the limits of mindflayer are a biased sample of the data; allocators whose quotas "
            "sum to B are free of that."
        )
