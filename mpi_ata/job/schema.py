"""A job file as frozen dataclasses: strict keys, and the parts of a run built from them."""

import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.errors import UsageError
from mpi_ata.job.component import Component, Table, check_keys, checked, choose, one_line, pick
from mpi_ata.job.names import ALLOCATORS, LAWS, METHODS, PROBLEMS, UPDATES
from mpi_ata.job.source import JobText
from mpi_ata.job.stop import Stop
from mpi_ata.methods import Method
from mpi_ata.problems import Problem
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.torch.updates import TorchUpdate
from mpi_ata.version import __version__

# Keys that may differ between a run and its resumption: they change nothing in what it computes.
FREE = {"run.workers", "run.evaluate_every", "run.checkpoint_rounds", "run.checkpoint_seconds", "run.grace"}


NO_TEXT = JobText("")  # of a job that did not come from a file


@dataclass(frozen=True)
class Run:
    """The table [run]: what is not about the mathematics."""

    workers: int | None = None
    seed: int = 0
    evaluate_every: int = 10
    checkpoint_rounds: int | None = None
    checkpoint_seconds: float | None = None
    grace: float = 20.0  # seconds that a round may still take after a signal

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers} must be at least 1")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**64 - 1")
        if self.evaluate_every < 1:
            raise ValueError(f"evaluate_every={self.evaluate_every} must be at least 1 round")
        if self.checkpoint_rounds is not None and self.checkpoint_rounds < 1:
            raise ValueError(f"checkpoint_rounds={self.checkpoint_rounds} must be at least 1")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds={self.checkpoint_seconds} must be at least 0")
        if not self.grace >= 0:
            raise ValueError(f"grace={self.grace} must be at least 0 seconds")


@dataclass(frozen=True)
class Times:
    """The table [times]: a law of task times, and how it is played on real ranks."""

    law: Component
    unit: float = 1.0
    report: str = "measured"

    def __post_init__(self) -> None:
        if not self.unit > 0:
            raise ValueError(f"unit={self.unit} must be above 0 seconds")
        if self.report not in ("measured", "drawn"):
            raise ValueError(f"report={self.report!r} must be 'measured' or 'drawn'")

    @property
    def label(self) -> str:
        """The law in words, short enough for a run file."""
        text = f"{self.law.factory.__name__} {self.law.keys} x {self.unit:g} s".replace("'", "")
        return text if len(text) <= 80 else f"{text[:60]} {sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Job:
    """What one job file describes."""

    path: Path
    problem: Component
    method: Component
    update: Component | None
    allocator: Component | None
    times: Times | None
    stop: Stop
    run: Run
    source: JobText = NO_TEXT
    digest: bytes = b""  # of the package's version, the job as it is to be run, and the files it names

    def build_problem(self) -> Problem:
        """The problem, checked for what a run needs of it."""
        with _named(self.path):
            problem: Problem = self.problem.build(seed=self.run.seed)
            _check_problem(problem, self.stop)
        return problem

    def build_times(self, n: int) -> DrawnTimes | None:
        """The drawn task times of a run on n workers, where the job has a law for them."""
        if self.times is None:
            return None
        with _named(self.path):
            law: Law = self.times.law.build(n=n)
            times = DrawnTimes(law, self.run.seed, self.times.unit, self.times.label)
            if not np.isfinite(times.means).all():
                raise UsageError("[times] the times overflow; choose a smaller scale")
            return times

    def build_allocator(self, n: int, times: DrawnTimes | None) -> Allocator | None:
        """The allocator, where the method has one."""
        with _named(self.path):
            if self.allocator is None:
                return None
            allocator: Allocator = self.allocator.build(**self._known(n, times))
        return allocator

    def _known(self, n: int, times: DrawnTimes | None) -> dict[str, Any]:
        return {"n": n, "seed": self.run.seed} | ({"means": times.means} if times else {})

    def build_method(self, problem: Problem, n: int, times: DrawnTimes | None) -> Method:
        """The method, with its allocator and its update."""
        allocator = self.build_allocator(n, times)
        with _named(self.path):
            update = self.update and self.update.build()
            known = self._known(n, times) | {"x0": problem.x0, "allocator": allocator, "update": update}
            method: Method = self.method.build(**known)
        return method

    @property
    def greedy_instead(self) -> str:
        """The method to take with greedy allocation, where this one refuses it."""
        return str(getattr(self.method.factory, "greedy_instead", ""))

    def with_allocators(self, names: Sequence[str]) -> list["Job"]:
        """The same job under other allocators, each with those keys that it knows; all are checked first."""
        with _named(self.path):
            if self.allocator is None:
                raise UsageError("this method has no allocator to exchange; run it by mpi-ata run")
            own = self.allocator
            components = [own if name == "own" else _exchanged(name, own.keys) for name in names]
            _check_known(own.keys, [own, *components])
        return [replace(self, allocator=component) for component in components]


