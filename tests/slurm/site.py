"""What a user does on a cluster: write job files, run mpi-ata on the login node, look at the queue."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from mpi_ata.arrays import Array
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.slurm.private import NODES, ROOT, PrivateSlurm, idle, until

OPEN_MPI = Path(sys.executable).with_name("mpi-ata")
MPICH = ROOT / ".venv-mpich" / "bin" / "mpi-ata"
SYSTEM = ROOT / ".venv-system" / "bin" / "mpi-ata"  # mpi4py from pip with the MPI of the system
BOTH = pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
PATIENCE = 120.0  # seconds for what takes ten on an idle machine
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

# Rounds of at least 30 ms; the same numbers however often it is interrupted.
DRAWN = """
[problem]
name = "quadratic"
dimension = 20
[method]
name = "sgd"
step_size = 0.3
[allocator]
name = "ata-empirical"
budget = 5
[times]
law = "linear"
scale = 1.0
unit = 0.01
report = "drawn"
[stop]
rounds = {rounds}
[run]
seed = 11
checkpoint_seconds = 1
"""

# Tasks with measured times.
MEASURED = """
[problem]
file = "own.py"
class = "Own"
seconds = {seconds}
[method]
name = "sgd"
step_size = 0.3
[allocator]
name = "ata-empirical"
budget = 6
[stop]
rounds = {rounds}
[run]
checkpoint_seconds = 1
"""
OWN = """
import time
import numpy as np
import neighbour

class Own:
    x0 = np.ones(3)

    def __init__(self, seconds: float = 0.01):
        self.seconds = seconds

    def gradient(self, x, task):
        time.sleep(self.seconds)
        return neighbour.gradient(x)
"""

# The same without neighbours, and with lines of a test's own.
BARE = """
import os, signal, time
import numpy as np
from pathlib import Path

class Own:
    x0 = np.ones(3)

    def setup(self, worker, n):
{setup}

    def gradient(self, x, task):
{task}
        return 0.1 * x
