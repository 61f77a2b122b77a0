"""What a run of a script starts from: its parts, described as run files keep them, compared with before."""

import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.driver.plan import OutputOptions, RunStart, read_prior, resume_notes, submitted_output
from mpi_ata.driver.restore import RecordedMethod, allocator_of
from mpi_ata.errors import UsageError, one_line
from mpi_ata.job.component import defaults_of
from mpi_ata.job.schema import RunDescription, RunTable, Stop
from mpi_ata.job.tables import Table, Tables, difference, differing_keys, same_code, value_of
from mpi_ata.job.user_code import imported_texts
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import AnyProblem
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.store import RunFile
from mpi_ata.script.entry import script_path
from mpi_ata.times import DrawnTimes

TITLE = "# A run of a Python script, as mpi_ata recorded its settings.\n\n"
ELSEWHERE = ("self", "n", "x0", "allocator", "update", "seed")  # parameters that are described elsewhere
SCRIPT = "script.file"
MAX_ENTRIES = 100  # of a list that is described
FIXED = ("problem.", "training.model", "training.loss", "method.class", "run.seed")  # not to differ
IGNORED = ("script.", "run.exchange", "run.replicated")  # keys that say nothing of the run itself


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Where a run is recorded and what it starts from: arguments that minimize, run and Balance share."""

    out: str | Path | None = None
    resume: bool = False
    warm_start: str | Path | Sequence[str | Path] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    accept_changes: bool = False
    checkpoint_rounds: int | None = None
    checkpoint_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # which a run file cannot hold as a setting
                object.__setattr__(self, name, value.item())

    def output(self) -> OutputOptions:
        """Return where the run is recorded and what it starts from, checked."""
        out, earlier = self.out, self.warm_start
        output = OutputOptions(
            None if out is None else Path(out),
            self.resume,
            tuple(map(Path, [earlier] if isinstance(earlier, str | Path) else earlier)),
            self.prior_weight,
            self.any_problem,
            self.accept_changes,
            in_python=True,
        )
        output = submitted_output(output)
        output.check()
        return output

    def run_table(self, **others: Any) -> RunTable:
        """Return the table [run] of these arguments and others, checked."""
        own = {field.name: vars(self)[field.name] for field in fields(RunTable) if field.name in vars(self)}
        return run_table(**own | others)


def describe_run(
    method: RecordedMethod,
    problem: AnyProblem | None,
    stop: Stop,
    run: RunTable,
    times: DrawnTimes | None = None,
) -> RunDescription:
    """Return the description of a run from its parts."""
    update = MethodAbilities.of(method).update
    parts = {
        "problem": problem,
        "method": method,
        "update": getattr(update, "inner", update),  # without what a problem puts around it
        "allocator": allocator_of(method),
    }
    tables = {name: describe_part(part) for name, part in parts.items() if part is not None}
    if problem is not None:
        tables["problem"] |= describe_point(method.x)
        tables["training"] = getattr(problem, "training_settings", dict)()
    files = {f"{name}.file": class_text(type(part)) for name, part in parts.items()}
    described = describe_script(tables, stop, run, times, files | _imported_by_class(type(problem)))
    return replace(described, defaults=partial(defaults_of, type(problem)))


def describe_script(
    tables: Tables, stop: Stop, run: RunTable, times: DrawnTimes | None, files: Mapping[str, str] = {}
) -> RunDescription:
    """Return the description of a run of this script, of which the parts are described."""
    tables = tables | {
        "times": describe_times(times),
        "stop": _given(asdict(stop)),
        "run": _given(asdict(run)),
    }
    if path := script_path():
        tables["script"] = {"file": path.name, "arguments": sys.argv[1:]}
        files = {**files, **_script_texts(path)}
    texts = {name: text for name, text in files.items() if text}
    return RunDescription.of_tables({name: table for name, table in tables.items() if table}, texts, TITLE)


def run_table(**fields: Any) -> RunTable:
    """Return the table [run] of a script, checked."""
    try:
        return RunTable(**fields)
    except (ValueError, TypeError) as error:
        raise UsageError(one_line(error)) from None


def describe_part(part: object) -> Table:
    """Return the class of an object, and those parameters of it that the object still has."""
    names = inspect.signature(type(part).__init__).parameters
    values = {name: _plain(getattr(part, name, None)) for name in names if name not in ELSEWHERE}
    return {"class": type(part).__qualname__} | _given(values)


def describe_point(x: Any) -> Table:
    """Return what kind of point a run moves."""
    is_array = isinstance(x, np.ndarray)
    return {"x0": f"{x.dtype} of shape {x.shape}" if is_array else f"of type {type(x).__name__}"}


def describe_times(times: DrawnTimes | None) -> Table:
    """Return which task times are drawn, if any."""
    return {} if times is None else {"law": times.label} | ({} if times.stoppable else {"stoppable": False})


def _plain(value: Any) -> Any:
    """Return a number, a string or a short list of these as TOML can hold it; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple) and len(value) <= MAX_ENTRIES:
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
    path, script = Path(inspect.getsourcefile(cls) or "").resolve(), script_path()
    return {} if script and path == script.resolve() else imported_texts("problem.file", path)


