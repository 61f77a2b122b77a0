"""A script of one's own on real ranks, without a job file."""

import re
import sys
from pathlib import Path

from tests.mpi.starting import ROOT, mpirun

SCRIPT = ROOT / "jobs" / "own_loop.py"


def test_a_loop_of_ones_own_runs_on_real_ranks_and_only_the_manager_gets_there() -> None:
    done = mpirun(5, sys.executable, SCRIPT)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"round (\d+): quotas \[([ \d]+)\], gap 0\.0", done.stdout)
    assert [number for number, _ in found] == ["100", "200", "300"]
    assert all(sum(map(int, quotas.split())) == 8 for _, quotas in found)


def test_a_loop_that_fails_ends_all_ranks_with_its_error(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        SCRIPT.read_text().replace("if round.number == 300:", "if 1 / (300 - round.number) < 0:")
    )
    done = mpirun(5, sys.executable, script)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr


def test_times_for_another_number_of_workers_are_rejected() -> None:
    done = mpirun(3, sys.executable, SCRIPT)
    assert done.returncode != 0
    assert "times are those of 4 workers, but mpirun started 2: make the two agree" in done.stderr
