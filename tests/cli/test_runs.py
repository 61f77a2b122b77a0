"""mpi-ata runs lists run files, and removes old ones on request."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpi_ata.batch.submission_dir import SubmissionDir
from mpi_ata.cli import main
from mpi_ata.cli.run_files import remove_old
from mpi_ata.runfile.progress import list_runs
from tests.cli.commands import call, use_own_problem


@pytest.fixture
def runs(job: str) -> Path:
    """Three finished runs, a failed one and another file, all in runs/."""
    for number in range(3):
        assert call("run", job, "--virtual", "--out", f"runs/{number}.h5").exit_code == 0
        os.utime(f"runs/{number}.h5", times=(0, time.time() - 1000 * (3 - number)))
    use_own_problem(job, "if task.round == 9: raise ValueError('broken')\n        return x")
    assert call("run", job, "--virtual", "--out", "runs/failed.h5").exit_code == 1
    Path("runs/other.h5").write_bytes(b"\x89HDF\r\n")
    return Path("runs")


def listed(*arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(call("runs", "--json", *arguments).stdout)
    return rows


def names() -> list[str]:
    return sorted(path.stem for path in Path("runs").glob("*.h5"))


def test_runs_are_listed_the_newest_first_with_job_state_rounds_age_and_size(runs: Path) -> None:
    done = call("runs")
    _, _, *rows = [line.split("  ") for line in done.stdout.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:4] for row in cells] == [
        ["failed.h5", "Mine, sgd, ata-empirical", "failed", "8"],
        *([f"{number}.h5", "quadratic, sgd, ata-empirical", "finished", "50"] for number in (2, 1, 0)),
    ]
    assert cells[1][4] in ("16 min 40 s", "16 min 41 s", "16 min 42 s")
    assert cells[1][5].endswith(" kB")
    assert [row["state"] for row in listed("runs")] == ["failed", *["finished"] * 3]


def test_a_folder_without_runs_is_no_error_but_one_that_does_not_exist_is() -> None:
    Path("empty").mkdir()
    for arguments, name in (([], "runs"), (["empty"], "empty")):
        done = call("runs", *arguments)
        assert (done.exit_code, done.stdout) == (0, f"there are no run files in {name}\n")
    Path("file").write_text("")
    for name, what in (("nowhere", "does not exist"), ("file", "is a file")):
        done = call("runs", name)
        assert (done.exit_code, f"{name} {what}; name a folder" in done.stderr) == (2, True)


def test_the_oldest_finished_runs_are_removed_after_a_question(runs: Path) -> None:
    assert call("runs", "--keep", "0").exit_code == 1, "there is no answer"
    assert call("runs", "--yes").exit_code == 2
    refused = CliRunner().invoke(main, ["runs", "--keep", "1"], input="n\n")
    # Some versions of click show the answer here, others do not.
    assert re.search(r"Remove these 2\? \[y/N\]: ?(n\n)?nothing was removed\n", refused.stderr)
    assert names() == ["0", "1", "2", "failed", "other"]
    done = CliRunner().invoke(main, ["runs", "--keep", "1"], input="y\n")
    assert "removed runs/1.h5\nremoved runs/0.h5\n" in done.stderr
    assert names() == ["2", "failed", "other"]
    assert "nothing to remove" in call("runs", "--keep", "1").stderr


@pytest.mark.parametrize("folder", ["runs", "runs/../runs", "linked"])
def test_with_yes_nothing_is_asked_and_submitted_runs_stay(runs: Path, folder: str) -> None:
    Path("linked").symlink_to("runs")
    submission = SubmissionDir.of_run(runs / "0.h5")
    submission.path.mkdir()
    submission.record_jobs(("17",), [(runs / "0.h5").absolute()])
    done = call("runs", folder, "--keep", "0", "--yes", "--json")
    assert [Path(row["path"]).stem for row in json.loads(done.stdout)] == ["2", "1"]
    assert names() == ["0", "failed", "other"]


def test_a_run_that_was_saved_since_it_was_listed_is_not_removed(runs: Path) -> None:
    old = [run for run in list_runs(runs) if run.finished]
    os.utime(runs / "1.h5")
    assert [run.path.stem for run in remove_old(old, yes=True)] == ["2", "0"]
    assert names() == ["1", "failed", "other"]
