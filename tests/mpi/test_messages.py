"""Messages between ranks."""

import sys
from pathlib import Path

from tests.mpi.starting import mpirun


def test_messages_of_all_sizes_arrive_as_they_were() -> None:
    done = mpirun(1, sys.executable, Path(__file__).with_name("messages_to_oneself.py"))
    assert done.stdout.endswith("all arrived\n"), done.stdout + done.stderr
