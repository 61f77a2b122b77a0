"""The folder of a submission: copies of the user's files, its Slurm jobs, every start and what it cost."""

from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.batch.submission_dir import Attempt, JobCopy, Manifest, SubmissionDir, billed_core_seconds
from mpi_ata.job import load_job
from mpi_ata.job.build import build_problem
from tests.slurm.site import MEASURED, OWN


def test_a_record_line_that_a_kill_cut_off_is_skipped(tmp_path: Path) -> None:
    submission_dir, run = SubmissionDir(tmp_path), Path("a.h5")
    first = Attempt("7", 100.0, 8, 0)
    for attempt in (first, replace(first, ended=160.0, end="requeued"), Attempt("7", 200.0, 8, 50)):
        submission_dir.record_attempt(run, attempt)
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
    for ids in (["3"], ["3", "4"], ["9"]):
        submission_dir.record_jobs(ids, [Path("/a.h5")])
    assert submission_dir.manifest() == Manifest(jobs=("9",), runs=(Path("/a.h5"),), past=("3", "4"))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job whose problem is in another folder, and imports a module and a package next to it."""
    problems, path = tmp_path / "home" / "problems", tmp_path / "home" / "jobs" / "own.toml"
    files = {
        "own.py": OWN,
        "neighbour.py": "from package.deep import gradient\n",
        "package/__init__.py": "",
        "package/deep.py": "def gradient(x):\n    return x\n",
        "stranger.py": "raise SystemExit",
    }
    (problems / "package").mkdir(parents=True)
    for name, text in files.items():
        (problems / name).write_text(text)
    path.parent.mkdir()
    path.write_text(MEASURED.format(rounds=3, seconds=0.0).replace('"own.py"', '"../problems/own.py"'))
    return path


def sizes(job: Path, *members: tuple[str, ...]) -> list[int]:
    """Copy a job, break the originals, and return the size of x0 in each member."""
    originals = [*job.parents[2].rglob("*.py"), *job.parents[2].rglob("*.toml")]
    copies = JobCopy.of([load_job(job, member) for member in members], job.parents[2] / "copy")
    copies.make()
    for path in originals:
        path.write_text("raise SystemExit")
    both = [(*member, *more) for member, more in zip(members, copies.settings, strict=True)]
    return [build_problem(load_job(copies.jobs[0], settings)).x0.size for settings in both]


def test_a_copy_contains_what_the_job_needs_and_nothing_else(job: Path, tmp_path: Path) -> None:
    assert sizes(job, ()) == [3]
    copies = [path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*.*")]
    assert {path.as_posix() for path in copies if path.parent.name != "__pycache__"} == {
        "jobs/own.toml",
        "problems/own.py",
        "problems/neighbour.py",
        "problems/package/__init__.py",
        "problems/package/deep.py",
    }


def test_each_member_of_a_sweep_has_its_own_file_by_whatever_path(job: Path) -> None:
    problems = job.parents[1] / "problems"
    (problems / "other.py").write_text(OWN.replace("np.ones(3)", "np.ones(5)"))
    members = [("problem.file=../problems/own.py",), (f"problem.file={problems}/other.py",)]
    assert sizes(job, *members) == [3, 5]


def test_the_file_of_an_update_is_copied_too(job: Path, tmp_path: Path) -> None:
    (job.parent / "moves.py").write_text("class Own:\n    def __call__(self, x, g):\n        return x - g\n")
    sizes(job, ("method.update_file=moves.py", "method.update_class=Own"))
    assert (tmp_path / "copy" / "jobs" / "moves.py").exists()


def test_links_are_followed(job: Path, tmp_path: Path) -> None:
    problems = tmp_path / "home" / "problems"
    problems.rename(tmp_path / "elsewhere")
    problems.symlink_to(tmp_path / "elsewhere")
    assert sizes(job, ()) == [3]
