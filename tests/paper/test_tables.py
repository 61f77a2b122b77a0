"""The paper's tables: our ratios next to the printed ones, with the choices made here."""

import math
from pathlib import Path

import pytest

from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.job.build import build_allocator, build_times
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import MIX, REGRET, TABLE1, TABLE2, Experiment, PaperRequest, Trial, alpha
from mpi_ata.paper.figures import ratios
from mpi_ata.paper.ratios import ranks_report, ratio_report
from mpi_ata.paper.trials import TrialResult
from tests.paper.called import called, records, rejected

NAMES = ["gta", "ofta", "uta", "ata", "ata-half", "ata-empirical"]
RATIOS = ["worker_time_ratio", "runtime_ratio", "paper_worker_time_ratio", "paper_runtime_ratio"]
KEYS = {"law", "n", "allocator", "rounds", *RATIOS}


def make_result(
    n: int, name: str, seed: int, worker_time: float, clock: float, gap: float = 9e-6
) -> TrialResult:
    """Return a made-up result of a run."""
    numbers = {"worker_time": worker_time, "clock": clock, "rounds": 100 * seed, "gap": gap, "loss": None}
    trial = Trial("sqrt", n, name, seed, 40_000, Path("quadratic.toml"))
    return TrialResult(trial, numbers | {"evaluation": {}, "elapsed": 20.0}, {})


RESULTS = [
    make_result(51, "gta", 1, worker_time=300.0, clock=10.0),
    make_result(51, "gta", 2, worker_time=320.0, clock=11.0),
    make_result(51, "ata-half", 1, worker_time=100.0, clock=20.0),
    make_result(51, "ata-half", 2, worker_time=80.0, clock=33.0, gap=0.1),
    *(make_result(17, "gta", seed, worker_time=6.0, clock=1.0) for seed in (1, 2)),
    *(make_result(17, "ata-half", seed, worker_time=5.0, clock=1.5) for seed in (1, 2)),
]


def test_ratios_are_taken_seed_by_seed_and_averaged() -> None:
    *_, record = ratios(RESULTS, budget=23)
    known = ("law", "n", "allocator", "rounds", "seeds")
    assert [record[key] for key in known] == ["sqrt", 51, "ata-half", 150, 2]
    assert record["worker_time_ratio"] == (300 / 100 + 320 / 80) / 2
    assert record["runtime_ratio"] == (20 / 10 + 33 / 11) / 2
    assert record["worker_time_ratio_deviation"] == pytest.approx(math.sqrt(0.5))
    assert (record["paper_worker_time_ratio"], record["paper_runtime_ratio"]) == (2.91, 2.43)


def test_ratios_of_greedy_allocation_are_one_and_rows_are_sorted_by_workers() -> None:
    found = ratios(RESULTS, budget=23)
    kinds = [(n, name) for n in (17, 51) for name in ("gta", "ata-half")]
    assert [(r["n"], r["allocator"]) for r in found] == kinds
    assert all(r[key] == 1 for r in found if r["allocator"] == "gta" for key in RATIOS[:2])
    other = ratios(RESULTS, budget=10)
    assert {r[key] for r in other for key in RATIOS[2:]} == {None}, "the paper does not print these"


def test_the_table_shows_spread_difference_and_a_target_that_was_missed() -> None:
    report = ratio_report(TABLE1, RESULTS)
    last = report.text().splitlines()[7]
    assert " ".join(last.split()) == "ata-half 51 150 3.50 ± 0.71 2.91 +20.3 % 2.50 ± 0.71 2.43 +2.9 %"
    assert "The target was not reached by ata-half at n = 51" in " ".join(report.text().split())
    assert "The 8 runs took 2 min 40 s in total." in report.text()
    assert "| ata-half | 51 | 150 | 3.50 ± 0.71 | 2.91 | +20.3 % |" in report.markdown()


@pytest.mark.parametrize(
    ("law", "n", "value"),
    [
        ("sqrt", 51, 4 * 29 * math.sqrt(51)),
        ("linear", 51, 4 * 29 * 51),
        ("mix", 45, 4 * 29 * (45 - 4)),
        ("exponential", 20, 80),
    ],
)
def test_alpha_is_the_papers_or_its_analogue(law: str, n: int, value: float) -> None:
    assert alpha(law, n) == pytest.approx(value)
    assert alpha(law, n, half=True) == pytest.approx(value / 2)


