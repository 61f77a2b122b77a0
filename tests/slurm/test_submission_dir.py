"""What is kept of a submission: who was at it, a record of every start, and what it costs."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.errors import RunError
from mpi_ata.runfile.progress import Progress
from mpi_ata.slurm.batch import Batch, should_requeue
from mpi_ata.slurm.commands import SlurmJob
from mpi_ata.slurm.start import check_progress
from mpi_ata.slurm.status import among, members
from mpi_ata.slurm.submission_dir import Attempt, Manifest, SubmissionDir, billed
from mpi_ata.slurm.watch import needed


def test_a_line_that_a_kill_cut_off_spoils_nothing(tmp_path: Path) -> None:
    kept, run = SubmissionDir(tmp_path), Path("a.h5")
    first = Attempt("7", 100.0, 8, 0)
    kept.note(run, first)
    kept.note(run, replace(first, ended=160.0, end="requeued"))
    kept.note(run, Attempt("7", 200.0, 8, 50))
    with (tmp_path / "a.attempts").open("a") as file:
        file.write('{"job": "7", "beg')
    assert [(a.began, a.ended, a.rounds) for a in kept.attempts(run)] == [(100, 160, 0), (200, None, 50)]


def test_billing_counts_starts_that_were_killed_as_far_as_they_gave_signs() -> None:
    killed, second = Attempt("7", 100.0, 8, 0), Attempt("7", 200.0, 4, 50, ended=250.0)
    assert billed([killed, second], last_sign=240.0) == 8 * 100 + 4 * 50
    assert billed([killed], last_sign=130.0) == 8 * 30
    assert billed([killed], last_sign=None) == 0


def batch(folder: Path) -> Batch:
    return Batch(Path("job.toml"), folder / "run.h5", SubmissionDir(folder))


def test_three_starts_at_the_same_round_are_enough(tmp_path: Path) -> None:
    for number, rounds in enumerate([0, 40, 40, 40]):
        check_progress(batch(tmp_path), Progress(rounds=rounds), "7")
        batch(tmp_path).kept.note(tmp_path / "run.h5", Attempt("7", number, 8, rounds))
    with pytest.raises(RunError, match="3 starts in a row got no further than round 40"):
        check_progress(batch(tmp_path), Progress(rounds=40), "7")
    check_progress(batch(tmp_path), Progress(rounds=41), "7")
    check_progress(batch(tmp_path), Progress(rounds=40), "8")  # submitted anew


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "expected"),
    [
        ("RUNNING", "None", 0, True),  # the launcher has ended, Slurm knows of nothing
        ("RUNNING", "None", 1, False),  # somebody has asked already
        ("COMPLETING", "TimeLimit", 0, True),
        ("COMPLETING", "None", 0, False),  # cancelled
        ("COMPLETING", "None", 1, False),  # requeued by Slurm, as after preemption or the loss of a node
        ("CANCELLED", "None", 0, False),
    ],
)
def test_who_is_started_again(
    tmp_path: Path, state: str, reason: str, restarts: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    job = SlurmJob("7", state, reason, restarts)
    assert should_requeue(batch(tmp_path), job) == expected
    assert not should_requeue(replace(batch(tmp_path), requeue=False), job)
    batch(tmp_path).kept.stopped(tmp_path / "run.h5").touch()
    assert not should_requeue(batch(tmp_path), job)


def test_members_of_an_array_are_read_as_slurm_writes_them() -> None:
    assert members("12_3") == [3]
    assert members("12_[4-6,9%2]") == [4, 5, 6, 9]
    assert members("12") == []


def test_an_id_stands_for_a_job_or_for_all_members_of_an_array() -> None:
    jobs = [SlurmJob(id) for id in ("7", "12_1", "12_[2-3]")]
    assert among(jobs, "7") == jobs[:1]
    assert among(jobs, "12") == jobs[1:]
    assert among(jobs, "12_1") == jobs[1:2]
    assert among(jobs, "1") == []


def test_a_submission_remembers_earlier_ones(tmp_path: Path) -> None:
    kept = SubmissionDir(tmp_path)
    kept.submit(["3"], [Path("/a.h5")])
    kept.submit(["3", "4"], [Path("/a.h5")])
    kept.submit(["9"], [Path("/a.h5")])
    assert kept.submitted() == Manifest(jobs=("9",), runs=(Path("/a.h5"),), past=("3", "4"))


def test_a_time_is_up_when_slurm_says_so() -> None:
    assert SlurmJob("1", ends=time.time() + 100).left == pytest.approx(100, abs=5)
    assert SlurmJob("1", time_limit=60.0, run_time=50.0).left == 10
    assert SlurmJob("1").left is None


def test_a_run_is_told_as_early_as_its_rounds_and_saves_need() -> None:
    measured = Progress(rounds=10, elapsed=100.0, saving=5.0)
    assert needed(measured, 7200.0) == 10 + 3 * (10 + 5)
    assert needed(measured, 60.0) == 30  # at least half of the time is for work
    assert needed(Progress(), 7200.0) == needed(Progress(), None) == 60
    assert needed(Progress(), 60.0) == 15
