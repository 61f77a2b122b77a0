"""A command decides once what to run: a process reads the job, the run file and the problem once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import JOB, call

# Records what happens to it, and how many bytes this process has read by then.
PROBLEM = """
from pathlib import Path
import numpy as np

def note(event):
    read, _, _ = Path("/proc/self/io").read_text().partition("\\n")
    with Path(__file__).with_name("log").open("a") as log:
        log.write(f"{event} {read.split()[1]}\\n")

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


@pytest.fixture
def own_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a job in the current folder with a problem that writes a log."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROBLEM)
    job = JOB.replace('name = "quadratic"\ndimension = 10', 'file = "mine.py"\nclass = "Mine"')
    Path("job.toml").write_text(job.replace("rounds = 50", "rounds = 2"))
    return Path("job.toml")


def run_and_take_log(*arguments: str) -> dict[str, list[int]]:
    """Run a command in a process of its own, and return the bytes read at each event."""
    subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, capture_output=True)
    return take_log()


def take_log() -> dict[str, list[int]]:
    """Return the bytes read at each event, by its name, and remove the log."""
    events: dict[str, list[int]] = {}
    for line in Path("log").read_text().splitlines():
        name, read = line.split()
        events.setdefault(name, []).append(int(read))
    Path("log").unlink()
    return events


def test_resuming_a_run_imports_the_problem_and_reads_the_run_file_once(own_job: Path) -> None:
    words = ["run", str(own_job), "--out", "run.h5", "--resume", "--virtual"]
    fresh = run_and_take_log(*words)
    size = Path("run.h5").stat().st_size
    assert size > 16_000_000
    resumed = run_and_take_log(*words, "--set", "stop.rounds=4")
    for events in (fresh, resumed):
        assert [(name, len(times)) for name, times in events.items()] == [
            (name, 1) for name in ("imported", "built", "first-task")
        ]
    # Both commands read the same libraries before the first task, but only one reads a run file.
    more = resumed["first-task"][0] - fresh["first-task"][0]
    assert more / size == pytest.approx(1, abs=0.1)


def test_submitting_a_sweep_imports_and_builds_a_shared_problem_once(own_job: Path) -> None:
    sweep = ["--array", "method.step_size=0.1,0.2,0.3"]
    result = call("submit", str(own_job), "-n", "4", *sweep, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "#SBATCH --array=0-2" in result.stdout
    assert {name: len(times) for name, times in take_log().items()} == {"imported": 1, "built": 1}


# Notes how often the job was read by then; the launcher's process builds it too, to find mistakes.
ON_RANKS = """
import os
from pathlib import Path
import numpy as np
from mpi_ata.job import schema

class Mine:
    x0 = np.ones(2)

    def __init__(self):
        read = schema._tables_of.cache_info().misses
        Path(__file__).with_name("log").open("a").write(f"{os.getpid()} {read}\\n")

    def gradient(self, x, task):
        return 0.1 * x
"""


def test_each_rank_reads_the_job_once_and_builds_it_once(own_job: Path) -> None:
    Path("mine.py").write_text(ON_RANKS)
    words = ["run", str(own_job), "--workers", "2", "--set", "times.unit=1e-6"]
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, capture_output=True, timeout=120)
    builds = [line.split() for line in Path("log").read_text().splitlines()]
    assert len(builds) == len({process for process, _ in builds}) == 1 + 3
    assert {read for _, read in builds} == {"1"}
