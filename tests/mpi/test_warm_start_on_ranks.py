"""Warm starts on real ranks: only the manager reads files, and measured workers are recognised."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from mpi_ata.launch import find_mpirun
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.mpi.starting import COMMAND, finished, mpirun

Done = CompletedProcess[str]

JOB = """
[problem]
name = "quadratic"
dimension = 10
[method]
name = "sgd"
step_size = 0.1
[allocator]
name = "ata-empirical"
budget = 4
[times]
law = "linear"
scale = 1.0
unit = 1e-3
[stop]
rounds = 500
[run]
workers = 6
"""
OWN = """
import time
import numpy as np

class Own:
    x0 = np.zeros(2)

    def gradient(self, x, task):
        time.sleep(1e-3 * (1 + task.worker))
        return np.ones(2)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def measured(job: Path) -> None:
    """Return the job without drawn times."""
    job.with_name("own.py").write_text(OWN)
    text = job.read_text().replace('name = "quadratic"\ndimension = 10', 'file = "own.py"\nclass = "Own"')
    job.write_text(text[: text.index("[times]")] + text[text.index("[stop]") :])


def run(job: Path, out: str, *arguments: object, launcher: int = 0) -> Done:
    """Run a job, started by the command itself, or by mpirun on this many ranks."""
    words = ["run", job, "--json", "--out", job.with_name(out), *arguments]
    command = [str(COMMAND), *map(str, words)]
    return mpirun(launcher, *command) if launcher else finished(command)


def record(job: Path, out: str) -> Record:
    return load_record(RunFile(job.with_name(out)))[0]


def test_only_the_manager_reads_the_files_of_earlier_runs(job: Path) -> None:
    done = run(job, "1.h5", "--set", "stop.rounds=5", "--workers", 2, launcher=3)
    assert done.returncode == 0, done.stderr
    here, elsewhere = job.parent / "here", job.parent / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    job.with_name("1.h5").rename(here / "1.h5")
    words = [str(COMMAND), "run", str(job), "--set", "stop.rounds=5", "--out", "2.h5", "--warm-start", "1.h5"]
    ranks = ["-n", "1", "-wdir", str(here), *words, ":", "-n", "3", "-wdir", str(elsewhere), *words]
    done = finished([find_mpirun(), *ranks])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warm-started") == 1
    assert "from 5 rounds of 1 earlier run: 2 of 3 workers recognised, 1 starts cold" in done.stderr
    assert (here / "2.h5").exists()
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_measured_workers_are_recognised_by_the_number_of_ranks_on_their_node_too(job: Path) -> None:
    measured(job)
    few = ["--set", "stop.rounds=8"]
    assert run(job, "1.h5", *few, "--workers", 2).returncode == 0
    again = run(job, "2.h5", *few, "--workers", 2, "--warm-start", job.with_name("1.h5"))
    assert "from 8 rounds of 1 earlier run: 2 of 2 workers recognised\n" in again.stderr
    first, second = record(job, "1.h5"), record(job, "2.h5")
    assert second.allocator["K"].tolist() == (first.workers["tasks"] + second.workers["tasks"]).tolist()
    assert [(each.local_index, each.ranks_on_host) for each in first.identities] == [(1, 3), (2, 3)]
    more = run(job, "3.h5", *few, "--workers", 3, "--warm-start", job.parent)
    assert "0 of 3 workers recognised, 3 start cold; 2 workers changed: " in more.stderr
    assert "3 ranks then, " in more.stderr
    assert "4 ranks now\n" in more.stderr
