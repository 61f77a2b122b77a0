"""The lock beside a run file: which process runs it, and that this process is alive.

An ordinary file, linked to its name only where there is none: that works on NFS and Lustre too.  Its owner
rewrites it every few seconds, and others watch whether it changes: who may run the file does not depend on
clocks, only what is shown of runs on other hosts does.
"""

import atexit
import glob
import json
import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.launch import host_name, slurm_job

BEAT_SECONDS = 5.0  # between two signs of life
WATCH_SECONDS = 60.0  # without one, after which a process that cannot be seen from here counts as dead
LOOK_SECONDS = 1.0  # between two looks at its lock
TRIES = 5  # to create a lock, before the run does without one
SETTLE_SECONDS = 0.2  # in which others that found the same dead process are done

log = logging.getLogger("mpi_ata")


@dataclass(frozen=True)
class Owner:
    """The process that runs a run file."""

    host: str
    process: int
    began: str  # in ticks since the host was booted
    table: str  # of processes, in which its number is unique: that of a boot and a container
    slurm_job: str
    restarts: int  # of the Slurm job

    def __str__(self) -> str:
        job = f" (Slurm job {self.slurm_job})" if self.slurm_job else ""
        return f"process {self.process} on {self.host}{job}"

    def has_ended(self, here: "Owner") -> bool | None:
        """Return whether this process has ended, or is the one that asks; None: cannot be seen here."""
        requeued = self.slurm_job == here.slurm_job != "" and self.restarts != here.restarts
        if self == here or requeued:
            return True
        if self.table != here.table or _is_hidden(self.process):
            return None
        return _began(self.process) != self.began


def this_process() -> Owner:
    """Return the process that calls this, as its lock names it."""
    boot, process = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.getpid()
    table, restarts = f"{boot} {os.readlink('/proc/self/ns/pid')}", os.environ.get("SLURM_RESTART_COUNT")
    return Owner(host_name(), process, _began(process), table, slurm_job() or "", int(restarts or 0))


def _began(process: int) -> str:
    """Return when a process began; empty if there is none, or only what its parent has not collected yet."""
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else numbers[18]


def _is_hidden(process: int) -> bool:
    """Return whether a process is another user's, of which /proc may show nothing."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return not _began(process)
    except OSError:
        return False
    return False


class RunLock:
    """The right of this process to write a run file."""

    def __init__(self, run: Path) -> None:
        target = Path(os.path.realpath(run))
        self._run, self._path = run, target.parent / f"{target.name}.lock"
        self._token, self._over, self._process = secrets.token_hex(8), threading.Event(), os.getpid()
        self._aside = target.parent / f"{target.name}.lock-{self._token}"

    def check(self) -> None:
        """Reject a run file that another process runs; the lock of a dead process is removed."""
        if (text := self._read()) is None:
            return
        owner = _parse(text)
        ended = owner.has_ended(this_process()) if owner else None
        if ended is False or (ended is None and self._changes(text, owner)):
            way_out = "stop it or wait for its end, or choose another file"
            raise UsageError(f"{self._run}: {owner or 'another process'} is running it; {way_out}")
        self._remove(text)

    def is_held(self) -> bool:
        """Return whether a process runs the file; one that cannot be seen from here has a fresh lock."""
        if (text := self._read()) is None:
            return False
        owner, here = _parse(text), this_process()
        if owner == here:
            return True
        if owner is not None and (ended := owner.has_ended(here)) is not None:
            return not ended
        with suppress(OSError):
            return time.time() - self._path.stat().st_mtime < WATCH_SECONDS
        return False

    def acquire(self) -> None:
        """Keep others from running this file until release; where no lock can be written, there is none."""
        with suppress(OSError):  # the first save says why
            for attempt in range(TRIES):
                if not self._create():
                    self.check()
                    continue
                if attempt:
                    time.sleep(SETTLE_SECONDS)
                if self._is_own():
                    threading.Thread(target=self._beat, daemon=True).start()
                    atexit.register(self.release)
                    return

    def _create(self) -> bool:
        """Create the lock, whole at once, and return whether there was none."""
        try:
            self._aside.write_text(self._text(0))
            _link(self._aside, self._path)
        except (FileExistsError, FileNotFoundError):  # the latter: swept away by another process
            return False
        finally:
            self._aside.unlink(missing_ok=True)
        for left in self._path.parent.glob(f"{glob.escape(self._path.name)}-*"):
            left.unlink(missing_ok=True)  # by a process that was killed
        return True

    def release(self) -> None:
        """Let others run this file."""
        self._over.set()
        atexit.unregister(self.release)
        if os.getpid() == self._process and self._is_own():  # not in a child that was forked
            with suppress(OSError):
                self._path.unlink()

    def _is_own(self) -> bool:
        return self._token in (self._read() or "")

    def _text(self, beat: int) -> str:
        return json.dumps(asdict(this_process()) | {"token": self._token, "beat": beat})

    def _beat(self) -> None:
        """Rewrite the lock every few seconds, for as long as it is that of this run."""
        beat = 0
        while not self._over.wait(BEAT_SECONDS):
            beat += 1
            with suppress(OSError), self._path.open("r+", errors="replace") as file:
                if self._token not in file.read():
                    return
                file.seek(0)
                file.write(self._text(beat))  # never shorter than before

    def _read(self) -> str | None:
        """Return the text of the lock, empty if it is unreadable; None if there is no lock."""
        try:
            return self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None
        except OSError:
            return ""

    def _changes(self, text: str, owner: Owner | None) -> bool:
        """Watch a lock, and return whether its owner gives a sign of life."""
        who = f"{owner} was running it" if owner else "its lock is not readable"
        log.warning("%s: %s; watching for %g s whether it still does", self._run, who, WATCH_SECONDS)
        until = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            if (now := self._read()) != text:
                return now is not None
        return False

    def _remove(self, text: str) -> None:
        """Remove a lock with this text; one that another process has just created is put back."""
        with suppress(OSError):
            self._path.rename(self._aside)
            if self._aside.read_text(errors="replace") != text:
                _link(self._aside, self._path)
        with suppress(OSError):
            self._aside.unlink()


def _link(file: Path, name: Path) -> None:
    """Give a file a second name, if that is free; where links are not possible, copy it."""
    try:
        os.link(file, name)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        with name.open("x") as copy:
            copy.write(file.read_text())


def _parse(text: str) -> Owner | None:
    """Return the process that a lock names; None where it names none."""
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(text)
        return Owner(*(found[field.name] for field in fields(Owner)))
    return None
