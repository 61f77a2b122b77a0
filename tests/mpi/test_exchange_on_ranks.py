"""Rounds by the chain on real ranks: the same numbers as by the star, and no hang when a worker dies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import launch
from mpi_ata.launch.mpirun import fault_tolerance
from tests.faults.checks import outlives_deaths
from tests.mpi.starting import finished

N = 4
SCRIPT = Path(__file__).with_name("exchange_on_ranks.py")
SURVIVES = pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one has died")


def stories(*arguments: str) -> list[dict[str, Any]]:
    """Return what rank 0 printed, one entry per run."""
    return [json.loads(line) for line in completed(*arguments).stdout.splitlines()]


def completed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the script on ranks."""
    mpirun = launch.find_mpirun()
    words = [mpirun, *fault_tolerance(mpirun), "-n", str(N + 1), sys.executable, str(SCRIPT), *arguments]
    done = finished(words, 180)  # on a busy machine, deadlines are long
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each worker pretend to be on a host of its own."""
    monkeypatch.setenv("PER_HOST", "1")


@pytest.mark.parametrize(("budget", "per_host"), [("7", "1"), slow("3", "1"), slow("7", "2")])
def test_star_and_chain_give_the_same_point_bit_for_bit(
    budget: str, per_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUDGET", budget)  # 3 of 4 workers: one is idle, another one each round
    monkeypatch.setenv("PER_HOST", per_host)
    star, chain = stories("star,chain")
    assert star == chain
    assert star["used"] == 6 * int(budget)


@SURVIVES
@pytest.mark.parametrize(
    ("where", "worker", "transfer"),
    [
        ("pass_sum", 1, 1),
        slow("pass_point", 0, 1),
        slow("pass_point", 2, 3),
        slow("pass_sum", 0, 0),
        slow("pass_sum", 3, 1),
        slow("pass_sum", 2, 5),  # has passed on some pieces
    ],
)
def test_a_worker_that_dies_in_the_middle_of_a_chain_is_lost_and_others_do_its_tasks(
    where: str, worker: int, transfer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFER", str(transfer))
    (story,) = stories("chain", where, str(worker))
    assert story["lost"] == [worker]
    assert story["used"] == 6 * 7
    # The path of the expectation is the same; the noise moves the norm, about 60, by less than 1.
    assert story["norm"] == pytest.approx(59.5, abs=2)


@SURVIVES
@pytest.mark.slow  # no deadline is shorter than 3 seconds
@pytest.mark.parametrize("where", ["pass_point", "pass_sum"])
def test_a_worker_that_hangs_in_a_chain_is_overdue_and_those_that_wait_for_it_are_not(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG", "1")
    (story,) = stories("chain", where, "1")
    assert story["lost"] == [1]
    assert story["used"] == 6 * 7


@SURVIVES
@pytest.mark.slow
@pytest.mark.parametrize("late", [0.6, 1.6])  # seconds: the loss is noticed before the sum is in, or with it
def test_a_worker_that_dies_when_its_sum_is_passed_on_is_lost_and_the_round_ends_as_any_other(
    late: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE", str(late))
    (story,) = stories("chain", "report", "0")
    assert story["lost"] == [0]
    assert story["used"] == 6 * 7


@SURVIVES
@pytest.mark.slow
def test_a_worker_that_does_not_receive_its_long_order_is_overdue_and_rank_0_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUDGET", "4000")  # indices that do not fit with the header of an order
    monkeypatch.setenv("SIZE", "5000")
    (story,) = stories("chain", "order", "1")
    assert story["lost"] == [1]
    assert story["used"] == 6 * 4000
