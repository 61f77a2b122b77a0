"""The folder of a submission: its Slurm jobs, a record of every start, and what they cost."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.errors import RunError
from mpi_ata.runfile.progress import Progress
from mpi_ata.slurm.batch import Batch, should_requeue
from mpi_ata.slurm.lead import measured_lead
from mpi_ata.slurm.slurm_job import SlurmJob, array_members
from mpi_ata.slurm.start import check_progress
from mpi_ata.slurm.submission_dir import Attempt, Manifest, SubmissionDir, billed_core_seconds
from mpi_ata.slurm.submitted_runs import matching_jobs


def test_a_record_line_that_a_kill_cut_off_is_skipped(tmp_path: Path) -> None:
    submission_dir, run = SubmissionDir(tmp_path), Path("a.h5")
    first = Attempt("7", 100.0, 8, 0)
    submission_dir.record_attempt(run, first)
    submission_dir.record_attempt(run, replace(first, ended=160.0, end="requeued"))
    submission_dir.record_attempt(run, Attempt("7", 200.0, 8, 50))
    with (tmp_path / "a.attempts").open("a") as file:
        file.write('{"job": "7", "beg')
    found = [(a.began, a.ended, a.rounds) for a in submission_dir.attempts(run)]
    assert found == [(100, 160, 0), (200, None, 50)]


def test_a_killed_start_is_billed_until_it_was_last_seen() -> None:
    killed, second = Attempt("7", 100.0, 8, 0), Attempt("7", 200.0, 4, 50, ended=250.0)
    assert billed_core_seconds([killed, second], last_seen=240.0) == 8 * 100 + 4 * 50
    assert billed_core_seconds([killed], last_seen=130.0) == 8 * 30
    assert billed_core_seconds([killed], last_seen=None) == 0


def batch(folder: Path) -> Batch:
    return Batch(Path("job.toml"), folder / "run.h5", SubmissionDir(folder))


def test_a_fourth_start_at_the_same_round_is_rejected(tmp_path: Path) -> None:
    for number, rounds in enumerate([0, 40, 40, 40]):
        check_progress(batch(tmp_path), Progress(rounds=rounds), "7")
        batch(tmp_path).submission_dir.record_attempt(tmp_path / "run.h5", Attempt("7", number, 8, rounds))
    with pytest.raises(RunError, match="3 starts in a row got no further than round 40"):
        check_progress(batch(tmp_path), Progress(rounds=40), "7")
    check_progress(batch(tmp_path), Progress(rounds=41), "7")
    check_progress(batch(tmp_path), Progress(rounds=40), "8")  # submitted again


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "expected"),
    [
        ("RUNNING", "None", 0, True),  # the launcher has ended, and Slurm does not know yet
        ("RUNNING", "None", 1, False),  # requeued already
        ("COMPLETING", "TimeLimit", 0, True),
        ("COMPLETING", "None", 0, False),  # cancelled
        ("COMPLETING", "None", 1, False),  # requeued by Slurm, as after preemption or the loss of a node
        ("CANCELLED", "None", 0, False),
    ],
)
def test_only_interrupted_jobs_are_requeued(
    tmp_path: Path, state: str, reason: str, restarts: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    job = SlurmJob("7", state, reason, restarts)
    assert should_requeue(batch(tmp_path), job) == expected
    assert not should_requeue(replace(batch(tmp_path), requeue=False), job)
    batch(tmp_path).submission_dir.stop_file(tmp_path / "run.h5").touch()
    assert not should_requeue(batch(tmp_path), job)


def test_ids_of_array_members_are_parsed() -> None:
    assert array_members("12_3") == [3]
    assert array_members("12_[4-6,9%2]") == [4, 5, 6, 9]
    assert array_members("12") == []


def test_an_id_matches_one_job_or_all_members_of_an_array() -> None:
    jobs = [SlurmJob(id) for id in ("7", "12_1", "12_[2-3]")]
    assert matching_jobs(jobs, "7") == jobs[:1]
    assert matching_jobs(jobs, "12") == jobs[1:]
    assert matching_jobs(jobs, "12_1") == jobs[1:2]
    assert matching_jobs(jobs, "1") == []


def test_a_manifest_lists_earlier_jobs(tmp_path: Path) -> None:
    submission_dir = SubmissionDir(tmp_path)
    submission_dir.record_jobs(["3"], [Path("/a.h5")])
    submission_dir.record_jobs(["3", "4"], [Path("/a.h5")])
    submission_dir.record_jobs(["9"], [Path("/a.h5")])
    assert submission_dir.manifest() == Manifest(jobs=("9",), runs=(Path("/a.h5"),), past=("3", "4"))


def test_the_time_left_is_that_until_the_end_or_the_time_limit() -> None:
    assert SlurmJob("1", end_time=time.time() + 100).time_left == pytest.approx(100, abs=5)
    assert SlurmJob("1", time_limit=60.0, run_time=50.0).time_left == 10
    assert SlurmJob("1").time_left is None


def test_the_lead_grows_with_the_measured_time_of_rounds_and_saves() -> None:
    measured = Progress(rounds=10, elapsed=100.0, saving=5.0)
    assert measured_lead(measured, 7200.0) == 10 + 3 * (10 + 5)
    assert measured_lead(measured, 60.0) == 30  # at least half of the time is for work
    assert measured_lead(Progress(), 7200.0) == measured_lead(Progress(), None) == 60
    assert measured_lead(Progress(), 60.0) == 15
