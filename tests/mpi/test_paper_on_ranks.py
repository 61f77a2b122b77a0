"""The paper's first table over real ranks, beside a virtual run of the same rounds."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.paper.experiments import TABLE1, PaperRequest
from mpi_ata.paper.ratios import for_ranks
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.mpi.starting import COMMAND, finished, mpirun

pytestmark = pytest.mark.slow

ARGUMENTS = ["paper", "table1", "--mpi", "--workers", "3", "--budget", "5", "--allocators", "ofta"]


def test_ratios_on_ranks_are_shown_beside_those_of_a_virtual_run() -> None:
    done = finished([str(COMMAND), *ARGUMENTS, "--rounds", "40", "--unit", "2e-5", "--json"])
    assert done.returncode == 0, done.stderr
    greedy, oracle = json.loads(done.stdout.splitlines()[-1])
    assert [(r["allocator"], r["n"], r["rounds"]) for r in (greedy, oracle)] == [
        ("gta", 3, 40),
        ("ofta", 3, 40),
    ]
    request = PaperRequest(workers=(3,), budget=5, allocators=("ofta",), rounds=40)
    by_hand = [execute(Plan(trial.job())).trace for trial in for_ranks(TABLE1, request, unit=2e-5).trials()]
    assert oracle["virtual_worker_time_ratio"] == by_hand[0].worker_time / by_hand[1].worker_time
    assert oracle["virtual_runtime_ratio"] == by_hand[1].clock / by_hand[0].clock
    # Tasks are sleeps that end late on a busy machine, never early: the order is certain, the ratio is not.
    assert oracle["worker_time_ratio"] > 0
    assert oracle["runtime_ratio"] > 0
    assert (greedy["worker_time_ratio"], greedy["runtime_ratio"]) == (1, 1)


def test_runs_on_ranks_are_saved_and_reused(tmp_path: Path) -> None:
    command = [str(COMMAND), *ARGUMENTS, "--unit", "2e-5", "--out", str(tmp_path), "--json", "--rounds"]
    first, again, shorter = (finished([*command, rounds]) for rounds in ("20", "20", "10"))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout == again.stdout
    files = {path.name for path in tmp_path.glob("*.h5")}
    assert files == {f"ranks-2e-05-sqrt-n3-B5-{name}-seed1.h5" for name in ("gta", "ofta")}
    assert shorter.returncode == 2
    assert "has 20 rounds, but at most 10 were asked for" in shorter.stderr


def test_an_interrupted_run_on_ranks_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    command = [str(COMMAND), *ARGUMENTS, "--unit", "2e-5", "--out", str(tmp_path), "--rounds", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(tmp_path.glob("*.h5")):
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 85, err
    assert "interrupted after 0 of 2 runs; run the same command again to resume" in err
    (file,) = tmp_path.glob("*.h5")
    assert int(load_record(RunFile(file))[0].method["k"]) > 0


def test_ranks_started_by_mpirun_are_used() -> None:
    done = mpirun(4, COMMAND, *ARGUMENTS, "--rounds", "5", "--unit", "1e-5")
    assert done.returncode == 0, done.stderr
    assert "on 3 worker ranks and a manager: sqrt law in units of 1e-05 s, B = 5, 5 rounds" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[4:6]] == ["gta", "ofta"]


def test_too_few_ranks_are_rejected() -> None:
    done = mpirun(3, COMMAND, *ARGUMENTS, "--rounds", "5")
    assert done.returncode == 2
    rule = "--workers 3 needs 4 ranks, one of them the manager, but 3 were started; use mpirun -n 4"
    assert rule in done.stderr


def test_the_number_of_ranks_must_be_given() -> None:
    done = finished([str(COMMAND), "paper", "table1", "--mpi", "--workers", "3,4"])
    assert done.returncode == 2
    assert (
        done.stderr
        == "Error: --mpi needs one number of workers, each of which is a rank: --mpi --workers 17\n"
    )