def load_job(path: Path, settings: Iterable[str] = ()) -> Job:
    """Read a job file; `settings` are table.key=value and override it."""
    text, settings = _read(path), tuple(settings)
    with _named(path):
        tables = _changed(_tables(text), settings)
        job = _job(path, tables)
        files = _files(path.parent, tables)
        return replace(job, source=JobText(text, settings, files), digest=_digest(tables, files))


def named_files(path: Path, settings: Iterable[str] = ()) -> dict[str, str]:
    """The users' files that a job names, as it writes them, by table.key."""
    with _named(path):
        return _file_names(_changed(_tables(_read(path)), settings))


def tables_of(source: JobText) -> dict[str, Table]:
    """The tables of a job, with what --set has changed."""
    return _changed(_tables(source.text), source.settings)


def problem_of(source: JobText) -> tuple[Table, str]:
    """The table [problem] of a job, and the text of the file that it names."""
    return tables_of(source).get("problem", {}), source.files.get("problem.file", "")


def load_again(path: Path, stored: JobText, settings: Sequence[str]) -> tuple[Job, list[str]]:
    """Read a job file that an earlier run was of, with the changes made then; and tell what changes now."""
    now = {_key(setting): setting for setting in settings}
    latest = _kept(stored.settings, now) | now
    text = _read(path)
    with _named(path):
        before, after = (
            _changed(_tables(stored.text), stored.settings),
            _changed(_tables(text), latest.values()),
        )
        differing = [
            name
            for name in _differing(_tables(text), _tables(stored.text))
            if name not in FREE and name not in latest and not name.startswith("stop.")
        ]
        files = _files(path.parent, after)
        differing += [
            f"the file {_value(after, name)}"
            for name, text in stored.files.items()
            if name not in now and files.get(name, text) != text
        ]
        if differing:
            raise UsageError(
                f"differs from the job of that run in {', '.join(differing)}; change keys with --set, name a "
                "mended file by --set too (problem.file=mended.py), or start another run with another --out"
            )
    return load_job(path, latest.values()), [
        f"{name}: {_value(before, name)} -> {_value(after, name)}" for name in _differing(after, before)
    ]


def _kept(stored: Sequence[str], now: Mapping[str, str]) -> dict[str, str]:
    """What --set gave each key before, but for what is exchanged now, or unknown to another allocator."""
    tables = _by_table(now.values())
    replaced = {f"{table}.{key}" for table, keys in tables.items() for key in _replaced(keys)}
    kept = {key: setting for setting in stored if (key := _key(setting)) not in replaced}
    if "allocator.name" in now:
        other = _exchanged(parse_setting(now["allocator.name"])[2], {})
        return {
            key: setting
            for key, setting in kept.items()
            if not key.startswith("allocator.") or other.accepts(key.removeprefix("allocator."))
        }
    return kept


def _key(setting: str) -> str:
    return ".".join(parse_setting(setting)[:2])


