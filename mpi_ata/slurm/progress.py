"""How far a run is, from its file."""

from dataclasses import dataclass
from pathlib import Path

from mpi_ata.driver.recorder import load
from mpi_ata.errors import UsageError
from mpi_ata.job.schema import tables_of
from mpi_ata.job.source import JobText
from mpi_ata.runfile.store import RunFile


@dataclass(frozen=True)
class Progress:
    """What a run's file says of it; all zero before the first save."""

    finished: bool = False
    rounds: int = 0
    limit: int | None = None  # rounds after which it is finished, if it says so
    elapsed: float = 0.0
    worker_time: float = 0.0
    saving: float = 0.0  # seconds that a save takes
    saved: float | None = None  # when, in seconds since 1970
    trouble: str = ""  # why nothing can be read

    @property
    def rate(self) -> float:
        """Rounds a second, over the whole run."""
        return self.rounds / self.elapsed if self.elapsed > 0 else 0.0


def progress(run: Path) -> Progress:
    """How far a run is; what was saved last counts."""
    file = RunFile(run)
    if not file.exists():
        return Progress()
    try:
        record, trouble = load(file)
        saved = max(path.stat().st_mtime for path in (run, file.previous) if path.exists())
    except (UsageError, OSError, ValueError) as error:
        return Progress(trouble=str(error))
    return Progress(
        finished=bool(record.reason),
        rounds=int(record.summary["rounds"]),
        limit=limit(record.job),
        elapsed=float(record.summary["elapsed"]),
        worker_time=float(record.summary["worker_time"]),
        saving=float(record.summary.get("saving", 0.0)),
        saved=saved,
        trouble=trouble,
    )


def limit(job: JobText) -> int | None:
    """The rounds after which a job is finished, if it says so."""
    rounds = tables_of(job).get("stop", {}).get("rounds")
    return rounds if isinstance(rounds, int) else None