def _script_texts(path: Path) -> dict[str, str]:
    """Return the text of the script, and those of the files that it imports from beside it."""
    try:
        return {SCRIPT: path.read_text()} | imported_texts(SCRIPT, path)
    except (OSError, ValueError):
        return {}


def plan_script(described: RunDescription, output: OutputOptions) -> RunStart:
    """Decide what a run starts from; the options were checked before."""
    if output.resumes():
        return _resume(described, output)
    prior, notes = read_prior(described, output)
    file = None if output.out is None else RunFile(output.out)
    return RunStart(described, file, prior=prior, notes=tuple(notes), output=output)


def _resume(described: RunDescription, output: OutputOptions) -> RunStart:
    assert output.out is not None
    file = RunFile(output.out)
    record, complaint = load_named(file)
    now, then = described.tables, record.job.tables
    if {"name", "file"} & then.get("method", {}).keys():
        raise UsageError(
            f"{file.path}: is the run of a job file; resume it with mpi-ata run, or choose another out"
        )
    ignored = IGNORED if "training" in then else (*IGNORED, "training.")  # older files have no such table
    names = [name for name in differing_keys(now, then) if not name.startswith(ignored)]
    code = _edited_code(described.files, record.job.files)
    if not output.accept_changes:
        _check_same(file.path, now, then, [name for name in names if name.startswith(FIXED)], [*code])
    values = [f"{name}: {value_of(then, name)} -> {value_of(now, name)}" for name in names]
    changes = (*values, *(f"{what}:\n{text}" for what, text in code.items()))
    notes = resume_notes(output, complaint)
    return RunStart(described, file, record, bool(complaint), changes, notes=tuple(notes), output=output)


def _edited_code(now: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Return how the class of the problem, and what the script imports, differ from before, and in what.

    Comments and formatting are no difference.
    """
    compared = {"problem.file": "the code of the problem's class"}
    compared |= {name: f"the file {name.partition('/')[2]}" for name in then if "/" in name and name in now}
    pairs = {what: (then.get(name, ""), now.get(name, "")) for name, what in compared.items()}
    return {what: difference(*pair) for what, pair in pairs.items() if not same_code(*pair)}


def _check_same(path: Path, now: Tables, then: Tables, names: Sequence[str], code: Sequence[str]) -> None:
    """Reject another problem, method or seed than that of the run to resume."""
    values = [f"{name} ({value_of(then, name)}, now {value_of(now, name)})" for name in names]
    if differing := [*values, *code]:
        raise UsageError(
            f"{path}: differs from that run in {', '.join(differing)}; resume with these changes by "
            "accept_changes=True, or start a new run with another out"
        )
