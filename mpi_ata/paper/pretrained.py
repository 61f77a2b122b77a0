"""The paper's experiment on prior knowledge: runs that warm-start from rounds of the bandit alone."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts
from mpi_ata.paper import figures
from mpi_ata.paper.bandit import BanditState, has_numba, play_bandit
from mpi_ata.paper.experiments import LEARNERS, Experiment, PaperRequest, Trial, learns
from mpi_ata.paper.figures import PaperReport, Record
from mpi_ata.paper.ratios import NETWORK, plain_report, unreached
from mpi_ata.paper.trials import (
    ReportRounds,
    RunsInterruptedError,
    TrialResult,
    Watch,
    execute_trial,
    on_cores,
)
from mpi_ata.runfile.store import RunFile


def save_learned(learned: BanditState, trial: Trial, path: Path) -> None:
    """Save what was learned in a run file."""
    problem, times, method = build_parts(trial.job())
    assert times is not None
    assert method.allocator is not None
    allocator = learned.allocator
    method.k = allocator.k
    method.allocator.restore(allocator.state())
    with closing(VirtualCluster(problem, times)) as cluster:
        cluster.ledger.worker_time[:] = allocator.T
        cluster.ledger.stats.restore(learned.stats)
        recorder = RunRecorder(Plan(trial.job()), RunFile(path), method, cluster, learned.trace)
        recorder.begin([])
        recorder.finish(f"{allocator.k:,} rounds of the bandit alone")
        recorder.save_summary()
        recorder.close()


SEED_OFFSET = 1_000_000  # of pretraining, so that it draws other times than the runs after it


def make_prior(
    experiment: Experiment, request: PaperRequest, priors: Sequence[int], data: Path | None, watch: Watch
) -> PaperReport:
    """Pretrain the allocators by rounds of the bandit, run from there, and return the report."""
    with TemporaryDirectory() as temporary:
        experiment = experiment.with_request(request)
        experiment = replace(experiment, out=experiment.out or Path(temporary))
        if data is not None:
            experiment = experiment.on_cifar(data)
        try:
            results = _run_all(experiment, priors, request.cores, watch)
        except RunsInterruptedError as error:
            raise RunsInterruptedError(error.done, error.runs, resumable=request.out is not None) from None
    return prior_report(experiment, results).with_figure(request.out, partial(draw, results))


def _run_all(
    experiment: Experiment, priors: Sequence[int], processes: int, watch: Watch
) -> list[TrialResult]:
    """Pretrain, then do all runs, with and without prior rounds."""
    trials = experiment.trials()
    build_parts(trials[0].job())  # reports missing data or a missing PyTorch at once
    learners = [trial for trial in trials if learns(trial.allocator)]
    if not learners:
        raise UsageError(f"none of these allocators learns; choose some of {LEARNERS} with --allocators")
    marks = sorted(prior for prior in set(priors) if prior)
    if marks:
        pretraining = [pretraining_trial(trial, marks[-1]) for trial in learners]
        on_cores(partial(pretrain, marks=marks), pretraining, processes, watch)
    warm = [warm_start_plan(trial, mark) for trial in learners for mark in marks]
    cold = [trial for trial in trials if 0 in priors or trial not in learners]
    return on_cores(execute_trial, [*cold, *warm], processes, watch)


def pretraining_trial(trial: Trial, rounds: int) -> Trial:
    """Return the trial of the bandit rounds before a run, which draw other times of the same law."""
    return replace(trial, rounds=rounds, settings=(*trial.settings, f"run.seed={trial.seed + SEED_OFFSET}"))


def pretraining_file(trial: Trial, rounds: int) -> Path:
    """Return the run file for what that many rounds of the bandit learned."""
    assert trial.out is not None
    return trial.out.with_name(f"lesson-{rounds}-{trial.out.name}")


def warm_start_plan(trial: Trial, rounds: int) -> Trial:
    """Return the trial of a run that starts from that many rounds of the bandit."""
    assert trial.out is not None
    out = trial.out.with_name(f"after-{rounds}-{trial.out.name}")
    return replace(trial, prior=rounds, warm_start=pretraining_file(trial, rounds), out=out)


def pretrain(trial: Trial, report: ReportRounds, marks: Sequence[int]) -> None:
    """Play the bandit of a trial, and save what it learned after each of `marks` rounds."""
    if all(pretraining_file(trial, mark).exists() for mark in marks):
        return
    for learned in play_bandit(trial.job(), marks, report):
        path = pretraining_file(trial, learned.trace.round)
        if not path.exists():
            save_learned(learned, trial, path)


def prior_report(experiment: Experiment, results: Sequence[TrialResult]) -> PaperReport:
    """Return ratios by prior rounds, runs without any first."""
    report = plain_report(experiment, results)
    network = "accuracy" in report.records[0]
    rounds = [f"{r['prior']:,}" if learns(r["allocator"]) else "-" for r in report.records]
    return replace(
        report,
        header=[*report.header[:2], "prior rounds", *report.header[2:]],
        lines=[[*line[:2], prior, *line[2:]] for line, prior in zip(report.lines, rounds, strict=True)],
        notes=[*_notes(network, report.records), *report.notes],
    )


def _notes(network: bool, records: Sequence[Record]) -> Iterator[str]:
    if not network:
        yield from unreached(records)
    yield (
        "Prior rounds are rounds of the bandit alone: quotas are decided and task times learned, without "
        "gradients. Runs start from them as with --warm-start. Their times are drawn with another seed."
    )
    if network:
        yield NETWORK
    else:
        yield "The runs are on the quadratic; --data FOLDER uses the network on CIFAR-100, as in the paper."
    yield "The paper prints no numbers for this experiment, only curves that come close to that of ofta."
    if not has_numba():
        yield "Prior rounds ran in Python; pip install 'mpi-ata[paper]' to compile them, far faster."


def draw(results: Sequence[TrialResult], path: Path) -> None:
    """Draw a row of panels per number of prior rounds; allocators that do not learn are in all rows."""
    network = "accuracy" in results[0].summary["evaluation"]
    panels = figures.LOSS_PANELS if network else figures.PANELS[:2]
    groups = {}
    for title, group in figures.by_workers(results).items():
        learners = [result for result in group if learns(result.trial.allocator)]
        for prior in sorted({result.trial.prior for result in learners}):
            shown = [r for r in group if r.trial.prior == prior or not learns(r.trial.allocator)]
            groups[f"{title}, P = {prior:,}"] = shown
    figures.draw_runs(groups, path, panels)
