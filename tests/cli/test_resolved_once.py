"""A command decides once what to run: a process reads the job, the run file and the problem once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.commands import JOB, call

# Records what happens to it: in which process, how often that has read a job, and how many bytes, by then.
PROBLEM = """
import os
from pathlib import Path
import numpy as np
from mpi_ata.job import schema

def note(event):
    read = Path("/proc/self/io").read_text().split()[1]
    with Path(__file__).with_name("log").open("a") as log:
        log.write(f"{event} {os.getpid()} {schema._tables_of.cache_info().misses} {read}\\n")

note("imported")

class Mine:
    x0 = np.ones(2_000_000)  # a run file of 16 MB, far more than anything else that is read
    tasks = 0

    def __init__(self):
        note("built")

    def gradient(self, x, task):
        if not Mine.tasks:
            note("first-task")
        Mine.tasks += 1
        return 0.1 * x
"""
COMMAND = "import sys, h5py; from mpi_ata.cli import main; main(sys.argv[1:])"

pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/self/io")


@pytest.fixture(autouse=True)
def own_job() -> None:
    """Write a job in the current folder with a problem that writes a log."""
    Path("mine.py").write_text(PROBLEM)
    job = JOB.replace('name = "quadratic"\ndimension = 10', 'file = "mine.py"\nclass = "Mine"')
    Path("job.toml").write_text(job.replace("rounds = 50", "rounds = 2"))


def run_and_take_log(*arguments: str) -> list[list[str]]:
    """Run a command in a process of its own, and return the words of the log."""
    command = [sys.executable, "-c", COMMAND, "run", "job.toml", *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return take_log()


def take_log() -> list[list[str]]:
    """Return the words of each line of the log, and remove it."""
    lines = [line.split() for line in Path("log").read_text().splitlines()]
    Path("log").unlink()
    return lines


def test_resuming_a_run_imports_the_problem_and_reads_the_run_file_once() -> None:
    words = ["--out", "run.h5", "--resume", "--virtual"]
    fresh = run_and_take_log(*words)
    size = Path("run.h5").stat().st_size
    assert size > 16_000_000
    resumed = run_and_take_log(*words, "--set", "stop.rounds=4")
    for log in (fresh, resumed):
        assert [event for event, *_ in log] == ["imported", "built", "first-task"]
    # Both commands read the same libraries before the first task, but only one reads a run file.
    more = int(resumed[-1][-1]) - int(fresh[-1][-1])
    assert more / size == pytest.approx(1, abs=0.1)


def test_submitting_a_sweep_imports_and_builds_a_shared_problem_once() -> None:
    sweep = ["--array", "method.step_size=0.1,0.2,0.3"]
    result = call("submit", "job.toml", "-n", "4", *sweep, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "#SBATCH --array=0-2" in result.stdout
    assert [event for event, *_ in take_log()] == ["imported", "built"]


def test_each_rank_reads_the_job_once_and_builds_it_once() -> None:
    log = run_and_take_log("--workers", "2", "--set", "times.unit=1e-6")
    built = [(process, read) for event, process, read, _ in log if event == "built"]
    assert sorted(Counter(process for process, _ in built).values()) == [1] * (1 + 3), "and the launcher"
    assert {read for _, read in built} == {"1"}
