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


def test_names_with_spaces_are_quoted_in_the_commands() -> None:
    assert "run it    mpi-ata run 'a b.toml'\n" in call("new", "a b").stdout


def test_the_name_may_have_the_ending_of_a_job_file() -> None:
    assert call("new", "a.b.toml").exit_code == 0
    assert sorted(path.name for path in Path().iterdir()) == ["a.b.py", "a.b.toml"]


@pytest.mark.parametrize("existing", ["my_job.toml", "my_job.py"])
def test_existing_files_are_never_overwritten(existing: str) -> None:
    Path(existing).write_text("mine")
    done = call("new", "my_job")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: {existing}: exists, and is not overwritten; choose another name\n"
    assert [path.name for path in Path().iterdir()] == [existing]
    assert Path(existing).read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_reported_in_one_sentence() -> None:
    Path("file").touch()
    done = call("new", "file/my_job")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: file: cannot be written: ")


@pytest.mark.parametrize("name", [".", "/", "..", "folder/.."])
def test_a_name_that_is_a_folder_is_rejected(name: str) -> None:
    done = call("new", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is a folder; add the name of the job, as in '" in done.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "folder/\t"])
def test_a_name_that_would_break_the_files_is_rejected(name: str) -> None:
    done = call("new", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "must not contain double quotes, backslashes or control characters" in done.stderr
    assert not list(Path().iterdir())


def test_any_other_name_gives_a_job_that_can_be_read() -> None:
    assert call("new", "it's näme #1").exit_code == 0
    assert build_parts(load_job(Path("it's näme #1.toml"))).problem.x0.shape == (200,)
