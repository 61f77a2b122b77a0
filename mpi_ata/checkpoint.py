"""When a run is saved, and what happens where it cannot be."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mpi_ata.errors import RunError, UsageError
from mpi_ata.record import Record, to_tree
from mpi_ata.store import RunFile

SHARE = 0.01  # of the time may go into saving,
LONGEST = 300.0  # but never are saves further apart than this: seconds
SHORTEST = 1.0


class Checkpoints:
    """Saves records to a run file, as often as it was told, or as often as they are cheap enough."""

    def __init__(
        self, file: RunFile, rounds: int | None, seconds: float | None, note: Callable[[str], None]
    ) -> None:
        self.file = file
        self._rounds, self._seconds, self._note = rounds, seconds, note
        self._latest, self._saved_at, self._cost = 0, -LONGEST, 0.0

    def due(self, round: int) -> bool:
        """Whether it is time for a save."""
        if self._rounds is not None and round - self._latest >= self._rounds:
            return True
        return time.monotonic() - self._saved_at >= self._interval()

    def _interval(self) -> float:
        if self._seconds is not None:
            return self._seconds
        return LONGEST if self._rounds else min(max(self._cost / SHARE, SHORTEST), LONGEST)

    def save_first(self, record: Record) -> None:
        """Save before time is spent on the run; where that fails there is no run."""
        try:
            self._save(record)
        except OSError as error:
            way_out = "choose another --out"
            raise UsageError(f"{self.file.path} cannot be written: {error.strerror}; {way_out}") from None

    def save(self, record: Record) -> None:
        """Save; where that fails the run goes on, and the user is told."""
        try:
            self._save(record)
        except OSError as error:
            self._saved_at = time.monotonic()
            self._note(
                f"{self.file.path} could not be saved: {error.strerror}; the run goes on and tries again"
            )

    def _save(self, record: Record) -> None:
        began = time.monotonic()
        self.file.save(*to_tree(record))
        self._saved_at = time.monotonic()
        self._cost = max(self._saved_at - began, self._cost / 2)
        self._latest = int(record.method["k"])

    def save_last(self, record: Record) -> None:
        """Save for the last time; where that fails, elsewhere, and the user is told."""
        try:
            self.file.save(*to_tree(record))
            return
        except OSError as error:
            failure = f"{self.file.path} could not be saved: {error.strerror}"
        for folder in (Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
            other = RunFile(folder / f"{self.file.path.stem}-{record.run[:8]}{self.file.path.suffix}")
            try:
                if folder != self.file.path.parent and not other.exists():
                    other.save(*to_tree(record))
                    raise RunError(f"{failure}; the run was saved to {other.path} instead")
            except OSError:
                continue
        raise RunError(f"{failure}, nor anywhere else; what {self.file.previous.parent} has is older")


def fresh_path(job: Path) -> Path:
    """A name in runs/ that no other run has."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 10_000):
        path = Path("runs") / f"{job.stem}-{stamp}{f'-{number}' if number > 1 else ''}.h5"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            return path
    raise RunError(f"no free name for a run file in {os.fspath(Path.cwd() / 'runs')}; give one with --out")
