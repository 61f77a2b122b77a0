"""How far a run is, read from its file without loading the rest of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi_ata.arrays import State
from mpi_ata.errors import UsageError
from mpi_ata.job.schema import tables_of
from mpi_ata.job.source import JobText
from mpi_ata.job.tables import Tables
from mpi_ata.runfile.hdf5 import untexts
from mpi_ata.runfile.store import RunFile, peek, verify


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
    file, trouble = RunFile(run), ""
    for path in (run, file.previous):
        try:
            if verified:
                verify(path)
            return _progress(*peek(path, "job"), saved=path.stat().st_mtime, trouble=trouble)
        except FileNotFoundError:
            continue
        except (UsageError, OSError, KeyError, ValueError, TypeError) as error:
            trouble = trouble or str(error)
    return Progress(trouble=trouble)


def is_finished(run: Path) -> bool:
    """Return whether a run is finished, and its file whole."""
    return read_progress(run).finished and read_progress(run, verified=True).finished


def _progress(summary: dict[str, Any], job: State, saved: float, trouble: str) -> Progress:
    tables = tables_of(JobText(bytes(job["text"].item()).decode(), tuple(untexts(job["settings"]))))
    return Progress(
        finished=bool(summary["reason"]),
        rounds=int(summary["rounds"]),
        limit=_limit(tables),
        elapsed=float(summary["elapsed"]),
        setup=float(summary.get("setup_time", 0.0)),
        worker_time=float(summary["worker_time"]),
        saving=float(summary.get("saving", 0.0)),
        saved=saved,
        failure=str(summary.get("failure", "")),
        job=job_title(tables),
        trouble=trouble,
    )


def _limit(tables: Tables) -> int | None:
    rounds = tables.get("stop", {}).get("rounds")
    return rounds if isinstance(rounds, int) else None


def job_title(tables: Tables) -> str:
    """Return the names of the problem, the method and the allocator, or the classes of the user's own."""
    parts = [tables[name] for name in ("problem", "method", "allocator") if name in tables]
    return ", ".join(str(part.get("name") or part.get("class")) for part in parts)
