"""What a user does on a cluster: job files, mpi-ata on the login node, a look at the queue."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mpi_ata.arrays import Array
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile
from tests.slurm.private import NODES, PrivateSlurm, idle, until

ROOT = Path(__file__).parent.parent.parent
OPEN_MPI = Path(sys.executable).with_name("mpi-ata")
MPICH = ROOT / ".venv-mpich" / "bin" / "mpi-ata"
SYSTEM = ROOT / ".venv-system" / "bin" / "mpi-ata"  # pip's mpi4py with the MPI that the system has
BOTH = pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
PATIENCE = 120.0  # seconds for what takes ten on a machine that has nothing else to do
FOUR = ("--nodes", 4, "--ntasks-per-node", 1, "--time", 10)
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

# Rounds of 30 ms and more, the same numbers however often it is interrupted.
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

# Tasks that take the time they take.
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


@dataclass(frozen=True)
class Site:
    """A user's folder on a cluster."""

    slurm: PrivateSlurm
    folder: Path
    before: frozenset[str] = frozenset()  # ids of the processes that are always there

    def drawn(self, rounds: int, name: str = "job") -> Path:
        """A job with drawn times."""
        path = self.folder / f"{name}.toml"
        path.write_text(DRAWN.format(rounds=rounds))
        return path

    def measured(self, rounds: int, seconds: float = 0.01) -> Path:
        """A job with a problem of one's own, which imports its neighbour."""
        (self.folder / "own.py").write_text(OWN)
        (self.folder / "neighbour.py").write_text("def gradient(x):\n    return 0.1 * x\n")
        path = self.folder / "own.toml"
        path.write_text(MEASURED.format(rounds=rounds, seconds=seconds))
        return path

    def own(self, problem: str) -> Path:
        """A short job with another problem of one's own."""
        path = self.measured(3)
        path.write_text(path.read_text().replace("seconds = 0.01\n", ""))
        (self.folder / "own.py").write_text(problem)
        return path

    def ata(self, *words: object, command: Path = OPEN_MPI, code: int = 0, **more: str) -> str:
        """What mpi-ata prints on the login node."""
        done = self.slurm.run(command, *map(str, words), cwd=self.folder, seconds=PATIENCE, **more)
        assert done.returncode == code, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def submit(self, *words: object, command: Path = OPEN_MPI, **more: str) -> dict[str, Any]:
        """Submit a job; what it came to."""
        found: dict[str, Any] = json.loads(
            self.ata("submit", *words, "--json", command=command, code=0, **more).splitlines()[-1]
        )
        return found

    def status(self, which: object) -> list[dict[str, Any]]:
        """What mpi-ata says of a Slurm job."""
        found: list[dict[str, Any]] = json.loads(self.ata("status", which, "--json").splitlines()[-1])
        return found

    def virtual_x(self, job: Path, workers: int, *words: object) -> Array:
        """Where a job arrives when nothing happens to it."""
        out = self.folder / f"virtual-{time.monotonic_ns()}.h5"
        self.ata("run", job, "--virtual", "--workers", workers, "--out", out, *words)
        return record(out).method["x"]

    def restarted(self, job: object) -> None:
        """Wait until a Slurm job was requeued once."""
        until(lambda: self.slurm.job(job)["Restarts"] == "1", PATIENCE, lambda: self.story(job))

    def over(self, job: object, seconds: float = PATIENCE) -> str:
        """Wait until a Slurm job is over; how."""
        until(lambda: self.state(job) in OVER, seconds, lambda: self.story(job))
        return self.state(job)

    def state(self, job: object) -> str:
        """The state of a Slurm job."""
        return self.slurm.job(job)["JobState"]

    def story(self, job: object) -> str:
        """What is known of a Slurm job, for whoever reads of a failure."""
        logs = "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in self.folder.rglob("*.out"))
        return f"{self.slurm.job(job)}\n{logs}"

    def beyond(self, run: object, rounds: int, seconds: float = PATIENCE) -> None:
        """Wait until a run has been saved beyond a round."""
        until(lambda: rounds_of(Path(str(run))) > rounds, seconds, lambda: str(list(self.folder.rglob("*"))))

    def no_process(self) -> None:
        """See that nothing is on the cluster that was not there before."""
        until(lambda: not self.left_over(), 20, lambda: str(self.left_over()))

    def left_over(self) -> list[str]:
        """The command lines that were not there before."""
        return [line for pid, line in self.slurm.processes().items() if pid not in self.before]

    def leave(self) -> None:
        """Take all jobs out of the queue, so that the next test finds the cluster as this one did."""
        self.slurm.run("scancel", "--user=root")
        until(lambda: idle(self.slurm) == len(NODES), 60)

    def log(self, submitted: dict[str, Any]) -> str:
        """What a submitted run has said."""
        return Path(submitted["log"]).read_text()


def record(run: object) -> Record:
    """What a run file says."""
    return load_record(RunFile(Path(str(run))))[0]


def rounds_of(run: Path) -> int:
    """The rounds that a run has saved."""
    return int(record(run).summary["rounds"]) if RunFile(run).exists() else -1


def kinds(run: object) -> list[str]:
    """What has happened to a run, in order."""
    return [event.kind for event in record(run).events]
