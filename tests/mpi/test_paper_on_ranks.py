"""The paper's first table over real ranks, beside a virtual run of the same rounds."""

import json

from mpi_ata.paper.experiments import TABLE1, Request
from mpi_ata.paper.ranks import for_ranks
from mpi_ata.run import execute
from tests.mpi.starting import COMMAND, finished, mpirun

ARGUMENTS = ["paper", "table1", "--mpi", "--workers", "3", "--budget", "5", "--allocators", "ofta"]


def test_ratios_on_ranks_stand_beside_those_of_a_virtual_run() -> None:
    done = finished([str(COMMAND), *ARGUMENTS, "--rounds", "40", "--unit", "2e-5", "--json"])
    assert done.returncode == 0, done.stderr
    greedy, oracle = json.loads(done.stdout.splitlines()[-1])
    assert [(r["allocator"], r["n"], r["rounds"]) for r in (greedy, oracle)] == [
        ("gta", 3, 40),
        ("ofta", 3, 40),
    ]
    request = Request(workers=(3,), budget=5, allocators=("ofta",), rounds=40)
    by_hand = [execute(plan.job()).trace for plan in for_ranks(TABLE1, request, unit=2e-5).plans()]
    assert oracle["virtual_worker_time_ratio"] == by_hand[0].worker_time / by_hand[1].worker_time
    assert oracle["virtual_runtime_ratio"] == by_hand[1].clock / by_hand[0].clock
    # Tasks are sleeps that end late on a busy machine, never early: the order is certain, the ratio is not.
    assert oracle["worker_time_ratio"] > 0
    assert oracle["runtime_ratio"] > 0
    assert (greedy["worker_time_ratio"], greedy["runtime_ratio"]) == (1, 1)


def test_ranks_that_mpirun_started_are_taken() -> None:
    done = mpirun(4, COMMAND, *ARGUMENTS, "--rounds", "5", "--unit", "1e-5")
    assert done.returncode == 0, done.stderr
    assert "over 3 real ranks and a manager: sqrt law in units of 1e-05 s, B = 5, 5 rounds" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[4:6]] == ["gta", "ofta"]


def test_how_many_ranks_there_shall_be_must_be_said() -> None:
    done = finished([str(COMMAND), "paper", "table1", "--mpi", "--workers", "3,4"])
    assert done.returncode == 2
    assert (
        done.stderr
        == "Error: --mpi needs one number of workers, each of which is a rank: --mpi --workers 17\n"
    )
