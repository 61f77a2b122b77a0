"""The experiment on regret: meaningful fits, and the same regret as in runs."""

from pathlib import Path

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import REGRET, Trial
from mpi_ata.paper.regret import fit, log_spaced, regret_report
from mpi_ata.paper.trials import TrialResult
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.paper.called import records, rejected

PLAN = Trial("exponential", 20, "ata", 1, 100_000, Path("x.toml"))
ROUNDS = np.array(log_spaced(100_000))


def result(regret: Array) -> TrialResult:
    """Return a made-up result of a run."""
    return TrialResult(PLAN, {"elapsed": 0.0}, {"round": ROUNDS, "regret": regret})


def test_logarithmic_growth_is_distinguished_from_linear_growth() -> None:
    slope, log, line = fit(result(7 * np.log(ROUNDS) + 3).history)
    assert [slope, log] == pytest.approx([7, 1])
    assert line < 0.9
    slope, log, line = fit(result(2.0 * ROUNDS).history)
    assert line == pytest.approx(1)
    assert log < 0.9


def test_only_the_last_two_decades_are_fitted() -> None:
    regret = np.where(ROUNDS < 1000, 0.0, 7 * np.log(ROUNDS))
    assert fit(result(regret).history)[:2] == pytest.approx((7, 1))


def test_marks_are_whole_rounds_evenly_log_spaced_from_the_first_to_the_last() -> None:
    marks = log_spaced(1_000_000)
    assert (marks[0], marks[-1]) == (1, 1_000_000)
    assert marks == sorted(set(marks))
    assert np.diff(np.log(marks[60:])).tolist() == pytest.approx(
        [np.log(10) / 20] * (len(marks) - 61), rel=0.01
    )


def test_the_report_has_mean_and_deviation_over_the_seeds() -> None:
    report = regret_report(REGRET, [result(slope * np.log(ROUNDS)) for slope in (1000.0, 2000.0)])
    (record,) = report.records
    assert record["slope"] == pytest.approx(1500)
    assert record["slope_deviation"] == pytest.approx(500 * np.sqrt(2))
    assert record["regret"] == pytest.approx(1500 * np.log(100_000))
    assert "1,500 ± 707" in report.text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rounds", "99"], "rounds=99 must be at least 100"),
        (["--allocators", "ata,ofta"], "choose some of ata, ata-half, ata-empirical with --allocators"),
    ],
)
def test_what_cannot_be_fitted_is_rejected(arguments: list[str], sentence: str) -> None:
    rejected(sentence, "regret", *arguments)


def test_without_any_regret_the_fit_is_flat() -> None:
    (found,) = records("regret", "--law", "constant", "--rounds", "200", "--allocators", "ata")
    assert (found["regret"], found["slope"], found["r2_log"]) == (0, 0, 1)


def test_the_command_prints_a_record_for_each_allocator_draws_and_reuses_run_files(tmp_path: Path) -> None:
    arguments = ["regret", "--rounds", "150", "--seeds", "2", "--out", str(tmp_path)]
    found = records(*arguments)
    assert [(r["allocator"], r["n"], r["rounds"], r["regret"] > 0) for r in found] == [
        (name, 20, 150, True) for name in ("ata", "ata-half", "ata-empirical")
    ]
    file = RunFile(tmp_path / "bandit-150-exponential-n20-B5-ata-empirical-seed2.h5")
    record, _ = load_record(file)
    assert record.trace["round"].tolist() == log_spaced(150)
    assert record.reason == "150 rounds of the bandit alone"
    assert record.summary["tasks_used"] == 150 * 5
    before = file.path.stat().st_mtime_ns
    assert records(*arguments) == found
    assert file.path.stat().st_mtime_ns == before
    assert (tmp_path / "regret.png").exists() == figures.available()
