"""The energy of a run is that of all its nodes, each counted once."""

import json
import sys
from pathlib import Path

import pytest

from tests.launch.test_energy import processor
from tests.mpi.starting import ROOT, mpirun

SCRIPT = ROOT / "tests" / "mpi" / "energy_on_ranks.py"
PROCESSORS = {1: "localhost", 2: "127.0.0.2", 3: "127.0.0.2", 4: "127.0.0.3"}  # by rank
UNTIMED = 3  # tasks of workers on other nodes, whose meters start before these


def ran(folder: Path) -> tuple[int, float | None]:
    done = mpirun(5, sys.executable, SCRIPT, folder)
    assert done.returncode == 0, done.stderr
    tasks, joules = json.loads(done.stdout.splitlines()[-1])
    return tasks, joules


def test_the_nodes_of_a_run_are_added_up_once_each(tmp_path: Path) -> None:
    for rank, host in PROCESSORS.items():
        processor(tmp_path / host, f"intel-rapl:{rank}", f"package-{rank}", 5_000_000 * rank)
    tasks, joules = ran(tmp_path)
    assert tasks == 160
    assert joules == pytest.approx(tasks + UNTIMED)


@pytest.mark.slow
def test_a_node_without_counters_makes_the_energy_unknown(tmp_path: Path) -> None:
    for rank, host in PROCESSORS.items():
        if host != "127.0.0.3":
            processor(tmp_path / host, f"intel-rapl:{rank}", f"package-{rank}", 0)
    assert ran(tmp_path) == (160, None)
