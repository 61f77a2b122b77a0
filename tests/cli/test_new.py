"""mpi-ata new writes a job to start from."""

from pathlib import Path

import pytest

from mpi_ata.job import build_parts, load_job
from tests.cli.commands import call


def test_a_job_and_a_problem_are_written_and_what_to_do_next_is_printed() -> None:
    done = call("new", "folder/my_job")
    assert done.exit_code == 0
    assert "run it    mpi-ata run folder/my_job.toml\n" in done.stdout
    job = load_job(Path("folder/my_job.toml"))
    assert job.times is None, "its tasks really compute"
    problem = build_parts(job).problem
    assert problem.x0.shape == (200,)
    assert "NAME" not in Path("folder/my_job.toml").read_text() + Path("folder/my_job.py").read_text()


def test_the_name_may_have_spaces_and_the_ending_of_a_job_file() -> None:
    assert "run it    mpi-ata run 'a b.c.toml'\n" in call("new", "a b.c.toml").stdout
    assert sorted(path.name for path in Path().iterdir()) == ["a b.c.py", "a b.c.toml"]


@pytest.mark.parametrize("existing", ["my_job.toml", "my_job.py"])
def test_existing_files_are_never_overwritten(existing: str) -> None:
    Path(existing).write_text("mine")
    done = call("new", "my_job")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{existing}: exists, and is not overwritten" in done.stderr
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [(existing, "mine")]


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        ([".", "/", "..", "folder/.."], "is a folder; add the name of the job, as in '"),
        (['a"b', "a\\b", "a\nb", "folder/\t"], "must not contain double quotes, backslashes or control"),
        (["/dev/null/my_job"], "cannot be written: "),
    ],
)
def test_a_name_that_files_cannot_have_is_rejected(names: list[str], rule: str) -> None:
    for name in names:
        done = call("new", name)
        assert (done.exit_code, done.stdout) == (2, "")
        assert rule in done.stderr
    assert not list(Path().iterdir())


def test_any_other_name_gives_a_job_that_can_be_read() -> None:
    assert call("new", "it's näme #1").exit_code == 0
    assert build_parts(load_job(Path("it's näme #1.toml"))).problem.x0.shape == (200,)
