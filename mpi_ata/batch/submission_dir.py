"""The folder of a submission: the job as it was submitted, its script and log, and a record of its starts.

For RUN.h5 it is RUN.job; the members of a sweep, RUN-0.h5, RUN-1.h5, ..., share one.
"""

import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mpi_ata.errors import RunError
from mpi_ata.job import Job
from mpi_ata.job.tables import user_files
from mpi_ata.job.user_code import local_imports
from mpi_ata.runfile.progress import is_finished

SUFFIX = ".job"


class Manifest(NamedTuple):
    """Which batch jobs were submitted for which runs."""

    jobs: tuple[str, ...] = ()  # their ids
    runs: tuple[Path, ...] = ()
    past: tuple[str, ...] = ()  # ids of earlier batch jobs for these runs
    script: bool = False  # whether the runs are those of a script


@dataclass(frozen=True)
class Attempt:
    """One start of a run in a batch job."""

    job: str
    began: float  # seconds since 1970
    cores: int
    rounds: int  # when it began
    nodes: str = ""
    ended: float | None = None
    end: str = (
        ""  # finished, failed, stopped, requeued, released (then it began again on fewer nodes) or left
    )


class SubmissionDir:
    """The folder of a submission, and the names of the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "batch.sh"
        self.files = path / "files"  # copies of the job file, problem file and so on
        self.source = path / "source.sh"  # a copy of the shell file that the script sources
        self.log = path / "slurm"  # without what the scheduler appends
        self._manifest = path / "submitted.json"

    @classmethod
    def of_run(cls, run: Path) -> "SubmissionDir":
        """Return the folder that belongs to a run file."""
        return cls(run.with_suffix(SUFFIX))

    def failure_file(self, run: Path) -> Path:
        """Return the file that says why a run failed; while it exists, the run is not requeued."""
        return self.path / f"{run.stem}.failed"

    def stop_file(self, run: Path) -> Path:
        """Return the file that stops a run, and keeps it from being started while it exists."""
        return self.path / f"{run.stem}.stop"

    def report_file(self, run: Path) -> Path:
        """Return the file in which the manager of the latest start left which workers died."""
        return self.path / f"{run.stem}.verdict"

    def _attempts_file(self, run: Path) -> Path:
        """Return the file that records the starts of a run, as lines of JSON."""
        return self.path / f"{run.stem}.attempts"

    def clear(self, run: Path) -> None:
        """Allow a run that failed or was stopped to start again."""
        self.failure_file(run).unlink(missing_ok=True)
        self.stop_file(run).unlink(missing_ok=True)

    def exists(self) -> bool:
        """Return whether something was submitted from this folder."""
        return self._manifest.is_file()

    def submitted(self) -> float:
        """Return when something was last submitted from this folder, in seconds since 1970."""
        return self._manifest.stat().st_mtime

    def manifest(self) -> Manifest:
        """Return which batch jobs were submitted for which runs; empty if that is unreadable."""
        try:
            found = json.loads(self._manifest.read_text())
            jobs, past = (tuple(map(str, found[name])) for name in ("jobs", "past"))
            return Manifest(jobs, tuple(map(Path, found["runs"])), past, bool(found.get("script")))
        except (OSError, ValueError, TypeError, KeyError):
            return Manifest()

    def record_jobs(self, jobs: Sequence[str], runs: Sequence[Path], script: bool = False) -> None:
        """Record which batch jobs were submitted for which runs."""
        before = self.manifest()
        past = [job for job in [*before.past, *before.jobs] if job not in jobs]
        manifest = {"jobs": list(jobs), "runs": [str(run) for run in runs], "past": past, "script": script}
        write_atomically(self._manifest, json.dumps(manifest))

    def is_finished(self, run: Path, recorded: bool | None = None) -> bool:
        """Return whether a run is finished: by its file, or as `recorded` says.

        That of a script is when the script has ended well: it may do more than this run.
        """
        if self.manifest().script:
            return [attempt.end for attempt in self.attempts(run)][-1:] == ["finished"]
        return is_finished(run) if recorded is None else recorded

    def attempts(self, run: Path) -> list[Attempt]:
        """Return the starts of a run so far; a line that a kill cut off is skipped."""
        found: dict[float, Attempt] = {}
        with suppress(OSError):
            for line in self._attempts_file(run).read_text().splitlines():
                with suppress(ValueError, TypeError):
                    attempt = Attempt(**json.loads(line))
                    found[attempt.began] = attempt
        return list(found.values())

    def record_attempt(self, run: Path, attempt: Attempt) -> None:
        """Record a start of a run, or the same start again once it has ended."""
        file = self._attempts_file(run)
        try:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(attempt)) + "\n")
        except OSError as error:
            why = "a run whose starts are not recorded could be requeued without end"
            way_out = f"{why}; make room or make it writable, and submit it again with --resume"
            raise RunError(f"{file} cannot be written: {error.strerror}: {way_out}") from None


def find_submissions(folder: Path) -> list[SubmissionDir]:
    """Return all submissions whose runs are in a folder, the oldest first."""
    found = [each for each in map(SubmissionDir, folder.glob(f"*{SUFFIX}")) if each.exists()]
    return sorted(found, key=SubmissionDir.submitted)


def billed_core_seconds(attempts: Sequence[Attempt], last_seen: float | None) -> float:
    """Return the allocated core-seconds; `last_seen` is when the run was last known to be alive.

    A start that was killed has no recorded end; it cannot have lasted beyond the next start.
    """
    total, next_start = 0.0, time.time()
    for attempt in reversed(attempts):
        ended = min(next_start, last_seen or 0.0) if attempt.ended is None else attempt.ended
        total += attempt.cores * max(0.0, ended - attempt.began)
        next_start = attempt.began
    return total


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


@dataclass(frozen=True)
class JobCopy:
    """Job files, the files that they name, and the modules next to Python files that these import."""

    targets: dict[Path, Path]  # the copy of each file
    jobs: tuple[Path, ...]  # the copies of the job files
    settings: tuple[tuple[str, ...], ...]  # per member of a sweep: paths that must point to the copies

    @classmethod
    def of(cls, members: Sequence[Job], to: Path) -> "JobCopy":
        """Return where to copy the files of jobs, under the settings of each."""
        to, jobs = to.absolute(), [resolve_parent(member.path) for member in members]
        named = [user_files(member.tables) for member in members]
        sources = [
            {file: resolve_parent(job.parent / file) for file in files.values()}
            for job, files in zip(jobs, named, strict=True)
        ]
        found = {*jobs}.union(*(local_imports(path) for own in sources for path in own.values()))
        root = Path(os.path.commonpath([path.parent for path in found]))
        targets = {path: to / path.relative_to(root) for path in sorted(found)}
        copies = [{file: targets[path] for file, path in own.items()} for own in sources]
        rows = zip(named, jobs, copies, strict=True)
        settings = [path_settings(files, targets[job].parent, own) for files, job, own in rows]
        data = [
            as_settings({f"problem.{key}": path for key, path in each.problem.paths().items()})
            for each in members
        ]
        settings = [(*own, *paths) for own, paths in zip(settings, data, strict=True)]
        return cls(targets, tuple(dict.fromkeys(targets[job] for job in jobs)), tuple(settings))

    @classmethod
    def of_script(cls, script: Path, to: Path, members: int = 1) -> "JobCopy":
        """Return where to copy a script, and what it imports from beside it."""
        script, to = resolve_parent(script), to.absolute()
        targets = {path: to / path.relative_to(script.parent) for path in sorted(local_imports(script))}
        return cls(targets, (targets[script],), ((),) * members)

    def make(self) -> None:
        """Copy all files."""
        for source, target in self.targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its permissions; until it has these, only its owner can open the copy."""
    target.unlink(missing_ok=True)  # one that is read-only could not be overwritten
    with source.open("rb") as original, open(target, "xb", opener=partial(os.open, mode=0o600)) as copy:
        shutil.copyfileobj(original, copy)
        os.fchmod(copy.fileno(), 0o777 & os.fstat(original.fileno()).st_mode)


def path_settings(files: dict[str, str], folder: Path, copies: dict[str, Path]) -> tuple[str, ...]:
    """Return settings for files that a job copied to a folder would look for elsewhere: absolute paths."""
    moved = [name for name, file in files.items() if os.path.normpath(folder / file) != str(copies[file])]
    return as_settings({name: copies[files[name]] for name in moved})


def as_settings(paths: dict[str, Path]) -> tuple[str, ...]:
    """Return settings that name these paths."""
    return tuple(f"{name}={json.dumps(str(path))}" for name, path in paths.items())


def resolve_parent(path: Path) -> Path:
    """Return an absolute path whose folders are no links, though the file itself may be one."""
    return path.parent.resolve() / path.name
