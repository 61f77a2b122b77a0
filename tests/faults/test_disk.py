"""Disks that are full, limits that are reached, folders that vanish: real ones, under running jobs."""

import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.faults.scene import mpi_ata, own_problem, record_of, written

LIMIT = """
if task.round == {begin} and task.number == 0: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))
if task.round == {end} and task.number == 0: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
"""


def job_with(folder: Path, body: str, rounds: int = 40) -> Path:
    return written(folder / "job.toml", rounds=rounds, problem=own_problem(folder, body))


def test_a_last_save_that_fails_everywhere_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    job = job_with(tmp_path, LIMIT.format(begin=20, end=-1))
    done = mpi_ata("run", job, "--virtual", "--out", "run.h5")
    assert done.returncode == 1
    *notes, error = done.stderr.splitlines()
    assert error == (
        "Error: run.h5 could not be saved: File too large; "
        "nor could it be saved elsewhere: only an older save is left"
    )
    assert all(note.startswith("Note: run.h5 could not be saved") for note in notes)
    assert 18 <= int(record_of(tmp_path / "run.h5").method["k"]) <= 20
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.h5", "run.h5.previous"]
    job_with(tmp_path, "pass")
    refused = mpi_ata("run", job, "--virtual", "--out", "run.h5", "--resume")
    assert "differs from the job of that run in the file own.py" in refused.stderr


def test_a_folder_that_vanishes_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    (folder := tmp_path / "gone").mkdir()
    job = job_with(tmp_path, "if task.round == 20: shutil.rmtree('gone', ignore_errors=True)")
    done = mpi_ata("run", job, "--virtual", "--out", "gone/run.h5")
    assert done.returncode == 1
    *notes, error = done.stderr.splitlines()
    assert notes[0] == (
        "Note: gone/run.h5 could not be saved: No such file or directory; the run continues and tries again"
    )
    (saved,) = tmp_path.glob("run-*.h5")
    beginning = "Error: gone/run.h5 could not be saved: No such file or directory; the run was saved to "
    assert error == f"{beginning}{saved} instead"
    assert not folder.exists()
    record = record_of(saved)
    assert (record.summary["rounds"], record.reason) == (40, "40 rounds")
    assert mpi_ata("run", job, "--virtual", "--out", saved, "--resume").returncode == 0


def test_a_place_that_takes_nothing_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml")
    done = mpi_ata("run", job, "--virtual", "--out", "/dev/full/run.h5")
    assert (done.returncode, done.stdout) == (2, "")
    done = mpi_ata("run", job, "--virtual", "--out", "/proc/run.h5")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: /proc/run.h5 cannot be written: ")
    assert done.stderr.endswith("; choose another file\n")
    (tmp_path / "runs").touch()
    done = mpi_ata("run", job, "--virtual")
    assert done.returncode == 2
    assert done.stderr == f"Error: cannot create the folder {tmp_path}/runs: File exists; use --out RUN.h5\n"


SMALL = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c"]
MOUNT = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + sys.argv[1], "small", "disk"], check=True)
code = subprocess.run(sys.argv[2:]).returncode
subprocess.run(["sh", "-c", "rm -f disk/filler; cp disk/* kept/"])
sys.exit(code)
"""


def may_mount() -> bool:
    """Whether a process here may have a small disk of its own; root need not be."""
    try:
        return subprocess.run([*SMALL[:-2], "mount", "-t", "tmpfs", "x", "/mnt"], check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_mount(), reason="no disk can be mounted here")
@pytest.mark.parametrize("freed", [False, True])
def test_a_full_disk_stops_no_run(tmp_path: Path, freed: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "kept").mkdir()
    body = """
if task.round == 20 and task.number == 0:
    with open("disk/filler", "wb", buffering=0) as filler:
        try:
            while True: filler.write(bytes(4096))
        except OSError: pass
"""
    if freed:
        body += "if task.round == 35: Path('disk/filler').unlink(missing_ok=True)"
    job = job_with(tmp_path, body)
    done = mpi_ata("run", job, "--virtual", "--out", "disk/run.h5", before=[*SMALL, MOUNT, "1m"])
    sentence = "disk/run.h5 could not be saved: No space left on device; "
    assert f"Note: {sentence}the run continues and tries again\n" in done.stderr
    assert "Traceback" not in done.stderr
    kept = tmp_path / "kept" / "run.h5"
    if freed:
        assert done.returncode == 0, done.stderr
        assert record_of(kept).reason == "40 rounds"
    else:
        (elsewhere,) = tmp_path.glob("run-*.h5")
        assert done.returncode == 1
        assert done.stderr.endswith(f"Error: {sentence}the run was saved to {elsewhere} instead\n")
        assert record_of(elsewhere).reason == "40 rounds"
        record, _ = load_record(RunFile(kept))
        assert 18 <= int(record.method["k"]) <= 20
    assert not list((tmp_path / "kept").glob("*.new-*"))
