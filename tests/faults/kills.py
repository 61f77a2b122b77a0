"""Kills running jobs (-9) and sees that their files open, that no more than an interval is lost, and that
the resumed run comes to the same, bit for bit.

    python -m tests.faults.kills 200 5          at random moments, so many times, with this seed
    python -m tests.faults.kills steps          before, in and after each step of a save
"""

import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpi_ata.driver.plan import OutputOptions
from mpi_ata.driver.trace import Trace
from tests.driver.driven import driven
from tests.faults.scene import METHODS, differing, record_of, substance, written

EVERY = 2  # rounds from save to save
STEPS = ("open", "write", "fsync", "close", "replace")  # the system calls of a save
MODES = {"before": STEPS, "after": STEPS, "amid": ("write",)}


class Case:
    """One job, what it comes to undisturbed, and a child to be killed."""

    def __init__(self, folder: Path, method: str, rounds: int) -> None:
        self.job = written(folder / "job.toml", method, rounds, run=f"checkpoint_rounds = {EVERY}")
        self.out = folder / "run.h5"
        self._reported = mmap.mmap(-1, 8)  # shared with the child: how many rounds it has done
        self.run(folder / "undisturbed.h5")
        self.expected = substance(folder / "undisturbed.h5")

    def run(self, out: Path) -> None:
        driven(self.job, look=self._report, output=OutputOptions(out, resume=True))

    def _report(self, trace: Trace) -> None:
        self._reported[:] = trace.round.to_bytes(8, "little")

    def killed(self, prepare: Callable[[], object], delay: float | None = None) -> bool:
        """Let a child run the job, and kill it after a delay unless it does so itself; whether it was."""
        self._reported[:] = bytes(8)
        child = os.fork()
        if child == 0:
            prepare()
            self.run(self.out)
            os._exit(0)
        if delay is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True

    def check(self) -> int:
        """That the file opens with at most an interval lost; the rounds that it knows."""
        done = int.from_bytes(self._reported[:], "little")
        if not done and not self.out.exists():
            return 0
        k = int(record_of(self.out).method["k"])
        assert k >= done - EVERY, f"{done} rounds were done, the file knows {k}"
        left = [path.name for path in self.out.parent.glob("run.h5*")]
        assert len(left) <= 4, left  # two saves, one half written, and the lock
        return k

    def compare(self) -> None:
        """That the run came to what it comes to undisturbed; and begin anew."""
        found = substance(self.out)
        assert not differing(found, self.expected), differing(found, self.expected)
        left = sorted(path.name for path in self.out.parent.glob("run.h5*"))
        assert left == ["run.h5"], left
        for name in left:
            (self.out.parent / name).unlink()


def at_random_moments(kills: int, seed: int) -> dict[str, int]:
    """Kill jobs of all methods after random times, each again and again until it has come to its end."""
    rng, count = random.Random(seed), dict.fromkeys(("kills", "at the start", "runs ended"), 0)  # noqa: S311
    with TemporaryDirectory() as name:
        cases = []
        for method in METHODS:
            (folder := Path(name) / method.replace(" ", "-")).mkdir()
            cases.append(Case(folder, method, rounds=30))
        while count["kills"] < kills:
            case = cases[count["runs ended"] % len(cases)]
            while case.killed(lambda: None, delay=rng.uniform(0, 0.5)):
                count["kills"] += 1
                count["at the start"] += not case.check()
            case.compare()
            count["runs ended"] += 1
    return count


def at_each_step() -> dict[str, int]:
    """Kill a job before, in and after each system call of its saves: the first, some, and the last."""
    count = dict.fromkeys(("kills", "at the start"), 0)
    with TemporaryDirectory() as name:
        case = Case(Path(name), "sgd ata-empirical", rounds=2 * EVERY)
        for mode in MODES:
            step = 0
            while case.killed(Trap(step, mode)):
                count["kills"] += 1
                count["at the start"] += not case.check()
                case.run(case.out)
                case.compare()
                step += 1
            case.compare()
    return count


class Trap:
    """Ends this process at a system call of a save."""

    def __init__(self, step: int, mode: str) -> None:
        self._left, self._mode = step, mode

    def __call__(self) -> None:
        for name in MODES[self._mode]:
            setattr(os, name, self._trapped(getattr(os, name)))

    def _trapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*arguments: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return call(*arguments)
            if self._mode == "amid":
                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if self._mode == "after":
                call(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("a process that was killed goes on")

        return trapped


if __name__ == "__main__":
    if sys.argv[1:] == ["steps"]:
        print(json.dumps(at_each_step()))
    else:
        print(json.dumps(at_random_moments(int(sys.argv[1]), int(sys.argv[2]))))
