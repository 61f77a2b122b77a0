"""When a run is saved, and what happens if that fails."""

import logging
import secrets
import tempfile
import time
from pathlib import Path

from mpi_ata.errors import RunError, TakenError, UsageError
from mpi_ata.runfile.hdf5 import load_library
from mpi_ata.runfile.schema import Record, to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.turns import outside_of_turns

log = logging.getLogger("mpi_ata")

RUNS = Path("runs")
SHARE = 0.01  # of the time may be spent on saving
LONGEST, SHORTEST = 300.0, 1.0  # seconds between saves, unless the user says otherwise


class Checkpoints:
    """Saves records to a run file: as often as the user says, or as often as is cheap enough."""

    def __init__(self, file: RunFile, rounds: int | None = None, seconds: float | None = None) -> None:
        self.file = file
        self._rounds, self._seconds = rounds, seconds
        self.latest, self._saved_at = 0, -LONGEST
        self.cost = 0.0  # seconds that a save takes
        self._pause = 0.0  # after a failure: seconds until the next try

    def due(self, round: int) -> bool:
        """Return whether it is time for a save."""
        waited = time.monotonic() - self._saved_at
        if waited < self._pause:
            return False
        return waited >= self._interval() or bool(self._rounds and round - self.latest >= self._rounds)

    def _interval(self) -> float:
        if self._seconds is not None:
            return self._seconds
        return LONGEST if self._rounds else min(max(self.cost / SHARE, SHORTEST), LONGEST)

    def save_first(self, record: Record) -> None:
        """Save before time is spent on the run; if that fails there is no run."""
        load_library()  # now, so that it does not count as part of the cost of a save
        try:
            self._save(record)
        except OSError as error:
            way_out = "choose another file"
            raise UsageError(f"{self.file.path} cannot be written: {error.strerror}; {way_out}") from None

    def save(self, record: Record) -> None:
        """Save; if that fails, log it and let the run continue."""
        try:
            self._save(record)
        except OSError as error:
            self._saved_at = time.monotonic()
            self._pause = min(max(2 * self._pause, SHORTEST), LONGEST)
            log.warning(
                "%s could not be saved: %s; the run continues and tries again", self.file.path, error.strerror
            )

    def _save(self, record: Record) -> None:
        began = time.monotonic()
        tree = to_tree(record)
        with outside_of_turns():
            self.file.save(*tree)
        self._saved_at, self._pause = time.monotonic(), 0.0
        self.cost = max(self._saved_at - began, self.cost / 2)
        self.latest = int(record.method["k"])

    def save_last(self, record: Record) -> None:
        """Save for the last time; if that fails, save elsewhere and say where."""
        try:
            self._save(record)
            return
        except TakenError as error:
            failure = str(error)
        except OSError as error:
            failure = f"{self.file.path} could not be saved: {error.strerror}"
        other = self._saved_elsewhere(record)
        if other is None:
            raise RunError(f"{failure}; nor could it be saved elsewhere: only an older save is left")
        raise RunError(f"{failure}; the run was saved to {other} instead")

    def _saved_elsewhere(self, record: Record) -> Path | None:
        """Save a run that cannot be saved to its own file, and return where; None if nowhere."""
        for folder in (Path.cwd, Path.home, tempfile.gettempdir):
            try:
                path = Path(folder()) / f"{self.file.path.stem}-{record.run[:8]}{self.file.path.suffix}"
                RunFile(path).save(*to_tree(record))
                return path
            except (OSError, RuntimeError):  # there may be no such folder, or already such a file
                continue
        return None


def fresh_path(job: Path) -> Path:
    """Return a fresh name in runs/, and create that folder."""
    try:
        RUNS.mkdir(exist_ok=True)
    except OSError as error:
        where = RUNS.absolute()
        raise UsageError(f"cannot create the folder {where}: {error.strerror}; use --out RUN.h5") from None
    return fresh_name(job)


def fresh_name(job: Path) -> Path:
    """Return a name in runs/ that no other run has, not even one that starts in the same second."""
    return RUNS / f"{job.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.h5"
