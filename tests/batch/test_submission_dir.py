"""The folder of a submission: its Slurm jobs, a record of every start, and what they cost."""

from dataclasses import replace
from pathlib import Path

from mpi_ata.batch.submission_dir import Attempt, Manifest, SubmissionDir, billed_core_seconds


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


def test_a_manifest_lists_earlier_jobs(tmp_path: Path) -> None:
    submission_dir = SubmissionDir(tmp_path)
    submission_dir.record_jobs(["3"], [Path("/a.h5")])
    submission_dir.record_jobs(["3", "4"], [Path("/a.h5")])
    submission_dir.record_jobs(["9"], [Path("/a.h5")])
    assert submission_dir.manifest() == Manifest(jobs=("9",), runs=(Path("/a.h5"),), past=("3", "4"))