"""


def size(nodes: int, per_node: int = 1) -> tuple[object, ...]:
    """Return the options for this many nodes and ranks."""
    return "--nodes", nodes, "--ntasks-per-node", per_node, "--time", 10


FOUR = size(4)


@dataclass(frozen=True)
class Site:
    """A user's folder on a cluster."""

    slurm: PrivateSlurm
    folder: Path
    before: frozenset[str] = frozenset()  # ids of the processes that are part of the cluster

    def drawn(self, rounds: int, name: str = "job") -> Path:
        """Write a job with drawn times."""
        path = self.folder / f"{name}.toml"
        path.write_text(DRAWN.format(rounds=rounds))
        return path

    def measured(self, rounds: int, seconds: float = 0.01) -> Path:
        """Write a job whose problem is in a file of the user's, which imports another."""
        (self.folder / "own.py").write_text(OWN)
        (self.folder / "neighbour.py").write_text("def gradient(x):\n    return 0.1 * x\n")
        path = self.folder / "own.toml"
        path.write_text(MEASURED.format(rounds=rounds, seconds=seconds))
        return path

    def own(self, task: str = "pass", setup: str = "pass", rounds: int = 3) -> Path:
        """Write a job with another problem of the user's: what it does in a task, and before."""
        path = self.measured(rounds)
        path.write_text(path.read_text().replace("seconds = 0.01\n", ""))
        parts = {"task": indent(task, " " * 8), "setup": indent(setup, " " * 8)}
        (self.folder / "own.py").write_text(BARE.format(**parts))
        return path

    def ata(self, *words: object, command: Path = OPEN_MPI, code: int = 0, **more: str) -> str:
        """Run mpi-ata on the login node and return what it prints, on stderr if it is to fail."""
        done = self.slurm.run(command, *map(str, words), cwd=self.folder, seconds=PATIENCE, **more)
        assert done.returncode == code, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def submit(self, *words: object, command: Path = OPEN_MPI, **more: str) -> dict[str, Any]:
        """Submit a job and return the JSON that mpi-ata prints."""
        printed = self.ata("submit", *words, "--json", command=command, code=0, **more)
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found

    def complete(self, *words: object, command: Path = OPEN_MPI, **more: str) -> dict[str, Any]:
        """Submit a job and wait until it is completed."""
        submitted = self.submit(*words, command=command, **more)
        self.wait_completed(submitted["job"])
        return submitted

    def status(self, which: object) -> list[dict[str, Any]]:
        """Return the status rows of a Slurm job or a run."""
        found: list[dict[str, Any]] = json.loads(self.ata("status", which, "--json").splitlines()[-1])
        return found

    def state_of(self, which: object) -> tuple[str, int]:
        """Return the state of a run in one word, and how often it has started."""
        (row,) = self.status(which)
        return row["state"], row["starts"]

    def virtual_x(self, job: Path, workers: int, *words: object) -> Array:
        """Return the final x of a job that is not interrupted."""
        out = self.folder / f"virtual-{time.monotonic_ns()}.h5"
        self.ata("run", job, "--virtual", "--workers", workers, "--out", out, *words)
        return final_x(out)

    def wait_requeued(self, job: object) -> None:
        """Wait until a Slurm job has been requeued once."""
        until(lambda: self.slurm.job(job)["Restarts"] == "1", PATIENCE, lambda: self.story(job))

    def wait_over(self, job: object, seconds: float = PATIENCE) -> str:
        """Wait until a Slurm job is over, and return its state."""
        until(lambda: self.state(job) in OVER, seconds, lambda: self.story(job))
        return self.state(job)

    def wait_completed(self, job: object, seconds: float = PATIENCE) -> None:
        """Wait until a Slurm job is completed; fail if it ends in any other way."""
        assert self.wait_over(job, seconds) == "COMPLETED", self.story(job)

    def state(self, job: object) -> str:
        """Return the state of a Slurm job."""
        return self.slurm.job(job)["JobState"]

    def story(self, job: object) -> str:
        """Return all that is known of a Slurm job, for the message of a failing test."""
        logs = "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in self.folder.rglob("*.out"))
        return f"{self.slurm.job(job)}\n{logs}"

    def wait_beyond(self, run: object, rounds: int, seconds: float = PATIENCE) -> None:
        """Wait until a run has been saved beyond a round."""
        until(lambda: rounds_of(Path(str(run))) > rounds, seconds, lambda: str(list(self.folder.rglob("*"))))

    def check_no_process_left(self) -> None:
        """Check that no process of a job is left on the cluster."""
        until(lambda: not self.left_over(), 20, lambda: str(self.left_over()))

    def left_over(self) -> list[str]:
        """Return the command lines of processes that are not part of the cluster."""
        return [line for pid, line in self.slurm.processes().items() if pid not in self.before]

    def cancel_all(self) -> None:
        """Cancel all jobs, so that the next test starts with an idle cluster."""
        self.slurm.run("scancel", "--user=root")
        until(lambda: idle(self.slurm) == len(NODES), 60)

    def log(self, submitted: dict[str, Any]) -> str:
        """Return the log of a submitted run."""
        return Path(submitted["log"]).read_text()

    def log_so_far(self, submitted: dict[str, Any]) -> str:
        """Return the log of a run that may not have begun."""
        return self.log(submitted) if Path(submitted["log"]).exists() else ""


def record(run: object) -> Record:
    """Return the record in a run file."""
    return load_record(RunFile(Path(str(run))))[0]


def rounds_of(run: Path) -> int:
    """Return the number of saved rounds of a run; -1 before its first save."""
    return int(record(run).summary["rounds"]) if RunFile(run).exists() else -1


def kinds(run: object) -> list[str]:
    """Return the kinds of the events of a run, in order."""
    return [event.kind for event in record(run).events]


def final_x(run: object) -> Array:
    """Return the point at which a run has ended."""
    return record(run).method["x"]


def hosts(run: object) -> list[str]:
    """Return the hosts of the workers of a run."""
    return [worker.host for worker in record(run).identities]
