"""A signal ends every phase of a simulation, also one that never looks at it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError
from mpi_ata.launch.signals import GraceExpired, StopRequest
from tests.driver.driven import driven
from tests.faults.scene import record_of, written

# Python drops what is raised in a callback of its garbage collector: then the next alarm ends the phase.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
OUT = Path("run.h5")
GRACE = "checkpoint_rounds = 1\ngrace = 0.2"
FOREVER = "while True: sum(range(1000))"
PROBLEM = """
import numpy as np
class Own:
    x0 = np.zeros(2)
    def __init__(self):
        {construct}
    def setup(self, worker, n):
        {setup}
    def gradient(self, x, task):
        {task}
        return x
    def evaluate(self, x):
        {evaluate}
        return {{}}
"""
STUBBORN = "\n".join(
    [
        "while True:",
        "            try:",
        "                sum(range(1000))",
        "            except Exception:",
        "                pass",
    ]
)
ALLOCATOR = """
from mpi_ata import UTA
class Slow(UTA):
    def allocate(self, available):
        while self.k == 4:
            sum(range(1000))
        return super().allocate(available)
"""


@contextmanager
def signalled(after: float = 0.5) -> Iterator[None]:
    """Send SIGTERM to this process, and require that what runs ends soon after."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
    assert time.monotonic() - began < 10


def job_with(folder: Path, **phases: str) -> Path:
    """Write a job whose problem does this in its phases."""
    phases = dict.fromkeys(["construct", "setup", "task", "evaluate"], "pass") | phases
    (folder / "own.py").write_text(PROBLEM.format(**phases))
    return written(folder / "job.toml", "sgd uta", run=GRACE, problem='file = "own.py"\nclass = "Own"')


@pytest.mark.parametrize("phase", ["construct", "setup"])
def test_before_the_first_round_a_signal_ends_the_run_with_a_sentence(tmp_path: Path, phase: str) -> None:
    job = job_with(tmp_path, **{phase: FOREVER})
    with signalled(), pytest.raises(RunError, match="SIGTERM received during set-up"):
        driven(job, output=OutputOptions(OUT))


@pytest.mark.parametrize("phase", ["task", "evaluate"])
@pytest.mark.parametrize("body", [FOREVER, STUBBORN], ids=["forever", "stubborn"])
def test_a_task_or_an_evaluation_that_never_ends_is_interrupted(
    tmp_path: Path, phase: str, body: str
) -> None:
    with signalled():
        outcome = driven(job_with(tmp_path, **{phase: body}), output=OutputOptions(OUT))
    assert (outcome.reason, outcome.signal, outcome.resumable) == (None, "SIGTERM", True)
    assert record_of(OUT).method["k"] == 0


@pytest.mark.parametrize("phase", ["task", "evaluate"])
def test_a_second_ctrl_c_is_not_taken_for_an_error_of_what_it_interrupts(tmp_path: Path, phase: str) -> None:
    pressed = "import os\n        for _ in range(2): os.kill(os.getpid(), 2)"
    outcome = driven(job_with(tmp_path, **{phase: pressed}), output=OutputOptions(OUT))
    assert (outcome.reason, outcome.signal, outcome.resumable) == (None, "SIGINT", True)


def test_an_interruption_that_python_drops_is_repeated(tmp_path: Path) -> None:
    class_ = 'type("Slow", (), {"__del__": lambda self: time.sleep(1)})'
    body = f"import time\n        {class_}()\n        {FOREVER}"  # __del__ drops what is raised in it
    with signalled():
        outcome = driven(job_with(tmp_path, task=body), output=OutputOptions(OUT))
    assert (outcome.reason, outcome.signal, outcome.resumable) == (None, "SIGTERM", True)


def test_a_decision_that_never_ends_is_interrupted_and_the_latest_save_is_left(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", "sgd uta", run=GRACE)
    (tmp_path / "slow.py").write_text(ALLOCATOR)
    with signalled():
        outcome = driven(job, ["allocator.file=slow.py", "allocator.class=Slow"], output=OutputOptions(OUT))
    assert (outcome.reason, outcome.signal, outcome.resumable) == (None, "SIGTERM", True)
    assert record_of(OUT).method["k"] == 4


@pytest.mark.parametrize("method", ["sgd uta", "sgd gta"])
def test_a_simulated_round_of_millions_of_tasks_is_interrupted(tmp_path: Path, method: str) -> None:
    job = written(tmp_path / "job.toml", method, run=GRACE)
    with signalled():
        outcome = driven(job, ["allocator.budget=20000000"], output=OutputOptions(OUT))
    assert (outcome.reason, outcome.signal, outcome.trace.round) == (None, "SIGTERM", 0)


def test_what_is_done_between_rounds_is_not_interrupted() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with StopRequest(grace=0.01) as stop_request:
        rounds = stop_request.enforced_on(iter(range(3)))
        assert next(rounds) == 0
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)  # saving, say: the grace period ends here
        assert stop_request.grace_expired()
        with pytest.raises(GraceExpired):
            next(rounds)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
