"""A class in a Python file of the user's, imported when it is first needed."""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array
from mpi_ata.errors import RunError, UsageError, describe_error


class UserClass:
    """A class that a job names by file and class; `table` is the part of the job that does."""

    def __init__(self, table: str, path: Path, name: str) -> None:
        self.table, self.path, self.name = table, path, name

    @cached_property
    def loaded(self) -> type[Any]:
        """Import the file and return the class."""
        module = _imported(self.table, self.path)
        found = getattr(module, self.name, None)
        if isinstance(found, type):
            return found
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        there = [cls.__name__ for cls in classes if cls.__module__ == module.__name__]
        raise UsageError(
            f"[{self.table}] no class {self.name!r} in {self.path}; there are: {', '.join(there) or 'none'}"
        )


_modules: dict[tuple[str, bytes], ModuleType] = {}  # by path and contents


def _imported(table: str, path: Path) -> ModuleType:
    """Return a Python file as a module; it is executed once, whatever a job takes from it."""
    key = str(path.resolve()), sha256(path.read_bytes()).digest()
    if key not in _modules:
        _modules[key] = _executed(table, path)
    return _modules[key]


def _executed(table: str, path: Path) -> ModuleType:
    """Execute a Python file, which can import its neighbours."""
    name = f"{path.stem}@{path.resolve()}".replace(".", "%2E")  # a dot would make it part of a package
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"[{table}] file = {str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"[{table}] {path} cannot be imported: {describe_error(error)}") from None
    return module


PACKAGE = "mpi_ata"  # this one may lie beside it; its version is compared, not its files
INSTALLED = {"site-packages", "dist-packages"}  # folders
MAX_BYTES = 1 << 20  # of the texts that are kept: a run file pads all to the longest


def local_imports(source: Path) -> Iterator[Path]:
    """Yield a file and, of Python code, all files next to it that it imports, directly or not."""
    pending, seen = [source], set[Path]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        for name in imported_names(path) - {PACKAGE}:
            module = source.parent / name
            pending += [module.with_suffix(".py")] if module.with_suffix(".py").is_file() else []
            pending += sorted(module.rglob("*.py")) if module.is_dir() else []


def imported_names(path: Path) -> set[str]:
    """Return the top-level names of the modules that a file imports; data imports nothing."""
    if path.suffix != ".py":
        return set()
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


def imported_texts(name: str, source: Path) -> dict[str, str]:
    """Return the texts of the files that a user's file imports, each as `name`/path; checksums if long.

    What cannot be read is left out: importing it gives a better message.  Installed packages are not the
    user's own.
    """
    if INSTALLED.intersection(source.parts):
        return {}
    try:
        found = sorted(path for path in local_imports(source) if path != source)
        texts = {f"{name}/{path.relative_to(source.parent)}": path.read_text() for path in found}
    except (UsageError, OSError, ValueError):
        return {}
    if len(texts) * max(map(len, texts.values()), default=0) <= MAX_BYTES:
        return texts
    return {name: f"sha256 {sha256(text.encode()).hexdigest()}" for name, text in texts.items()}


class UserLaw:
    """A law from a user's file; `means` must hold, and `draw` return, one time above 0 per worker."""

    def __init__(self, law: Any, n: int) -> None:
        self.n, self._law, self._name = n, law, type(law).__name__
        if not callable(getattr(law, "draw", None)):
            raise UsageError(f"[times] {self._name} needs draw(rng), which returns one time per worker")
        self.means = self._checked("means", lambda: law.means)
        self._checked("draw(rng)", lambda: law.draw(np.random.default_rng(0)))

    def _checked(self, what: str, get: Callable[[], Any]) -> Array:
        try:
            times = get()
        except Exception as error:
            raise UsageError(f"[times] {self._name}: {describe_error(error)}") from None
        if complaint := _complaint(times, self.n):
            raise UsageError(f"[times] {self._name}: {what} {complaint}")
        return np.array(times, np.float64)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        drawn = self._law.draw(rng)
        if complaint := _complaint(drawn, self.n):
            raise RunError(f"draw(rng) of {self._name} {complaint}")
        return np.asarray(drawn, np.float64)


def _complaint(times: Any, n: int) -> str:
    """Return what is wrong with the times of n workers; nothing if they are right."""
    rule = f"must be {n} times above 0 and finite, one per worker"
    try:
        found = np.asarray(times, np.float64)
    except (TypeError, ValueError):
        return f"{rule}, not of type {type(times).__name__}"
    if found.shape != (n,):
        return f"{rule}, not of shape {found.shape}"
    wrong = np.flatnonzero(~((found > 0) & (found < np.inf)))
    return f"{rule}, but worker {wrong[0]} has {found[wrong[0]]}" if len(wrong) else ""
