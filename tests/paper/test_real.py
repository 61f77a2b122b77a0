"""All allocators on real machines: totals after few and many rounds, divided by those of the oracle."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.job.component import ALLOCATORS, MACHINES
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import Experiment, PaperRequest, alpha
from mpi_ata.paper.machines import SIZES, experiment_for, marks_until, real_report
from mpi_ata.paper.trials import TrialResult
from mpi_ata.times import lonestar6
from tests.paper.called import called, records, rejected

SHORT = ("--workers", "6", "--budget", "4")


def test_all_machines_and_all_allocators_of_the_package_are_compared() -> None:
    found = records("real", "--rounds", "3", *SHORT)
    assert {(r["law"], r["allocator"]) for r in found} == {
        (law, name) for law in MACHINES for name in (*ALLOCATORS, "mindflayer")
    }
    assert set(SIZES) == set(MACHINES)
    assert {(r["n"], r["budget"], r["rounds"], r["seeds"]) for r in found} == {(6, 4, 3, 1)}


def test_ratios_are_those_of_single_runs_after_each_mark() -> None:
    found = records("real", "--laws", "bytedance-ar", "--rounds", "130", "--allocators", "gta", *SHORT)
    assert [(r["allocator"], r["rounds"]) for r in found] == list(product(("ofta", "gta"), (100, 130)))
    for record in found:
        rounds = record["rounds"]
        request = PaperRequest(workers=(6,), budget=4, rounds=rounds, allocators=("gta",))
        trials = experiment_for("bytedance-ar").with_request(request).trials()
        totals = {trial.allocator: execute(Plan(trial.job())).trace for trial in trials}
        own, oracle = totals[record["allocator"]], totals["ofta"]
        assert record["clock_to_ofta"] == own.clock / oracle.clock
        assert record["worker_time_to_ofta"] == own.worker_time / oracle.worker_time


def test_the_last_mark_is_the_last_round() -> None:
    marks = {26_000: [100, 1_000, 26_000], 5_000: [100, 1_000, 5_000], 100: [100], 7: [7]}
    assert {rounds: marks_until(rounds) for rounds in marks} == marks


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


def test_saved_runs_give_the_same_ratios(tmp_path: Path) -> None:
    arguments = ("real", "--laws", "bytedance-ar", "--rounds", "120", "--allocators", "uta", "--out")
    first = records(*arguments, str(tmp_path))
    saved = {path.name for path in tmp_path.glob("*.h5")}
    assert saved == {f"real-bytedance-ar-n16-B16-{name}-seed1.h5" for name in ("ofta", "uta")}
    assert records(*arguments, str(tmp_path)) == first
    assert (tmp_path / "real.png").exists() == figures.available()


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
