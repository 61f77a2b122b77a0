"""Rounds by the chain on real ranks: the same numbers as by the star, and no hang when a worker dies."""

import json
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
    mpirun = launch.find_mpirun()
    words = [mpirun, *fault_tolerance(mpirun), "-n", str(N + 1), sys.executable, str(SCRIPT), *arguments]
    done = finished(words)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_star_and_chain_give_the_same_point_bit_for_bit() -> None:
    star, chain = stories()
    assert star == chain
    assert star["used"] == 6 * 7


@SURVIVES
@pytest.mark.parametrize(
    ("where", "worker"),
    [
        ("pass_point", 2),
        pytest.param("pass_point", 0, marks=pytest.mark.slow),
        pytest.param("pass_point", 3, marks=pytest.mark.slow),
        pytest.param("pass_sum", 0, marks=pytest.mark.slow),
        ("pass_sum", 1),
        pytest.param("pass_sum", 3, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_in_the_middle_of_an_exchange_is_lost_and_others_do_its_tasks(
    where: str, worker: int
) -> None:
    (story,) = stories(where, str(worker))
    assert story["lost"] == [worker]
    assert story["used"] == 6 * 7
    # Six steps of noise around the same path: points differ by less than a tenth of their norm, about 60.
    assert story["norm"] == pytest.approx(59.5, abs=2)
