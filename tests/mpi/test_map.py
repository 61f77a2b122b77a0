"""Tasks that are not gradients on real ranks: the method map, and the farm."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import mpi_ata
from mpi_ata.launch import find_mpirun
from tests.driver.driven import driven
from tests.faults.checks import outlives_deaths
from tests.mpi.starting import COMMAND, ROOT, finished, mpirun, started

JOB = ROOT / "jobs" / "bayes.toml"
SURVIVES = pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one has died")
SETTINGS = ("stop.rounds=4", "times.report=drawn", "run.workers=3", "allocator.name=uta")


def test_a_job_gives_the_same_x_on_ranks_and_on_the_virtual_clock(tmp_path: Path) -> None:
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    done = mpirun(4, COMMAND, "run", JOB, "--json", "--out", tmp_path / "run.h5", *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["rounds"], summary["tasks_used"], summary["tasks_wasted"]) == (4, 48, 0)
    found, expected = mpi_ata.load(tmp_path / "run.h5").x, driven(JOB, SETTINGS).x
    assert found["tried"] == expected["tried"] == 48 * 5000
    assert found["rates"].tolist() == expected["rates"].tolist()


SCRIPT = """
import os
import signal
import time

import numpy as np

import mpi_ata

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


def large(value):
    time.sleep(0.03 if RANK == 2 else 0.003)
    return {"value": value, "array": np.full(value * 100, value)}


def deadly(value):
    if RANK == 1 and value >= 10:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    return value


def failing(value):
    return 1 / (value - 7)


with mpi_ata.cluster() as cluster:
    found = list(cluster.map(large, range(60)))
    assert [each["value"] for each in found] == list(range(60))
    assert all(each["array"].tolist() == [i] * (100 * i) for i, each in enumerate(found))
    tasks = cluster.ledger.stats.state()["tasks"]
    print("tasks", *tasks.tolist())
    if DEATH:
        assert list(cluster.map(deadly, range(40))) == list(range(40))
        print("lost", *cluster.available.tolist())
    else:
        list(cluster.map(failing, range(10)))
"""


def test_a_farm_learns_who_is_slow_and_reports_the_item_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(SCRIPT.replace("DEATH", "False"))
    done = mpirun(4, sys.executable, script)
    tasks = [int(word) for word in done.stdout.split()[1:]]
    assert sum(tasks) >= 60
    assert tasks[1] < min(tasks[0], tasks[2]) / 2, "worker 1 is ten times slower; others may be disturbed"
    assert done.returncode != 0
    assert "failing failed for item 7" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@SURVIVES
def test_a_farm_outlives_a_worker(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(SCRIPT.replace("DEATH", "True"))
    done = mpirun(4, sys.executable, script)
    assert "lost False True True" in done.stdout, done.stderr


@pytest.mark.every_mpi
@pytest.mark.slow
def test_the_farm_that_ships_with_the_project_runs_under_mpirun_and_starts_its_own_ranks() -> None:
    script = ROOT / "jobs" / "farm.py"
    on_ranks, alone = mpirun(5, sys.executable, script), finished([sys.executable, str(script)])
    assert on_ranks.returncode == alone.returncode == 0, on_ranks.stderr + alone.stderr
    assert on_ranks.stdout == alone.stdout == "size 20: 0.8934, size 100: 0.9719; the limit is 1\n"


SLEEPING = """
import os
import time

import mpi_ata


def sleeping(value):
    time.sleep(0.02)
    return value


with mpi_ata.cluster() as cluster:
    for value in cluster.map(sleeping, range(5000)):
        if value == 20:
            print(os.getpid(), flush=True)
"""


def test_a_signal_ends_a_farm_at_once(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(SLEEPING)
    with started([find_mpirun(), "-n", "4", sys.executable, str(script)]) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGUSR1)
        _, err = process.communicate(timeout=15)  # less than the grace period of a round
    assert re.search(r"Error: SIGUSR1 ended map\(\) after \d+ of 5,000 items", err)


STOPPED = """
import os
import signal
import time

import mpi_ata

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


def stopping(value):
    time.sleep(0.02)
    if RANK == 2 and value > 60:
        os.kill(os.getpid(), signal.SIGSTOP)
    return value


with mpi_ata.cluster(workers=3) as cluster:
    assert list(cluster.map(stopping, range(200))) == list(range(200))
    print("all", flush=True)
    assert list(cluster.map(abs, range(20))) == list(range(20))
    print("again", flush=True)
"""


@pytest.mark.slow
def test_a_farm_ends_although_a_worker_that_holds_several_items_hangs(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(STOPPED)
    done = finished([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all\nagain\n"), "the words of a launcher may follow"


ANYTHING = """
import os
from functools import partial

import numpy as np

import mpi_ata

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


class Item:
    def __init__(self, value):
        self.value = value


def weighted(weights, item):
    assert RANK > 0, "it is the function of the worker's own script, not the manager's"
    return {item.value: weights[item.value] + len(weights)}


def again(value):
    return value


with mpi_ata.cluster() as cluster:
    weights = np.arange(100_000.0)
    found = list(cluster.map(partial(weighted, weights), map(Item, range(9))))
    assert found == [{i: 100_000.0 + i} for i in range(9)], found
    print("partial", flush=True)

    def again(value):  # below, where workers do not get
        return -value

    assert list(cluster.map(again, range(9))) == [-i for i in range(9)]

    def below(value):
        return value + offset

    offset = 5
    assert list(cluster.map(below, range(9))) == [i + 5 for i in range(9)]
    assert list(cluster.map(lambda value: value - offset, range(9))) == [i - 5 for i in range(9)]
    print("all")
"""


def test_functions_that_workers_have_are_found_by_name_and_others_sent_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(ANYTHING)
    done = mpirun(4, sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "partial\nall\n"), done.stderr


def test_without_cloudpickle_a_function_that_workers_lack_is_rejected(tmp_path: Path) -> None:
    script = tmp_path / "farm.py"
    script.write_text(f"import sys\nsys.modules['cloudpickle'] = None\n{ANYTHING}")
    done = mpirun(4, sys.executable, script)
    assert (done.returncode != 0, done.stdout) == (True, "partial\n")
    assert re.search(
        r"Error: worker \d .* cannot load again: .*defined again below.*; define it abo", done.stderr
    )
