"""What is kept beside the file of a run: the job as it was submitted, its script and log, and how it went.

For RUN.h5 that is the folder RUN.job; the members of a sweep, RUN-0.h5, RUN-1.h5, ..., share one.
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
    """Which Slurm jobs were submitted for which runs."""

    jobs: tuple[str, ...] = ()  # by their ids
    runs: tuple[Path, ...] = ()
    past: tuple[str, ...] = ()  # Slurm jobs that were at these runs before


@dataclass(frozen=True)
class SubmissionDir:
    """The folder of a submission."""

    folder: Path

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.folder / "batch.sh"

    @property
    def files(self) -> Path:
        """Job file, problem file and the like, as they were."""
        return self.folder / "files"

    def failure(self, run: Path) -> Path:
        """Where a run that cannot go on says why; it is not started again then."""
        return self.folder / f"{run.stem}.failed"

    def stopped(self, run: Path) -> Path:
        """What tells a run, as long as it is there, that it shall end and not be started again."""
        return self.folder / f"{run.stem}.stop"

    def clear(self, run: Path) -> None:
        """Let a run start anew."""
        self.failure(run).unlink(missing_ok=True)
        self.stopped(run).unlink(missing_ok=True)

    @property
    def manifest(self) -> Path:
        """Where it is noted which Slurm jobs were submitted."""
        return self.folder / "submitted.json"

    def submitted(self) -> Manifest:
        """Which Slurm jobs were submitted for which runs, as far as it is known."""
        try:
            found = json.loads(self.manifest.read_text())
            jobs, past = (tuple(map(str, found[name])) for name in ("jobs", "past"))
            return Manifest(jobs, tuple(map(Path, found["runs"])), past)
        except (OSError, ValueError, TypeError, KeyError):
            return Manifest()

    def submit(self, jobs: Sequence[str], runs: Sequence[Path]) -> None:
        """Note which Slurm jobs were submitted for which runs."""
        known = self.submitted()
        past = [job for job in [*known.past, *known.jobs] if job not in jobs]
        note = {"jobs": list(jobs), "runs": [str(run) for run in runs], "past": past}
        replace_text(self.manifest, json.dumps(note))

    def attempts(self, run: Path) -> list["Attempt"]:
        """The starts of a run so far; a line that was cut off by a kill is left out."""
        try:
            lines = (self.folder / f"{run.stem}.attempts").read_text().splitlines()
        except OSError:
            return []
        found: dict[float, Attempt] = {}
        for line in lines:
            try:
                attempt = Attempt(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[attempt.began] = attempt
        return list(found.values())

    def note(self, run: Path, attempt: "Attempt") -> None:
        """Note a start of a run, or once more what became of it."""
        with suppress(OSError), (self.folder / f"{run.stem}.attempts").open("a") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")


@dataclass(frozen=True)
class Attempt:
    """One start of a run in a Slurm job."""

    job: str
    began: float  # seconds since 1970
    cores: int
    rounds: int  # when it began
    nodes: str = ""
    ended: float | None = None
    end: str = ""  # in a word


def all_submissions(folder: Path) -> list[SubmissionDir]:
    """All submissions whose runs are in a folder, the oldest first."""
    found = [kept for kept in map(SubmissionDir, folder.glob(f"*{SUFFIX}")) if kept.manifest.is_file()]
    return sorted(found, key=lambda kept: kept.manifest.stat().st_mtime)


def billed(attempts: Sequence[Attempt], last_sign: float | None) -> float:
    """Core-seconds that were allocated; `last_sign`: when the run file was written last, if at all.

    A start that was killed had no time to say when: it lasted until the next one at most.
    """
    total, following = 0.0, time.time()
    for attempt in reversed(attempts):
        ended = attempt.ended
        if ended is None:
            ended = min(following, max(last_sign or attempt.began, attempt.began))
        total += attempt.cores * max(0.0, ended - attempt.began)
        following = attempt.began
    return total


def replace_text(path: Path, text: str) -> None:
    """Write a file such that nobody ever reads half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
