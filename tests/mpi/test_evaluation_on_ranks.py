"""Evaluation in parts on real workers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import launch
from mpi_ata.launch.mpirun import fault_tolerance
from tests.faults.checks import outlives_deaths
from tests.mpi.starting import ROOT, mpirun

BUSY = ("slow", "hanging")  # modes in which a worker may be busy at the end
SCRIPT = ROOT / "tests" / "mpi" / "evaluation_on_ranks.py"


def lines(mode: str, ranks: int = 4) -> list[Any]:
    done = mpirun(ranks, sys.executable, SCRIPT, mode, seconds=120)
    # A worker that is busy at the end is ended by Abort(0), which is exit code 9 for the mpirun of MPICH.
    assert done.returncode == 0 or (mode in BUSY and "MPI_Abort" in done.stderr), done.stderr
    printed = done.stdout.partition("\n\n")[0]  # then come the words of MPICH's mpirun
    return [json.loads(line) for line in printed.splitlines()]


def test_workers_divide_the_parts_and_results_come_in_their_order() -> None:
    first, _, *others = lines("plain")
    assert len(others) == 3
    assert [part for part, _ in first] == list(range(20))
    shares = [[worker for _, worker in first].count(i) for i in range(3)]
    assert sorted(shares) == [6, 7, 7], "nothing is known of their speeds"
    for table in others:  # between rounds of a greedy method, whose surplus tasks are stopped
        assert [part for part, _ in table] == list(range(20))
        assert {worker for _, worker in table} <= {0, 1, 2}


@pytest.mark.slow
def test_others_take_over_the_parts_of_a_very_slow_worker() -> None:
    first, seconds, *_ = lines("slow")
    assert [part for part, _ in first] == list(range(20))
    assert 0 not in {worker for _, worker in first}
    assert seconds < 4 * 6, "the slow worker needs 4 seconds for each of its parts"


def test_an_error_in_an_evaluation_ends_the_run_with_one_sentence() -> None:
    done = mpirun(4, sys.executable, SCRIPT, "failing", seconds=120)
    assert done.returncode != 0
    wanted = "evaluate_part() of the problem failed for part 0"
    assert wanted in done.stderr
    assert "worker 0 (host " in done.stderr


def test_no_result_is_lost_while_a_method_with_running_orders_is_evaluated() -> None:
    *tables, (delivered, used) = lines("running")
    assert delivered == used == 20 * 6
    assert {worker for table in tables for _, worker in table} == {-1}, "the workers have other things to do"


@pytest.mark.every_mpi
@pytest.mark.slow
def test_the_manager_evaluates_what_a_worker_that_hangs_was_to_evaluate() -> None:
    first, second, seconds = lines("hanging", ranks=2)
    assert {worker for _, worker in first} == {0}
    assert {worker for _, worker in second} == {-1}
    assert seconds < 10, "10 times as long as before, but at least 3 seconds; it hangs for 12"


@pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one has died")
@pytest.mark.flaky(reruns=2)  # mpirun may end the manager too, where all others die at the same moment
def test_an_evaluation_ends_when_all_workers_die_while_they_are_stopped(tmp_path: Path) -> None:
    options = fault_tolerance(launch.find_mpirun())
    done = mpirun(4, *options, sys.executable, SCRIPT, "dying", tmp_path / "error", seconds=60)
    assert (tmp_path / "error").is_file(), done
    assert (tmp_path / "error").read_text() == "all 3 workers are lost; resume the run on other workers"
