"""Running mpi-ata in tests: in this process, as a user does, and on a terminal."""

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpi_ata.cli import main

MPI_ATA = Path(sys.executable).with_name("mpi-ata")
ENDLESS = ["--set", "stop.rounds=1000000000"]
COUNTS = ("tasks_started", "tasks_used", "tasks_wasted", "tasks_lost", "mean_delay", "largest_delay")
TIMES = ("setup_time", "decision_time", "update_time", "evaluation_time", "saving_time", "billed", "waste")
KEYS = {"rounds", "clock", "worker_time", "elapsed", *COUNTS, "loss", "gap", "evaluation", *TIMES}
KEYS |= {"workers", "finished", "out"}
JOB = """
[problem]
name = "quadratic"
dimension = 10

[method]
name = "sgd"
step_size = 0.4

[allocator]
name = "ata-empirical"
budget = 7
eta = 1.0

[times]
law = "sqrt"

[stop]
rounds = 50

[run]
workers = 5
seed = 5
"""
TIMED = pytest.mark.flaky(reruns=2)  # a stall of the machine may decide one try, a mistake decides all


def use_own_problem(job: str, body: str) -> None:
    """Give the job a problem of the user's own without a loss; `body` is what a task does."""
    lines = ["class Mine:", "    x0 = np.ones(3)", "    def gradient(self, x, task):", f"        {body}"]
    Path(job).with_name("mine.py").write_text("\n".join(["import numpy as np", *lines]))
    by_file = 'file = "mine.py"\nclass = "Mine"'
    Path(job).write_text(JOB.replace('name = "quadratic"\ndimension = 10', by_file))


def use_metrics(job: str, *names: str) -> None:
    """Give the job a problem that evaluates these metrics, which grow from round to round."""
    returned = ", ".join(f"{name!r}: 1 - abs(float(x[0]))" for name in names)
    use_own_problem(job, f"return x\n    def evaluate(self, x):\n        return {{{returned}}}")


def call(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, arguments)


def start(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user does."""
    return subprocess.run([MPI_ATA, *arguments], capture_output=True, text=True, timeout=60, check=False)


class OnTerminal:
    """A command whose stderr is a terminal, and everything that was written to it."""

    def __init__(self, process: "subprocess.Popen[str]", terminal: int) -> None:
        self.process = process
        self.shown = ""
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a letter may come in two parts

    def read_until(self, text: str) -> None:
        """Wait until a text shows up, or the process ends."""
        deadline = time.monotonic() + 60
        while text not in self.shown and time.monotonic() < deadline:
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.shown += self._decoder.decode(os.read(self._terminal, 4096))
                except OSError:  # on Linux: the other side has closed
                    return
            elif self.process.poll() is not None:
                return

    def end(self) -> str:
        """Wait for the end and return what was printed on stdout."""
        self.read_until("never shown")
        return self.process.communicate(timeout=60)[0]


def _restore_signals() -> None:
    """Restore signals that are ignored if these tests run in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def on_terminal(*arguments: str, lines: int = 9, stdout: bool = False) -> Iterator[OnTerminal]:
    """Start a command whose stderr is a terminal with so many lines of 100 columns; if asked, stdout too."""
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (lines, 100))
    process = subprocess.Popen(
        [MPI_ATA, *arguments],
        stdout=terminal if stdout else subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")},
        preexec_fn=_restore_signals,
    )
    os.close(terminal)
    with process:
        try:
            yield OnTerminal(process, reader)
        finally:
            process.kill()
            os.close(reader)