@pytest.mark.parametrize("experiment", [TABLE1, TABLE2, MIX, REGRET], ids=lambda e: e.name)
def test_every_run_of_an_experiment_can_be_built_as_described(experiment: Experiment) -> None:
    for trial in experiment.trials():
        job = trial.job()
        assert job.times is not None
        n = job.run.workers or 0
        assert (n, job.run.seed, job.stop.gap) == (trial.n, trial.seed, 1e-5)
        allocator = build_allocator(job, n, build_times(job, n))
        assert allocator is not None
        assert (allocator.n, allocator.budget) == (trial.n, experiment.budget)
        if trial.allocator.startswith("ata") and trial.allocator != "ata-empirical":
            assert getattr(allocator, "alpha", None) == alpha(trial.law, n, trial.allocator == "ata-half")


def test_table1_has_the_numbers_of_the_single_runs() -> None:
    found = records("table1", "--workers", "5,3", "--rounds", "30", "--budget", "7", "--seed", "4")
    assert [(r["n"], r["allocator"]) for r in found] == [(n, name) for n in (3, 5) for name in NAMES]
    assert all(set(record) >= KEYS for record in found)
    trials = TABLE1.with_request(PaperRequest(workers=(5,), rounds=30, budget=7, first_seed=4)).trials()
    by_hand = {trial.allocator: execute(Plan(trial.job())).trace for trial in trials}
    for record in found[len(NAMES) :]:
        trace, greedy = by_hand[record["allocator"]], by_hand["gta"]
        assert record["rounds"] == 30
        assert record["worker_time_ratio"] == greedy.worker_time / trace.worker_time
        assert record["runtime_ratio"] == trace.clock / greedy.clock


@pytest.mark.parametrize(("table", "law"), [("table2", "linear"), ("mix", "mix")])
def test_the_other_tables_have_their_own_laws_and_explain_their_choices(table: str, law: str) -> None:
    done = called(table, "--workers", "5", "--rounds", "20", "--allocators", "ata-half")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert f"{law} law, B = 23" in text
    assert "alpha is twice the largest mean" in text
    assert "d = 100, x0 = 0" in text
    assert [line.split()[0] for line in done.stdout.splitlines()[4:6]] == ["gta", "ata-half"]
    assert ("lognormal" in text) == (law == "mix")


@pytest.mark.slow
def test_a_folder_gets_the_figure(tmp_path: Path) -> None:
    if not figures.available():
        pytest.skip("matplotlib is not installed")
    out = tmp_path / "results" / "new"
    done = called("table1", "--workers", "3,4", "--rounds", "40", "--out", str(out), "--markdown")
    assert done.exit_code == 0, done.output
    assert "| ofta | 3 | 40 |" in done.stdout
    assert done.stdout.endswith(f"]({out / 'table1.png'})\n")
    assert (out / "table1.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_or_a_folder_a_note_says_how_to_get_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)
    for folder, note in ((tmp_path, "pip install 'mpi-ata[plot]'"), (None, "Use --out FOLDER")):
        report = ratio_report(TABLE1, RESULTS).with_figure(folder, lambda path: path.touch())
        assert note in report.text()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--allocators", "gta,fastest"], "unknown allocator 'fastest'; valid names: ata,"),
        (["--workers", "17,0"], "'17,0' is not a list of whole numbers from 1 on, such as 17,51"),
        (["--workers", ""], "'' is not a list of whole numbers"),
        (["--allocators", ""], "unknown allocator ''; valid names: ata,"),
        (["--out", "/dev/null/folder"], "--out /dev/null/folder: cannot create this folder"),
        (["--budget", "0"], "0 is not in the range x>=1"),
        (["--law", "cubic"], "'cubic' is not one of"),
    ],
)
def test_invalid_options_are_rejected_with_the_rule(arguments: list[str], sentence: str) -> None:
    rejected(sentence, "table1", *arguments)


def test_ratios_on_ranks_are_compared_with_simulated_ones() -> None:
    ranks = [make_result(17, "gta", 1, 6.0, 1.0), make_result(17, "ofta", 1, 5.0, 1.5)]
    virtual = [make_result(17, "gta", 1, 6.0, 1.0), make_result(17, "ofta", 1, 4.0, 1.2)]
    report = ranks_report(TABLE1.with_request(PaperRequest(workers=(17,))), ranks, virtual)
    found = report.records[1]
    assert (found["virtual_worker_time_ratio"], found["worker_time_ratio"]) == (1.5, 1.2)
    assert " ".join(report.lines[1]) == "ofta 17 100 1.20 1.50 -20.0 % 1.50 1.20 +25.0 %"