def _differing(tables: dict[str, Table], others: dict[str, Table]) -> list[str]:
    """The keys in which two jobs differ, as table.key."""
    names = {f"{table}.{key}": None for both in (tables, others) for table in both for key in both[table]}
    return [name for name in names if _value(tables, name) != _value(others, name)]


def _value(tables: dict[str, Table], name: str) -> Any:
    table, _, key = name.partition(".")
    return tables.get(table, {}).get(key, "not given")


def _changed(tables: dict[str, Table], settings: Iterable[str]) -> dict[str, Table]:
    """Tables with the values that --set gives."""
    changes = _by_table(settings)
    if "name" in changes.get("allocator", {}):
        keys = dict(tables.get("allocator", {}))
        other = _exchanged(changes["allocator"]["name"], keys)
        if "file" not in keys:  # of a class of the user's own it is not known here what it knows
            name = keys.pop("name", None)
            own = [_exchanged(name, {})] if name in list(ALLOCATORS) else []
            _check_known(keys, [other, *own])
        tables["allocator"] = other.keys
    for table, keys in changes.items():
        given = tables.get(table, {})
        tables[table] = {key: value for key, value in given.items() if key not in _replaced(keys)} | keys
    return tables


def _by_table(settings: Iterable[str]) -> dict[str, Table]:
    """What --set gives, as the tables of a job."""
    tables = dict[str, Table]()
    for setting in settings:
        table, key, value = parse_setting(setting)
        tables.setdefault(table, {})[key] = value
    return tables


def _replaced(keys: Table) -> set[str]:
    """The keys of a table that name something in another way than these do."""
    replaced = set[str]()
    for name, file, cls in (("name", "file", "class"), ("update", "update_file", "update_class")):
        replaced |= {name} if file in keys else {file, cls} if name in keys else set()
    return replaced


def _files(folder: Path, tables: dict[str, Table]) -> dict[str, str]:
    """The texts of the users' files that a job names, by table.key."""
    try:
        return {name: (folder / file).read_text() for name, file in _file_names(tables).items()}
    except (OSError, ValueError) as error:
        raise UsageError(f"a file that it names cannot be read: {error}") from None


def _file_names(tables: dict[str, Table]) -> dict[str, str]:
    keys = [(name, key) for name in tables for key in ("file", "update_file") if key in tables[name]]
    return {f"{name}.{key}": tables[name][key] for name, key in keys}


def _digest(tables: dict[str, Table], files: dict[str, str]) -> bytes:
    """What all ranks must agree on."""
    return sha256(f"{__version__} {tables!r} {files!r}".encode()).digest()


def _exchanged(name: str, keys: Table) -> Component:
    """The allocator of this name, with those keys of another one that it knows."""
    other = Component("allocator", pick("allocator", "name", {"name": name}, ALLOCATORS), {})
    return replace(other, keys={key: value for key, value in keys.items() if other.accepts(key)})


def _check_known(keys: Table, allocators: Iterable[Component]) -> None:
    """Refuse keys that none of these allocators knows."""
    known = {key for allocator in allocators for key in allocator.known_keys()}
    check_keys("allocator", keys, sorted(known - {"n", "seed"}))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let a complaint say which job file it is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_setting(setting: str) -> tuple[str, str, Any]:
    """Split table.key=value; the value is read as in a job file, a bare word as a text."""
    name, equals, text = setting.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and table and key):
        raise UsageError(f"--set {setting!r} is not table.key=value, as in --set allocator.budget=23")
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        values = {}
    return table, key, values["value"] if list(values) == ["value"] else text


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None


def _tables(text: str) -> dict[str, Table]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"is not valid TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{name!r} stands outside of a table; put it under [run] or the like")
    return tables


