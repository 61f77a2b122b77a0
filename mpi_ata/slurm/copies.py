"""Copies of the files of a job, so that editing them while it waits in a queue changes nothing."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpi_ata.job import Job
from mpi_ata.job.local_imports import local_imports
from mpi_ata.job.tables import user_files


@dataclass(frozen=True)
class Copies:
    """A job file, the files that it names, and the modules next to Python files that these import."""

    targets: dict[Path, Path]  # the copy of each file
    job: Path  # the copy of the job file
    settings: tuple[tuple[str, ...], ...]  # per member of a sweep: paths that must point to the copies

    @classmethod
    def of(cls, members: Sequence[Job], to: Path) -> "Copies":
        """Return where to copy the files of a job, under the settings of each of its members."""
        job, to = resolve_parent(members[0].path), to.absolute()
        named = [user_files(member.tables) for member in members]
        sources = {file: resolve_parent(job.parent / file) for files in named for file in files.values()}
        found = {job}.union(*map(local_imports, sources.values()))
        root = Path(os.path.commonpath([path.parent for path in found]))
        targets = {path: to / path.relative_to(root) for path in sorted(found)}
        settings = [tuple(path_settings(files, targets[job], sources, targets)) for files in named]
        return cls(targets, targets[job], tuple(settings))

    def make(self) -> None:
        """Copy all files."""
        for source, target in self.targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def path_settings(
    files: dict[str, str], job: Path, sources: dict[str, Path], targets: dict[Path, Path]
) -> Iterator[str]:
    """Yield settings for files that the copied job would look for elsewhere, such as absolute paths."""
    for name, file in files.items():
        target = targets[sources[file]]
        if os.path.normpath(job.parent / file) != str(target):
            yield f"{name}={json.dumps(str(target))}"


def resolve_parent(path: Path) -> Path:
    """Return an absolute path whose folders are no links, though the file itself may be one."""
    return path.parent.resolve() / path.name
