"""Messages between ranks arrive as they were, by all ways, and the manager makes the right thing of them."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.mpi.starting import mpirun
from tests.mpi.wire_on_ranks import simulated


def printed_by(script: str, ranks: int, *arguments: str) -> Any:
    """Return the last line that a script next to this file prints on ranks, read as JSON."""
    done = mpirun(ranks, sys.executable, Path(__file__).with_name(script), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_messages_of_all_sizes_arrive_as_they_were() -> None:
    assert printed_by("messages_to_oneself.py", 1) == "all arrived"


def test_the_manager_rejects_odd_answers_corrects_overruns_and_ends_trials() -> None:
    assert printed_by("scripted_answers.py", 1) == "all as expected"


def test_bfloat16_results_and_points_are_the_same_by_messages_in_shared_memory_and_simulated() -> None:
    assert printed_by("wire_on_ranks.py", 3) == simulated()


def test_each_number_of_a_shared_sequence_is_used_once_in_turn() -> None:
    assert printed_by("draws_on_ranks.py", 4, "uta") == [1] * 48 + [0] * 12


def test_numbers_of_stopped_tasks_are_used_by_later_ones() -> None:
    found = printed_by("draws_on_ranks.py", 4, "gta")
    assert sum(found) == 48
    assert max(found) == 1
    # They are given out again first, to those who delivered last, who may be slower in the next round.
    assert sum(found[:18]) >= 12
