"""The MPI cluster keeps the contract that the virtual one keeps."""

import sys
from pathlib import Path

import pytest

from tests.clusters import at_once, unstoppable
from tests.clusters.contract import CHECKS
from tests.mpi.starting import mpirun

LONG = [pytest.mark.slow, pytest.mark.every_mpi]


@pytest.mark.flaky(reruns=3)  # it measures time: a stall may fail one attempt, a bug fails all
@pytest.mark.parametrize(
    "way", ["shared", *(pytest.param(way, marks=LONG) for way in ("along", "following"))]
)
def test_the_contract_on_real_ranks(way: str) -> None:
    done = mpirun(4, sys.executable, Path(__file__).with_name("contract_on_ranks.py"), way)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("passed ")]
    assert passed == [check.__name__ for check in [*CHECKS, *at_once.CHECKS, *unstoppable.CHECKS]]
