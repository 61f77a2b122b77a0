"""What is kept beside the file of a run: the job as it was submitted, its script and log, and how it went.

For RUN.h5 that is the folder RUN.job; the members of a sweep, RUN-0.h5, RUN-1.h5, ..., share one.
"""

import ast
import json
import os
import shutil
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.job import parse_setting

SUFFIX = ".job"


@dataclass(frozen=True)
class Kept:
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
        """Where a run that cannot go on says why; as long as it is there, the run is not started again."""
        return self.folder / f"{run.stem}.failed"

    def stopped(self, run: Path) -> Path:
        """What tells a run, as long as it is there, that it shall end and not be started again."""
        return self.folder / f"{run.stem}.stop"

    def clear(self, run: Path) -> None:
        """Let a run start anew."""
        self.failure(run).unlink(missing_ok=True)
        self.stopped(run).unlink(missing_ok=True)

    def submitted(self) -> dict[str, Any]:
        """Which Slurm jobs were submitted for which runs; empty where it is not known."""
        try:
            found = json.loads((self.folder / "submitted.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def submit(self, jobs: Sequence[int], runs: Sequence[Path]) -> None:
        """Note which Slurm jobs were submitted for which runs."""
        known = self.submitted()
        past = [job for job in [*known.get("past", []), *known.get("jobs", [])] if job not in jobs]
        note = {"jobs": list(jobs), "runs": [str(run) for run in runs], "past": past}
        replace_text(self.folder / "submitted.json", json.dumps(note))

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


def all_kept(folder: Path) -> list[Kept]:
    """All submissions whose runs are in a folder, the oldest first."""
    found = [path for path in folder.glob(f"*{SUFFIX}") if (path / "submitted.json").is_file()]
    return [Kept(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]


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


def named_files(job: Path, settings: Sequence[str]) -> dict[str, str]:
    """The files that a job names, by table."""
    tables: dict[str, Any] = tomllib.loads(job.read_text())
    named = {name: table["file"] for name, table in tables.items() if isinstance(table.get("file"), str)}
    for table, key, value in map(parse_setting, settings):
        if key == "file":
            named[table] = value
        elif key == "name":
            named.pop(table, None)
    return named


def copy_files(job: Path, settings: Sequence[str], to: Path) -> tuple[Path, list[str]]:
    """Copy a job file and the Python files that it names, with those of their neighbours that they import.

    The copy of the job file, and the settings without which it would still name files by absolute paths.
    """
    job = job.resolve()
    named = named_files(job, settings)
    sources = {name: (job.parent / file).resolve() for name, file in named.items()}
    found = {job}
    for source in sources.values():
        found |= set(with_neighbours(source))
    root = Path(os.path.commonpath([path.parent for path in found]))
    for path in found:
        target = to / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    more = [
        f"{name}.file={json.dumps(str(to / sources[name].relative_to(root)))}"
        for name, file in named.items()
        if Path(file).is_absolute()
    ]
    return to / job.relative_to(root), more


def with_neighbours(source: Path) -> Iterator[Path]:
    """A Python file, and all files beside it that it imports, directly or not."""
    waiting, met = [source], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in met:
            continue
        met.add(path)
        yield path
        for name in imported_names(path):
            beside = source.parent / name
            waiting += [beside.with_suffix(".py")] if beside.with_suffix(".py").is_file() else []
            waiting += sorted(beside.rglob("*.py")) if beside.is_dir() else []


def imported_names(path: Path) -> set[str]:
    """The first part of the name of each module that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names
