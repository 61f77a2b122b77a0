"""Rounds by the chain on real ranks: the same numbers as by the star, and no hang when a worker dies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import launch
from mpi_ata.launch.library import fault_tolerance
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


@pytest.mark.parametrize(
    ("budget", "per_host"), [(7, 2), slow(7, 1), slow(7, 4), slow(3, 1), slow(3, 2), slow(3, 4), slow(7, 3)]
)
def test_star_chain_and_replicated_update_give_the_same_point_bit_for_bit(
    budget: int, per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUDGET", str(budget))  # 3 of 4 workers: one is idle, another one each round
    monkeypatch.setenv("PER_HOST", str(per_host))
    star, chain, replicated = stories("star,chain,replicated")
    assert star == chain == replicated
    assert star["used"] == 6 * budget


@SURVIVES
@pytest.mark.parametrize(
    ("way", "where", "worker", "per_host", "transfer"),
    [
        slow("chain", "pass_sum", 1, 1, 1),
        slow("chain", "pass_point", 0, 1, 1),
        slow("chain", "pass_point", 2, 1, 1),
        slow("chain", "pass_sum", 0, 1, 0),
        slow("chain", "pass_sum", 3, 1, 1),
        ("chain", "pass_sum", 1, 2, 1),  # follows a leader; its results are there
        slow("chain", "pass_sum", 1, 2, 4),  # has added to some pieces
        slow("chain", "pass_point", 3, 2, 0),
        slow("chain", "pass_point", 0, 2, 3),  # a leader
        slow("chain", "pass_point", 2, 2, 3),
        slow("chain", "pass_sum", 0, 2, 0),
        slow("chain", "pass_sum", 2, 2, 1),
        slow("chain", "pass_sum", 2, 2, 5),
        slow("chain", "pass_sum", 2, 4, 2),
        ("replicated", "share_sum", 2, 2, 5),  # a leader; some pieces are passed on
        slow("replicated", "share_sum", 0, 1, 1),
        slow("replicated", "share_sum", 3, 1, 1),
        slow("replicated", "share_sum", 1, 2, 0),
        slow("replicated", "share_sum", 3, 2, 9),
        slow("replicated", "share_sum", 0, 2, 20),
        slow("replicated", "share_sum", 0, 4, 12),
        slow("replicated", "task", 1, 1, 1),
        slow("replicated", "task", 0, 2, 1),
    ],
)
def test_a_worker_that_dies_in_the_middle_of_an_exchange_is_lost_and_others_do_its_tasks(
    way: str, where: str, worker: int, per_host: int, transfer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PER_HOST", str(per_host))
    monkeypatch.setenv("TRANSFER", str(transfer))
    (story,) = stories(way, where, str(worker))
    assert story["lost"] == [worker]
    assert story["used"] == 6 * 7
    # The path of the expectation is the same; the noise moves the norm, about 60, by less than 1.
    assert story["norm"] == pytest.approx(59.5, abs=2)


@SURVIVES
@pytest.mark.slow  # no deadline is shorter than 3 seconds
@pytest.mark.parametrize(
    ("way", "where", "worker", "per_host"),
    [
        ("chain", "pass_point", 1, 1),
        ("chain", "pass_sum", 1, 1),
        ("chain", "pass_point", 2, 2),
        ("chain", "pass_sum", 2, 2),
        ("chain", "pass_sum", 1, 2),
        ("replicated", "share_sum", 0, 1),
        ("replicated", "share_sum", 0, 2),
        ("replicated", "share_sum", 3, 2),
    ],
)
def test_a_worker_that_hangs_in_an_exchange_is_overdue_and_those_that_wait_for_it_are_not(
    way: str, where: str, worker: int, per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG", "1")
    monkeypatch.setenv("PER_HOST", str(per_host))
    (story,) = stories(way, where, str(worker))
    assert story["lost"] == [worker]
    assert story["used"] == 6 * 7


@pytest.mark.slow
def test_rank_0_sends_x_once_to_workers_that_keep_it_however_often_it_looks_at_x(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOK", "1")
    done = completed("replicated,star")
    replicated, star = [json.loads(line) for line in done.stdout.splitlines()]
    assert replicated == star
    assert done.stderr.count("rank 0 sends x") == 1


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
