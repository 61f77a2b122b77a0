"""JobCopy of a job do not depend on the original files any more."""

from pathlib import Path

import pytest

from mpi_ata.batch.submission_dir import JobCopy
from mpi_ata.job import load_job
from mpi_ata.job.build import build_problem
from tests.slurm.site import MEASURED, OWN

UPDATE = """
class Own:
    def __init__(self, step_size: float):
        self.step_size = step_size

    def __call__(self, x, g):
        return x - self.step_size * g
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job whose problem is in another folder, and imports a module and a package next to it."""
    problems = tmp_path / "home" / "problems"
    (problems / "package").mkdir(parents=True)
    (problems / "own.py").write_text(OWN)
    (problems / "neighbour.py").write_text("from package.deep import gradient\n")
    (problems / "package" / "__init__.py").write_text("")
    (problems / "package" / "deep.py").write_text("def gradient(x):\n    return x\n")
    (problems / "stranger.py").write_text("raise SystemExit")
    path = tmp_path / "home" / "jobs" / "own.toml"
    path.parent.mkdir()
    path.write_text(MEASURED.format(rounds=3, seconds=0.0).replace('"own.py"', '"../problems/own.py"'))
    return path


def spoil(folder: Path) -> None:
    """Break all files in a folder, so that a test fails if one of them is still read."""
    for path in [*folder.rglob("*.py"), *folder.rglob("*.toml")]:
        path.write_text("raise SystemExit")


def copy_and_spoil(job: Path, *members: tuple[str, ...]) -> JobCopy:
    """Copy a job, and break the originals."""
    copies = JobCopy.of(
        [load_job(job, member) for member in members or [()]], job.parent.parent.parent / "copy"
    )
    copies.make()
    spoil(job.parent.parent)
    return copies


def test_a_copy_contains_what_the_job_needs_and_nothing_else(job: Path, tmp_path: Path) -> None:
    copies = copy_and_spoil(job)
    assert copies.settings == ((),)
    names = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert names == {
        "jobs/own.toml",
        "problems/own.py",
        "problems/neighbour.py",
        "problems/package/__init__.py",
        "problems/package/deep.py",
    }
    assert build_problem(load_job(copies.job)).x0.tolist() == [1, 1, 1]


def test_a_file_with_an_absolute_path_is_copied_too(job: Path) -> None:
    settings = (f'problem.file="{job.parent.parent}/problems/own.py"',)
    copies = copy_and_spoil(job, settings)
    assert build_problem(load_job(copies.job, [*settings, *copies.settings[0]])).x0.tolist() == [1, 1, 1]


def test_the_file_of_an_update_is_copied_too(job: Path) -> None:
    (job.parent / "moves.py").write_text(UPDATE)
    settings = ("method.update_file=moves.py", "method.update_class=Own")
    copies = copy_and_spoil(job, settings)
    loaded = load_job(copies.job, settings)
    assert "method.update_file" in loaded.files


def test_each_member_of_a_sweep_has_its_own_file(job: Path) -> None:
    problems = job.parent.parent / "problems"
    (problems / "other.py").write_text(OWN.replace("np.ones(3)", "np.ones(5)"))
    members = [("problem.file=../problems/own.py",), (f"problem.file={problems}/other.py",)]
    copies = copy_and_spoil(job, *members)
    found = [
        build_problem(load_job(copies.job, [*member, *more])).x0.size
        for member, more in zip(members, copies.settings, strict=True)
    ]
    assert found == [3, 5]


def test_links_are_followed(job: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "home" / "problems").rename(elsewhere)
    (tmp_path / "home" / "problems").symlink_to(elsewhere)
    copies = JobCopy.of([load_job(job)], tmp_path / "copy")
    copies.make()
    spoil(elsewhere)
    assert build_problem(load_job(copies.job, copies.settings[0])).x0.tolist() == [1, 1, 1]
