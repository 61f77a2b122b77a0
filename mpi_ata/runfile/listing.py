"""The run files of a folder, and which of them are old enough to be removed."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from mpi_ata.runfile.progress import Progress, read_progress
from mpi_ata.runfile.store import RunFile, is_run_file


class ListedRun(NamedTuple):
    """One run file, as far as its first bytes tell."""

    path: Path
    job: str  # its problem, method and allocator
    state: str  # finished, failed, unfinished or damaged
    rounds: int
    saved: float  # seconds since 1970
    size: int  # in bytes, with the save before the newest one

    @property
    def finished(self) -> bool:
        """Return whether it has reached its limit."""
        return self.state == "finished"


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the run files of a folder, the newest first."""
    found = [_listed(path) for path in folder.glob("*.h5") if is_run_file(path)]
    return sorted(found, key=lambda run: (run.saved, run.path.name), reverse=True)


def _listed(path: Path) -> ListedRun:
    progress, previous = read_progress(path), RunFile(path).previous
    size = sum(os.path.getsize(file) for file in (path, previous) if file.exists())
    return ListedRun(path, progress.job, _state(progress), progress.rounds, path.stat().st_mtime, size)


def _state(progress: Progress) -> str:
    if progress.trouble:
        return "damaged"
    return "finished" if progress.finished else "failed" if progress.failure else "unfinished"


def beyond(keep: int, runs: Sequence[ListedRun], protected: Collection[Path]) -> list[ListedRun]:
    """Return the oldest finished runs beyond the newest `keep` ones, except for protected ones."""
    finished, kept = [run for run in runs if run.finished], {path.resolve() for path in protected}
    return [run for run in finished[keep:] if run.path.resolve() not in kept]


def remove_run(run: ListedRun) -> bool:
    """Remove a run file and the save before it, unless it was saved since it was listed; say whether."""
    if run.path.stat().st_mtime != run.saved:
        return False
    run.path.unlink()
    RunFile(run.path).remove_previous()
    return True
