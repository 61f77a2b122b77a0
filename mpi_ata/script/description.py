"""A run described by the objects that it consists of: the tables that a run file keeps of it."""

import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.driver.recorded import RecordedMethod
from mpi_ata.driver.restore import allocator_of
from mpi_ata.errors import UsageError, one_line
from mpi_ata.job.local_imports import imported_texts
from mpi_ata.job.schema import RunTable
from mpi_ata.job.source import JobText
from mpi_ata.job.stop import Stop
from mpi_ata.job.tables import Table, Tables
from mpi_ata.problems import AnyProblem
from mpi_ata.script.toml import to_toml
from mpi_ata.times import DrawnTimes
from mpi_ata.version import __version__

TITLE = "# A run of a Python script, as mpi_ata recorded its settings.\n\n"
_ELSEWHERE = ("self", "n", "x0", "allocator", "update", "seed")  # parameters that are described elsewhere
SCRIPT = "script.file"
_LONGEST = 100  # entries of a list that is described


@dataclass(frozen=True)
class Description:
    """What all ranks must agree on: settings in tables, and the text of the user's classes."""

    tables: Tables
    files: Mapping[str, str]

    @property
    def digest(self) -> bytes:
        """Return a hash of all of it, and of the version of the package."""
        return sha256(f"{__version__} {self.tables!r} {self.files!r}".encode()).digest()


@dataclass(frozen=True)
class ScriptRun(Description):
    """A run of a script, as far as it is recorded and compared."""

    stop: Stop
    run: RunTable

    @property
    def source(self) -> JobText:
        """Return what the run file keeps."""
        return JobText(TITLE + to_toml(self.tables), (), self.files)


def describe_run(
    method: RecordedMethod,
    problem: AnyProblem | None,
    stop: Stop,
    run: RunTable,
    times: DrawnTimes | None = None,
) -> ScriptRun:
    """Return the description of a run from its parts."""
    parts = {
        "problem": problem,
        "method": method,
        "update": _inner(getattr(method, "update", None)),
        "allocator": allocator_of(method),
    }
    tables = {name: described(part) for name, part in parts.items() if part is not None}
    if problem is not None:
        tables["problem"] |= described_point(method.x)
        tables["training"] = getattr(problem, "training_settings", dict)()
    tables |= {"times": described_times(times), "stop": _given(asdict(stop)), "run": _given(asdict(run))}
    tables = {name: table for name, table in (tables | {"script": _script()}).items() if table}
    files = {f"{name}.file": class_text(type(part)) for name, part in parts.items()}
    files |= _script_texts() | _imported_by_class(type(problem))
    texts = {name: text for name, text in files.items() if text}
    return ScriptRun(tables, texts, stop, run)


def _inner(update: Any) -> Any:
    """Return the update that the user has chosen, without what a problem puts around it."""
    return getattr(update, "inner", update)


def run_table(
    workers: int | None, evaluate_every: int, *saving: Any, seed: int = 0, **travel: Any
) -> RunTable:
    """Return the table [run] of a script, checked.

    `saving` are its checkpoints and the grace period, `travel` says how x and results travel.
    """
    try:
        return replace(RunTable(workers, seed, evaluate_every, *saving), **travel)
    except (ValueError, TypeError) as error:
        raise UsageError(one_line(error)) from None


def described(part: object) -> Table:
    """Return the class of an object, and those parameters of it that the object still has."""
    names = inspect.signature(type(part).__init__).parameters
    values = {name: _plain(getattr(part, name, None)) for name in names if name not in _ELSEWHERE}
    return {"class": type(part).__qualname__} | _given(values)


def described_point(x: Any) -> Table:
    """Return what kind of point a run moves."""
    if not isinstance(x, np.ndarray):
        return {"x0": f"of type {type(x).__name__}"}
    return {"x0": f"{x.dtype} of shape {x.shape}"}


def described_times(times: DrawnTimes | None) -> Table:
    """Return which task times are drawn, if any."""
    return {} if times is None else {"law": times.label}


def _plain(value: Any) -> Any:
    """Return a number, a string or a short list of these as TOML can hold it; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple) and len(value) <= _LONGEST:
        values = [_plain(entry) for entry in value]
        return None if None in values else values
    return value if isinstance(value, bool | int | float | str) else None


def _given(table: Mapping[str, Any]) -> Table:
    return {name: value for name, value in table.items() if value is not None}


def class_text(cls: type) -> str:
    """Return the text of a user's class; empty for those of this package, and where there is none."""
    if cls.__module__.split(".")[0] in ("mpi_ata", "builtins"):
        return ""
    try:
        return textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # typed at a prompt
        return ""


def _imported_by_class(cls: type) -> dict[str, str]:
    """Return the texts of what the file of a user's class imports from beside it; not if it is the script."""
    if not class_text(cls):
        return {}
    path = Path(inspect.getsourcefile(cls) or "").resolve()
    script = script_path()
    return {} if script and path == script.resolve() else imported_texts("problem.file", path)


def script_path() -> Path | None:
    """Return the script that this process runs; None at a prompt and in a notebook."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _script() -> Table:
    path = script_path()
    return {"file": path.name, "arguments": sys.argv[1:]} if path else {}


def _script_texts() -> dict[str, str]:
    """Return the text of the script, and those of the files that it imports from beside it."""
    path = script_path()
    try:
        return {SCRIPT: path.read_text()} | imported_texts(SCRIPT, path) if path else {}
    except (OSError, ValueError):
        return {}
