"""Copies of what a job consists of, so that editing it while it waits in a queue changes nothing."""

import ast
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job import Job
from mpi_ata.job.tables import user_files


@dataclass(frozen=True)
class Copies:
    """A job file and the Python files that it names, with those of their neighbours that they import."""

    targets: dict[Path, Path]  # each file, and where its copy is
    job: Path  # the copy of the job file
    settings: tuple[tuple[str, ...], ...]  # of each member: without them it would still name files elsewhere

    @classmethod
    def of(cls, members: Sequence[Job], to: Path) -> "Copies":
        """Return where to copy the files of a job, under the settings of each of its members."""
        job, to = placed(members[0].path), to.absolute()
        named = [user_files(member.tables) for member in members]
        sources = {file: placed(job.parent / file) for files in named for file in files.values()}
        found = {job}.union(*map(with_neighbours, sources.values()))
        root = Path(os.path.commonpath([path.parent for path in found]))
        targets = {path: to / path.relative_to(root) for path in sorted(found)}
        more = [tuple(moved(files, targets[job], sources, targets)) for files in named]
        return cls(targets, targets[job], tuple(more))

    def make(self) -> None:
        """Copy everything."""
        for source, target in self.targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def moved(
    files: dict[str, str], job: Path, sources: dict[str, Path], targets: dict[Path, Path]
) -> Iterator[str]:
    """Settings for files that the copy of a job does not name any more, such as by an absolute path."""
    for name, file in files.items():
        target = targets[sources[file]]
        if os.path.normpath(job.parent / file) != str(target):
            yield f"{name}={json.dumps(str(target))}"


def placed(path: Path) -> Path:
    """An absolute path without links on the way, though it may be one itself."""
    return path.parent.resolve() / path.name


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
