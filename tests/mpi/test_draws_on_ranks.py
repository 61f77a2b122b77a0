"""A sequence that the tasks of all workers share, on real ranks."""

import json
import sys

from tests.mpi.starting import ROOT, mpirun

SCRIPT = ROOT / "tests" / "mpi" / "draws_on_ranks.py"


def counts(allocator: str) -> list[int]:
    done = mpirun(4, sys.executable, SCRIPT, allocator)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_number_is_used_once_in_turn() -> None:
    assert counts("uta") == [1] * 48 + [0] * 12


def test_numbers_of_stopped_tasks_are_used_by_later_ones() -> None:
    found = counts("gta")
    assert sum(found) == 48
    assert max(found) == 1
    # They are given out again first, to those who delivered last, who may be slower in the next round.
    assert sum(found[:18]) >= 12
