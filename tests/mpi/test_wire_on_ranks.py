"""bfloat16 between ranks: the same bits by all ways, and as simulated."""

import json
import sys
from pathlib import Path

from tests.mpi.starting import mpirun
from tests.mpi.wire_on_ranks import simulated


def test_results_and_points_are_the_same_by_messages_in_shared_memory_and_simulated() -> None:
    done = mpirun(3, sys.executable, Path(__file__).with_name("wire_on_ranks.py"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == simulated()
