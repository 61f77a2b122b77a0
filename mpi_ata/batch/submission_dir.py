"""The folder of a submission: the job as it was submitted, its script and log, and a record of its starts.

For RUN.h5 it is RUN.job; the members of a sweep, RUN-0.h5, RUN-1.h5, ..., share one.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

SUFFIX = ".job"


@dataclass(frozen=True)
class Manifest:
    """Which batch jobs were submitted for which runs."""

    jobs: tuple[str, ...] = ()  # their ids
    runs: tuple[Path, ...] = ()
    past: tuple[str, ...] = ()  # ids of earlier batch jobs for these runs


@dataclass(frozen=True)
class Attempt:
    """One start of a run in a batch job."""

    job: str
    began: float  # seconds since 1970
    cores: int
    rounds: int  # when it began
    nodes: str = ""
    ended: float | None = None
    end: str = ""  # finished, failed, stopped, requeued or left


@dataclass(frozen=True)
class SubmissionDir:
    """The folder of a submission, and the names of the files in it."""

    path: Path

    @classmethod
    def of_run(cls, run: Path) -> "SubmissionDir":
        """Return the folder that belongs to a run file."""
        return cls(run.with_suffix(SUFFIX))

    @property
    def script(self) -> Path:
        """Return the batch script."""
        return self.path / "batch.sh"

    @property
    def files(self) -> Path:
        """Return the folder of the copied job file, problem file and so on."""
        return self.path / "files"

    @property
    def source(self) -> Path:
        """Return the copy of the shell file that the script sources."""
        return self.path / "source.sh"

    @property
    def log(self) -> Path:
        """Return the log's name without what the scheduler appends."""
        return self.path / "slurm"

    @property
    def manifest_file(self) -> Path:
        """Return the file that says which batch jobs were submitted."""
        return self.path / "submitted.json"

    def failure_file(self, run: Path) -> Path:
        """Return the file that says why a run failed; while it exists, the run is not requeued."""
        return self.path / f"{run.stem}.failed"

    def stop_file(self, run: Path) -> Path:
        """Return the file that stops a run, and keeps it from being started while it exists."""
        return self.path / f"{run.stem}.stop"

    def report_file(self, run: Path) -> Path:
        """Return the file in which the manager of the latest start left which workers died."""
        return self.path / f"{run.stem}.verdict"

    def attempts_file(self, run: Path) -> Path:
        """Return the file that records the starts of a run, as lines of JSON."""
        return self.path / f"{run.stem}.attempts"

    def clear(self, run: Path) -> None:
        """Allow a run that failed or was stopped to start again."""
        self.failure_file(run).unlink(missing_ok=True)
        self.stop_file(run).unlink(missing_ok=True)

    def exists(self) -> bool:
        """Return whether something was submitted from this folder."""
        return self.manifest_file.is_file()

    def manifest(self) -> Manifest:
        """Return which batch jobs were submitted for which runs; empty if that is unreadable."""
        try:
            found = json.loads(self.manifest_file.read_text())
            jobs, past = (tuple(map(str, found[name])) for name in ("jobs", "past"))
            return Manifest(jobs, tuple(map(Path, found["runs"])), past)
        except (OSError, ValueError, TypeError, KeyError):
            return Manifest()

    def record_jobs(self, jobs: Sequence[str], runs: Sequence[Path]) -> None:
        """Record which batch jobs were submitted for which runs."""
        before = self.manifest()
        past = [job for job in [*before.past, *before.jobs] if job not in jobs]
        manifest = {"jobs": list(jobs), "runs": [str(run) for run in runs], "past": past}
        write_atomically(self.manifest_file, json.dumps(manifest))

    def attempts(self, run: Path) -> list[Attempt]:
        """Return the starts of a run so far; a line that a kill cut off is skipped."""
        try:
            lines = self.attempts_file(run).read_text().splitlines()
        except OSError:
            return []
        found: dict[float, Attempt] = {}
        for line in lines:
            with suppress(ValueError, TypeError):
                attempt = Attempt(**json.loads(line))
                found[attempt.began] = attempt
        return list(found.values())

    def record_attempt(self, run: Path, attempt: Attempt) -> None:
        """Record a start of a run, or the same start again once it has ended."""
        with suppress(OSError), self.attempts_file(run).open("a") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")


def find_submissions(folder: Path) -> list[SubmissionDir]:
    """Return all submissions whose runs are in a folder, the oldest first."""
    found = [each for each in map(SubmissionDir, folder.glob(f"*{SUFFIX}")) if each.exists()]
    return sorted(found, key=lambda each: each.manifest_file.stat().st_mtime)


def billed_core_seconds(attempts: Sequence[Attempt], last_seen: float | None) -> float:
    """Return the allocated core-seconds; `last_seen` is when the run was last known to be alive.

    A start that was killed has no recorded end; it cannot have lasted beyond the next start.
    """
    total, next_start = 0.0, time.time()
    for attempt in reversed(attempts):
        ended = attempt.ended
        if ended is None:
            ended = min(next_start, max(last_seen or attempt.began, attempt.began))
        total += attempt.cores * max(0.0, ended - attempt.began)
        next_start = attempt.began
    return total


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
