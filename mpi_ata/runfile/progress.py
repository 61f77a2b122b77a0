"""How far runs are, read from their files without loading the rest of them."""

import json
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.arrays import State
from mpi_ata.job.schema import RunDescription
from mpi_ata.job.tables import Tables
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.schema import MALFORMED, Record, untexts
from mpi_ata.runfile.store import RunFile, is_run_file, peek, verify


@dataclass(frozen=True)
class Progress:
    """What a run's file says about it; all zero before the first save."""

    finished: bool = False
    rounds: int = 0
    limit: int | None = None  # the number of rounds after which it is finished, if there is one
    elapsed: float = 0.0
    setup: float = 0.0  # of it, before rounds
    worker_time: float = 0.0
    saving: float = 0.0  # seconds that a save takes
    saved: float | None = None  # when, in seconds since 1970
    failure: str = ""  # why it failed
    job: str = ""  # its problem, method and allocator
    trouble: str = ""  # why nothing, or only an older save, can be read

    @property
    def rate(self) -> float:
        """Return the rounds per second, over the whole run but for its set-up."""
        return self.rounds / spent if (spent := self.elapsed - self.setup) > 0 else 0.0


def read_progress(run: Path, verified: bool = False) -> Progress:
    """Return how far a run is, by its newest readable save; `verified`: read the whole file to be sure."""
    if run.is_dir():
        return _together([read_progress(each, verified) for each in member_runs(run)])
    file, trouble = RunFile(run), ""
    for path in (run, file.previous):
        try:
            if verified:
                verify(path)
            return _progress(*peek(path, "job"), saved=path.stat().st_mtime, trouble=trouble)
        except FileNotFoundError:
            continue
        except (OSError, *MALFORMED) as error:
            trouble = trouble or str(error)
    return Progress(trouble=trouble)


JOBS = "jobs.json"  # in a folder of runs that share workers: the names of all of them


def note_members(folder: Path, names: Sequence[str]) -> None:
    """Note which runs will be in a folder, if possible: some may begin only when others are finished."""
    new = folder / f"{JOBS}.{os.getpid()}"
    with suppress(OSError):
        new.write_text(json.dumps(list(names)))
        new.replace(folder / JOBS)


def member_runs(folder: Path) -> list[Path]:
    """Return the run files in a folder, and those that will be there; none if that is not known."""
    try:
        names = json.loads((folder / JOBS).read_text())
        return [folder / f"{name}.h5" for name in names]
    except (OSError, ValueError, TypeError):
        return sorted(folder.glob("*.h5"))


def _together(members: Sequence[Progress]) -> Progress:
    """Return how far several runs are; they are finished when none of them can proceed."""
    limits = [each.limit for each in members]
    return Progress(
        finished=bool(members) and all(each.finished or each.failure for each in members),
        rounds=sum(each.rounds for each in members),
        limit=None if None in limits else sum(limit or 0 for limit in limits),
        elapsed=max((each.elapsed for each in members), default=0.0),
        setup=max((each.setup for each in members), default=0.0),
        worker_time=sum(each.worker_time for each in members),
        saving=sum(each.saving for each in members),
        saved=max((each.saved for each in members if each.saved is not None), default=None),
        failure=next((each.failure for each in members if each.failure), ""),
        job=f"{len(members)} jobs",
        trouble=next((each.trouble for each in members if each.trouble), ""),
    )


def is_finished(run: Path) -> bool:
    """Return whether a run is finished, and its file whole."""
    return read_progress(run).finished and read_progress(run, verified=True).finished


RUNNING, FINISHED, FAILED, STOPPED = "running", "finished", "failed", "stopped"
HOW_TO_RESUME = "resume it with --resume, or resume=True in a script"
NOT_RESUMABLE = "it cannot be resumed"  # ends the text of the event that says how a run has ended


def run_state(record: Record, running: bool) -> str:
    """Return the state of a run in a few words, of which the first is one of those above.

    Whether it was `running` is asked before its file is read: the save that is read is then its last one.
    """
    if running:
        return RUNNING
    if record.failure:
        return f"{FAILED}: {record.failure}"
    if record.reason:
        return f"{FINISHED} at {record.reason}"
    ended = [event.text for event in record.events[-1:] if event.kind == "ended"]  # "early, by Ctrl-C"
    unseen = ", or suspended" if record.slurm_jobs else ""  # of a process elsewhere the lock is all there is
    how = ended[0].replace(",", "", 1) if ended else f"without a last save{unseen}"
    return f"{STOPPED} {how}" if how.endswith(NOT_RESUMABLE) else f"{STOPPED} {how}; {HOW_TO_RESUME}"


def _progress(summary: dict[str, Any], job: State, saved: float, trouble: str) -> Progress:
    tables = RunDescription(bytes(job["text"].item()).decode(), tuple(untexts(job["settings"]))).tables
    limit = tables.get("stop", {}).get("rounds")
    return Progress(
        finished=bool(summary["reason"]),
        rounds=int(summary["rounds"]),
        limit=limit if isinstance(limit, int) else None,
        elapsed=float(summary["elapsed"]),
        setup=float(summary.get("setup_time", 0.0)),
        worker_time=float(summary["worker_time"]),
        saving=float(summary.get("saving", 0.0)),
        saved=saved,
        failure=str(summary.get("failure", "")),
        job=job_title(tables),
        trouble=trouble,
    )


def job_title(tables: Tables) -> str:
    """Return the names of the problem, the method and the allocator, or the classes of the user's own."""
    parts = [tables[name] for name in ("problem", "method", "allocator") if name in tables]
    return ", ".join(str(part.get("name") or part.get("class")) for part in parts)


class ListedRun(NamedTuple):
    """One run file, as far as its first bytes tell."""

    path: Path
    job: str  # its problem, method and allocator
    state: str  # running, finished, failed, stopped or damaged
    rounds: int
    saved: float  # seconds since 1970
    size: int  # in bytes, with the save before the newest one

    @property
    def finished(self) -> bool:
        """Return whether it has reached its limit."""
        return self.state == FINISHED


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the run files of a folder, the newest first."""
    found = [_listed(path) for path in folder.glob("*.h5") if is_run_file(path)]
    return sorted(found, key=lambda run: (run.saved, run.path.name), reverse=True)


def _listed(path: Path) -> ListedRun:
    running, previous = RunLock(path).is_held(), RunFile(path).previous
    progress = read_progress(path)
    state = FINISHED if progress.finished else FAILED if progress.failure else STOPPED
    state = RUNNING if running else "damaged" if progress.trouble else state
    size = sum(os.path.getsize(file) for file in (path, previous) if file.exists())
    return ListedRun(path, progress.job, state, progress.rounds, path.stat().st_mtime, size)


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
