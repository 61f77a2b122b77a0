"""All allocators on real machines: totals after few and many rounds, divided by those of the oracle."""

import math
from pathlib import Path

import numpy as np
import pytest

from mpi_ata import Trace
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.job.component import ALLOCATORS, MACHINES
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import Experiment, PaperRequest, Trial, alpha
from mpi_ata.paper.machines import SIZES, experiment_for, marks_until, real_report
from mpi_ata.paper.trials import TrialResult
from mpi_ata.times import lonestar6
from tests.driver.driven import Watching
from tests.paper.called import called, records, rejected

SHORT = ("--workers", "6", "--budget", "4")


def test_all_machines_and_all_allocators_of_the_package_are_compared() -> None:
    found = records("real", "--rounds", "3", *SHORT)
    assert {(r["law"], r["allocator"]) for r in found} == {
        (law, name) for law in MACHINES for name in (*ALLOCATORS, "mindflayer")
    }
    assert set(SIZES) == set(MACHINES)
    assert {(r["n"], r["budget"], r["rounds"], r["seeds"]) for r in found} == {(6, 4, 3, 1)}


def totals_by_round(trial: Trial) -> dict[int, tuple[float, float]]:
    """Return clock and worker time after each round of a run."""
    seen: dict[int, tuple[float, float]] = {}

    def look(trace: Trace) -> None:
        seen[trace.round] = trace.clock, trace.worker_time

    execute(Plan(trial.job()), [Watching(look)])
    return seen


def test_ratios_are_those_of_single_runs_after_each_mark() -> None:
    found = records("real", "--laws", "bytedance-ar", "--rounds", "130", "--allocators", "gta", *SHORT)
    request = PaperRequest(workers=(6,), budget=4, rounds=130, allocators=("gta",))
    totals: dict[tuple[str, int], tuple[float, float]] = {}
    for trial in experiment_for("bytedance-ar").with_request(request).trials():
        seen = totals_by_round(trial)
        totals |= {(trial.allocator, mark): seen[mark] for mark in (100, 130)}
    assert [(r["allocator"], r["rounds"]) for r in found] == list(totals)
    for record in found:
        own, oracle = (totals[name, record["rounds"]] for name in (record["allocator"], "ofta"))
        assert record["clock_to_ofta"] == own[0] / oracle[0]
        assert record["worker_time_to_ofta"] == own[1] / oracle[1]


def test_the_last_mark_is_the_last_round() -> None:
    assert marks_until(26_000) == [100, 1_000, 26_000]
    assert marks_until(5_000) == [100, 1_000, 5_000]
    assert marks_until(100) == [100]
    assert marks_until(7) == [7]


def result_of(experiment: Experiment, name: str, seed: int, clock: float) -> TrialResult:
    trial = next(t for t in experiment.trials() if (t.allocator, t.seed) == (name, seed))
    columns = {"round": [0, 2], "clock": [0.0, clock], "worker_time": [0.0, 2 * clock]}
    return TrialResult(trial, {"elapsed": 1.0}, {name: np.array(column) for name, column in columns.items()})


def test_the_table_shows_mean_and_deviation_over_the_seeds() -> None:
    request = PaperRequest(rounds=2, seeds=2, allocators=("uta",))
    experiment = experiment_for("bytedance-ar").with_request(request)
    clocks = {("ofta", 1): 1.0, ("ofta", 2): 2.0, ("uta", 1): 3.0, ("uta", 2): 4.0}
    report = real_report([experiment], [result_of(experiment, *key, clock) for key, clock in clocks.items()])
    assert report.header == ["law", "n", "B", "allocator", "clock, 2", "worker time, 2"]
    spread = f"2.50 ± {math.sqrt(0.5):.2f}"
    assert report.lines[1] == ["bytedance-ar", "16", "16", "uta", spread, spread]
    assert "ratios to ofta, 2 seeds, mean ± standard deviation" in report.text()
    assert "biased sample" not in report.text(), "it is not about this law"


def test_alpha_is_that_of_the_workers_that_the_seed_draws() -> None:
    request = PaperRequest(seeds=2, allocators=("ata",))
    trials = [t for t in experiment_for("lonestar6").with_request(request).trials() if t.allocator == "ata"]
    for trial in trials:
        wanted = 2 * lonestar6(64, seed=trial.seed).means.max()
        assert alpha("lonestar6", 64, seed=trial.seed) == wanted
        assert trial.job().tables["allocator"]["alpha"] == pytest.approx(wanted)


def test_any_law_can_be_named_and_the_bias_of_first_finishers_is_noted() -> None:
    done = called("real", "--laws", "sqrt, bytedance-se", "--rounds", "5", "--allocators", "gta")
    assert done.exit_code == 0, done.output
    cells = [line.split()[:4] for line in done.stdout.splitlines()[4:8]]
    sizes = (["sqrt", "51", "23"], ["bytedance-se", "32", "128"])
    assert cells == [[*size, name] for size in sizes for name in ("ofta", "gta")]
    assert "biased sample" in " ".join(done.stdout.split())


@pytest.mark.skipif(not figures.available(), reason="matplotlib is not installed")
def test_saved_runs_are_not_repeated_and_give_the_same_ratios(tmp_path: Path) -> None:
    arguments = ("real", "--laws", "bytedance-ar", "--rounds", "120", "--allocators", "uta", "--out")
    first = records(*arguments, str(tmp_path))
    saved = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.h5")}
    assert {path.name for path in saved} == {
        f"real-bytedance-ar-n16-B16-{name}-seed1.h5" for name in ("ofta", "uta")
    }
    assert records(*arguments, str(tmp_path)) == first
    assert {path: path.stat().st_mtime_ns for path in saved} == saved
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--laws", "lonestar7"], "unknown law 'lonestar7' in --laws; valid names: constant,"),
        (["--laws", ""], "unknown law '' in --laws"),
        (["--allocators", "fastest"], "unknown allocator 'fastest'; valid names: ata,"),
        (["--rounds", "400001"], "--rounds 400001 must be at most 400,000 here"),
    ],
)
def test_wrong_options_are_rejected_with_the_rule(arguments: list[str], sentence: str) -> None:
    rejected(sentence, "real", *arguments)