def _job(path: Path, tables: dict[str, Table]) -> Job:
    valid = ["problem", "method", "allocator", "times", "stop", "run"]
    for name in tables:
        if name not in valid:
            raise UsageError(f"unknown table {name!r}; valid tables: {', '.join(valid)}")
    for name in ("problem", "method", "stop"):
        if not tables.get(name):
            raise UsageError(f"the table [{name}] is missing or empty")
    method, update = _method(tables["method"], path.parent)
    if method.accepts("allocator") != ("allocator" in tables):
        if method.accepts("allocator"):
            raise UsageError("this method needs a table [allocator]")
        raise UsageError(
            "this method decides by itself who works and takes no table [allocator]; leave it out"
        )
    return Job(
        path=path,
        problem=choose("problem", tables["problem"], PROBLEMS, path.parent),
        method=method,
        update=update,
        allocator=choose("allocator", tables["allocator"], ALLOCATORS, path.parent)
        if "allocator" in tables
        else None,
        times=_times(tables["times"]) if "times" in tables else None,
        stop=_plain("stop", Stop, tables["stop"]),
        run=_plain("run", Run, tables.get("run", {})),
    )


def _method(table: Table, folder: Path) -> tuple[Component, Component | None]:
    """The method and its update, which share a table."""
    method = choose("method", table, METHODS, folder)
    if not method.accepts("update"):
        return method, None
    update = _update(method.keys, folder)
    takes_all = update.accepts_any() and not method.accepts_any()
    keys, own = dict[str, Any](), dict[str, Any]()
    for key, value in update.keys.items():
        of_update = update.accepts(key) or (takes_all and not method.accepts(key))
        (own if of_update else keys)[key] = value
    others = ("name", "update", *(key for key in update.known_keys() if key != "optimizer"))
    return replace(method, keys=keys, others=others), replace(update, keys=own)


def _update(keys: Table, folder: Path) -> Component:
    """The update, by `update` or by `update_file` and `update_class`; still with all keys of the table."""
    name = keys.get("update")
    if isinstance(name, str) and name.startswith("torch."):
        keys = {key: value for key, value in keys.items() if key != "update"}
        return Component("method", TorchUpdate, keys | {"optimizer": name.removeprefix("torch.")})
    choices = UPDATES | {"torch.<class of torch.optim>": TorchUpdate}
    return choose("method", keys, choices, folder, key="update", default="plain")


def _times(table: Table) -> Times:
    keys = dict(table)
    law = pick("times", "law", keys, LAWS)
    own: Table = {key: keys.pop(key) for key in ("unit", "report") if key in keys}
    times: Times = _plain("times", Times, own, law=Component("times", law, keys, ("law", "unit", "report")))
    return times


def _plain(table: str, cls: type[Any], keys: Table, **fixed: Any) -> Any:
    """A table whose keys are the fields of a dataclass, but for the fixed ones."""
    check_keys(table, keys, [field.name for field in fields(cls) if field.name not in fixed])
    hints = typing.get_type_hints(cls)
    values = {key: checked(table, key, value, hints[key]) for key, value in keys.items()}
    try:
        return cls(**values, **fixed)
    except ValueError as error:
        raise UsageError(f"[{table}] {one_line(error)}") from None


def _check_problem(problem: Problem, stop: Stop) -> None:
    """Refuse a problem that lacks what the run will ask of it."""
    x0 = getattr(problem, "x0", None)
    if not isinstance(x0, np.ndarray) or x0.dtype not in (np.float32, np.float64):
        raise UsageError(f"[problem] x0 must be a numpy array of float32 or float64, not {_kind(x0)}")
    if not x0.size or not x0.ndim or not np.isfinite(x0).all():
        raise UsageError("[problem] x0 must be a list of at least one number, all finite")
    needs = {"gradient": "gradient(x, task)"}
    if stop.needs_loss and not hasattr(problem, "evaluate"):
        needs["loss"] = "loss(x), or evaluate(x) with an entry loss, to stop at a loss or gap"
    if stop.gap is not None:
        needs["minimum"] = "an attribute minimum, the least possible loss, to stop at a gap"
    for name, what in needs.items():
        if not hasattr(problem, name):
            raise UsageError(f"[problem] {type(problem).__name__} needs {what}")


def _kind(value: Any) -> str:
    return (
        f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
    )
