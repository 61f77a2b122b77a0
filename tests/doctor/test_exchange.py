"""Ranks that reach each other, or do not."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mpi_ata import launch
from mpi_ata.doctor import on_ranks
from mpi_ata.launch.mpirun import loaded_library
from tests.doctor.running import fake_mpirun, findings, mpi_defaults, problem, run_doctor


def test_ranks_that_cannot_be_started_are_a_problem(bare: Path, tmp_path: Path) -> None:
    environment = fake_mpirun(tmp_path / "same", of_the_same=True)
    finding = problem("exchange", python=bare, environment=environment)
    assert finding["found"].startswith("two ranks failed: ")
    assert f"same/mpirun -n 2 {bare} -m mpi4py.bench helloworld" in finding["remedy"]


def test_wrong_results_are_a_problem() -> None:
    right = dict.fromkeys(on_ranks.COMPARED, 3)
    assert on_ranks.compare(right, right, 1.0).ok
    found = on_ranks.compare(right | {"loss": 4}, right, 1.0)
    assert not found.ok
    assert found.found == "two ranks computed loss 4 instead of 3"


@pytest.mark.parametrize("ranks", [1, 3])
def test_under_a_launcher_the_ranks_reach_each_other_and_one_of_them_prints(ranks: int) -> None:
    mpirun = launch.find_mpirun()
    done = run_doctor("--json", prefix=(mpirun, "-n", str(ranks)), environment=mpi_defaults())
    assert done.stdout.count('"Python"') == 1, done.stdout + done.stderr
    found = findings(done)
    assert found["world"]["found"] == f"rank 0 of {ranks}, according to the launcher"
    if ranks == 1:
        assert "a job needs a manager and a worker" in found["exchange"]["remedy"]
        assert done.returncode != 0
    else:
        assert found["exchange"]["found"].startswith("3 ranks reached each other, 3 of them on ")
        assert done.returncode == 0


def test_ranks_that_are_each_alone_in_their_world_are_a_problem() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
    finding = problem("exchange", environment=step)  # as under srun --mpi=none
    assert finding["found"] == "4 ranks were started, but MPI sees 1"
    assert "--mpi=pmix" in finding["remedy"]


def test_a_rank_of_another_mpis_launcher_is_a_problem() -> None:
    open_mpi = "Open MPI" in loaded_library().version
    names = ("PMI_SIZE", "PMI_RANK") if open_mpi else ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    finding = problem("exchange", environment=dict(zip(names, ("3", "0"), strict=True)))
    assert finding["found"].startswith("not tried: ")
    assert "do not work together" in finding["remedy"]


def test_more_workers_than_cores_are_a_note() -> None:
    cores = os.cpu_count() or 1
    assert on_ranks.oversubscription(cores) is None
    assert f"{cores + 1} worker threads share {cores} cores" in str(on_ranks.oversubscription(cores + 1))


def running(mark: str) -> bool:
    """Return whether there are processes that have this in their command line."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "cmdline").read_text():
                return True
    return False


@pytest.mark.slow
def test_ranks_that_hang_are_ended_and_none_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in mpi_defaults().items():
        monkeypatch.setenv(name, value)
    mark = str(tmp_path)
    ranks = [launch.find_mpirun(), "-n", "2", sys.executable, "-c", "import time; time.sleep(1000)", mark]
    assert launch.run_command(ranks, 3.0) == launch.CommandResult(None, "", "")
    until = time.monotonic() + 30
    while running(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert not running(mark)


def test_a_command_that_cannot_be_started_has_a_result_too() -> None:
    result = launch.run_command(["/no/such/command"], 1.0)
    assert (result.code, result.gist()) == (127, "/no/such/command: No such file or directory")
