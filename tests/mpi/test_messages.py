"""Messages between ranks, and what the manager makes of them."""

import sys
from pathlib import Path

from tests.mpi.starting import mpirun


def test_messages_of_all_sizes_arrive_as_they_were() -> None:
    done = mpirun(1, sys.executable, Path(__file__).with_name("messages_to_oneself.py"))
    assert done.stdout.endswith("all arrived\n"), done.stdout + done.stderr


def test_the_manager_rejects_odd_answers_corrects_overruns_and_ends_trials() -> None:
    done = mpirun(1, sys.executable, Path(__file__).with_name("scripted_answers.py"))
    assert done.stdout.endswith("all as expected\n"), done.stdout + done.stderr
