"""A problem whose tasks fail as a script says, and whose points are known in advance.

It is copied beside a job and imported on its ranks.
"""

import atexit
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata import Task, launch
from mpi_ata.arrays import Array

MODULUS = 2**16
GAP = 8  # rounds between two faults of one worker: time to be tried again and to come back


def following(x: Array) -> Array:
    """Return the point after x: whole numbers, so that no order of additions changes a bit of it."""
    result: Array = (1105 * x + 12345 + np.arange(x.size)) % MODULUS
    return result


class Scripted:
    """Moves x to following(x), in tasks of some milliseconds; `folder` has the script and the logs."""

    def __init__(self, folder: str, dimension: int = 10) -> None:
        self.x0 = np.arange(dimension, dtype=float)
        self.folder = Path(folder)
        self._script: list[dict[str, Any]] | None = None
        self._earliest = 1  # round of the next fault

    def setup(self, worker: int | None, n: int) -> None:
        """Fail in setup, if the script says so, and read what else it says."""
        script = json.loads((self.folder / "script.json").read_text())
        fired = self.fired()
        self._script = [
            fault
            for fault in script
            if fault["worker"] == worker and not fault["outside"] and str(fault["number"]) not in fired
        ]
        while self._script and self._script[0]["round"] == 0:
            self.fail(self._script.pop(0), worker or 0, np.zeros(0))

    def gradient(self, x: Array, task: Task) -> Any:
        """Return a result after some milliseconds, unless the script has a fault for this task."""
        if task.round > 0:
            with open(self.folder / f"begun-{task.worker}", "ab") as file:
                file.write(task.round.to_bytes(4, "little"))
        time.sleep(0.001 * (1 + task.worker % 3))
        result = self._result(x)
        if self._script and task.round >= max(self._script[0]["round"], self._earliest):
            self._earliest = task.round + GAP
            return self.fail(self._script.pop(0), task.worker, result)
        return result

    def _result(self, x: Array) -> Array:
        return x - following(x)

    def fail(self, fault: dict[str, Any], worker: int, result: Array) -> Any:
        """Log a fault, and let it happen."""
        kind = fault["kind"]
        with open(self.folder / "fired", "a") as file:
            file.write(f"{fault['number']} {worker} {kind} {os.getpid()} {time.monotonic()}\n")
        if kind in GARBAGE:
            return GARBAGE[kind](result)
        FAULTS[kind](fault["seconds"])
        return result

    def fired(self) -> list[str]:
        """Return the numbers of the faults that have happened."""
        path = self.folder / "fired"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


class Counting(Scripted):
    """Moves x by 1 with each task, wherever x is: for methods that update x by one task at a time."""

    def _result(self, x: Array) -> Array:
        return np.ones_like(x)


def do_item(value: int) -> int:
    """Do an item of a farm; if the script has a fault for it, that happens to the first worker who tries."""
    scripted = Scripted(str(Path(__file__).parent))
    with open(scripted.folder / "begun-0", "ab") as file:
        file.write(value.to_bytes(4, "little"))
    time.sleep(0.003)
    for fault in json.loads((scripted.folder / "script.json").read_text()):
        if fault["round"] == value and not fault["outside"] and str(fault["number"]) not in scripted.fired():
            scripted.fail(fault, launch.rank() - 1, np.zeros(0))
    return value**2


def _raise(error: BaseException) -> None:
    raise error


def _send_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # a signal from oneself may take effect a little later


def _run_out_of_memory(_: float) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**30, before[1]))
    try:
        np.ones(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _hold_the_gil(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (10**6) ** (10**5)  # one operation of C, of a second or so


GARBAGE: dict[str, Callable[[Array], Any]] = {
    "nan": lambda result: result * np.nan,
    "infinity": lambda result: result + np.inf,
    "shape": lambda result: result[1:],
    "none": lambda result: None,
    "text": lambda result: "garbage",
}
FAULTS: dict[str, Callable[[float], object]] = {
    "raise": lambda _: _raise(ValueError("as the script says")),
    "interrupt": lambda _: _raise(KeyboardInterrupt()),
    "base": lambda _: _raise(BaseException("as the script says")),
    "surrogate": lambda _: _raise(OSError(os.fsdecode(b"no file \xff"))),
    "memory": _run_out_of_memory,
    "hang-at-exit": lambda _: atexit.register(time.sleep, 3600),
    "crawl": time.sleep,
    "gil": _hold_the_gil,
    "hang": time.sleep,
    "stop": lambda _: _send_itself(signal.SIGSTOP),
    "kill": lambda _: _send_itself(signal.SIGKILL),
    "segfault": lambda _: _send_itself(signal.SIGSEGV),
    "abort": lambda _: os.abort(),
    "exit-0": lambda _: os._exit(0),
    "exit-3": lambda _: os._exit(3),
    "sys-exit": lambda _: sys.exit(),
}
