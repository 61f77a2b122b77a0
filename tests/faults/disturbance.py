"""A run on real ranks, and what a script of faults does to it from outside."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from mpi_ata.layout import worker_of
from tests.faults.plan import HEALTHY, Fault, Plan
from tests.mpi.starting import COMMAND, rank_pids, ranks_of, started

LOOK = 0.005  # seconds
LONGEST = 240.0  # seconds of one part of a run
GONE = 5.0  # seconds within which all processes of a run that has ended are gone
LONGEST_HANG = 8.0  # seconds: so long may a deadline be on a busy machine, where task times vary
BRIEF_HANG = 4.0  # and where no round waits for a worker that hangs
SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "terminate": signal.SIGTERM}


class Fired(NamedTuple):
    """A fault that has happened."""

    number: int
    worker: int
    kind: str
    pid: int
    time: float


class Part(NamedTuple):
    """One part of a run, from its start or a resumption to its end."""

    code: int
    out: str
    err: str


class Scene:
    """A folder with a job and its script, and what is known of its runs."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan, self.folder = plan, folder
        self.job, self.out = folder / ("farm.py" if plan.is_farm else "job.toml"), folder / "run.h5"
        shutil.copy(Path(__file__).with_name("scripted.py"), folder)
        self.job.write_text(plan.job(folder))
        (folder / "script.json").write_text(json.dumps([fault.as_dict() for fault in plan.faults]))
        self.parts: list[Part] = []
        self._ahead = [fault for fault in plan.faults if fault.outside]
        self._stopped: list[Fired] = []  # processes to be continued
        self._noticed: dict[int, float] = {}  # when which hang was known to the run
        self._shared: set[Path] = set()  # files in shared memory
        self._seen = 0  # lines of the log of faults
        self._rng = Random(plan.seed)  # noqa: S311

    def fired(self) -> list[Fired]:
        """Return the faults that have happened so far."""
        path = self.folder / "fired"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines]
        return [Fired(int(a), int(b), kind, int(pid), float(at)) for a, b, kind, pid, at in words]

    def begun(self, worker: int) -> int:
        """Return how many tasks a worker has begun, by its own count."""
        path = self.folder / f"begun-{worker}"
        return path.stat().st_size // 4 if path.exists() else 0

    def round(self) -> int:
        """Return the round that the run has reached."""
        with suppress(OSError), open(self.folder / f"begun-{HEALTHY}", "rb") as file:
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(4), "little")
        return 0

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs the job, or the script."""
        if self.plan.is_farm:
            return [sys.executable, str(self.job)]
        return [str(COMMAND), "run", str(self.job), "--out", str(self.out), "--json", *arguments]

    def part(self, *arguments: str) -> Part:
        """Run the job until it ends, with what happens to it from outside."""
        self._shared = set()
        with (
            open(self.folder / "out", "w+") as out,
            open(self.folder / "err", "w+") as err,
            started(self.command(*arguments), self.folder, out, err) as process,
        ):
            deadline = time.monotonic() + LONGEST
            while process.poll() is None:
                assert time.monotonic() < deadline, self.told(f"it hangs in round {self.round()}")
                self._interfere(process)
                time.sleep(LOOK)
        self.check_nothing_left()
        texts = [(self.folder / name).read_text() for name in ("out", "err")]
        self.parts.append(Part(process.returncode, *texts))
        return self.parts[-1]

    def _interfere(self, process: "subprocess.Popen[str]") -> None:
        """Do what is to be done from outside by now."""
        if self.round() and not self._shared:
            self.watch_shared_memory()
        while self._ahead and self._ahead[0].round <= self.round():
            time.sleep(self._rng.uniform(0, 0.02))  # anywhere within a round
            self._inject(self._ahead.pop(0), process)
        fired = self.fired()
        self._stopped += [fault for fault in fired[self._seen :] if fault.kind in ("stop", "pause")]
        self._seen = len(fired)
        for fault in [fault for fault in self._stopped if self._is_over(fault)]:
            self._stopped.remove(fault)
            if fault.pid in ranks_of(str(self.job)):
                os.kill(fault.pid, signal.SIGCONT)

    def _is_over(self, fault: Fired) -> bool:
        """Return whether to continue a stopped process: one that hangs, some time after that was noticed."""
        if fault.kind == "stop" and self.plan.is_farm:  # others do all that it holds
            return False
        now, patience = time.monotonic(), LONGEST_HANG if self.plan.waits else BRIEF_HANG
        if fault.kind == "stop" and fault.number not in self._noticed:
            text = (self.folder / "err").read_text()
            if f"Note: overdue worker {fault.worker} " not in text and now < fault.time + patience:
                return False
            self._noticed[fault.number] = now
        return now > self._noticed.get(fault.number, fault.time) + self._fault(fault.number).seconds

    def waits_for(self, fault: Fired) -> bool:
        """Return whether the run must have noticed a hang: greedy rounds do not wait for a worker."""
        noticed = self._noticed.get(fault.number, fault.time) < fault.time + LONGEST_HANG
        return self.plan.waits and noticed

    def is_outside(self, fault: Fired) -> bool:
        """Return whether a fault was caused from outside."""
        return self._fault(fault.number).outside

    def _fault(self, number: int) -> Fault:
        return next(fault for fault in self.plan.faults if fault.number == number)

    def _inject(self, fault: Fault, process: "subprocess.Popen[str]") -> None:
        pid = process.pid
        if fault.kind != "terminate":
            pids = {worker_of(rank): pid for rank, pid in rank_pids(str(self.job)).items()}
            if fault.worker not in pids:
                return
            pid = pids[fault.worker]
        if fault.kind == "freeze":
            self._freeze(list(pids.values()), fault.seconds)
        with open(self.folder / "fired", "a") as file:
            file.write(f"{fault.number} {fault.worker} {fault.kind} {pid} {time.monotonic()}\n")
        if fault.kind in SIGNALS:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGNALS[fault.kind])

    def _freeze(self, pids: list[int], seconds: float) -> None:
        """Stop all ranks for some time, those aside that hang."""
        pids = [pid for pid in pids if pid not in {fault.pid for fault in self._stopped}]
        for number, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause)

    def watch_shared_memory(self) -> None:
        """Note which files the ranks have in shared memory."""
        self._shared = set().union(*map(shared_files, ranks_of(str(self.job))))

    def check_nothing_left(self) -> None:
        """Check that neither a process nor a file in shared memory is left of a run."""
        deadline = time.monotonic() + GONE
        while left := ranks_of(str(self.folder)):
            assert time.monotonic() < deadline, self.told(f"{len(left)} processes are left")
            time.sleep(0.05)
        files = [str(path) for path in self._shared if path.exists()]
        assert not files, self.told(f"in shared memory are left: {files}")

    def told(self, complaint: str) -> str:
        """Return a complaint with all that helps to repeat it."""
        texts = [part.err for part in self.parts]
        texts += [path.read_text() for path in self.folder.glob("err")]
        errors = "".join(text[-2000:] for text in texts)
        return f"seed {self.plan.seed}: {complaint}\n{self.plan}\n{self.fired()}\n{errors}"


def shared_files(pid: int) -> set[Path]:
    """Return the files in shared memory that a process has open and that others could open too."""
    files = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if path.startswith("dev/shm/") and not path.endswith(" (deleted)"):
                files.add(Path("/" + path))
    return files
