"""A job file as frozen dataclasses: strict keys, and the parts of a run built from them."""

import tomllib
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.allocators import ALLOCATORS, Allocator
from mpi_ata.component import Component, Table, check_keys, checked, choose, one_line, pick
from mpi_ata.errors import UsageError
from mpi_ata.methods import METHODS, UPDATES, Method
from mpi_ata.methods.torch_updates import TorchUpdate
from mpi_ata.problems import PROBLEMS, Problem
from mpi_ata.times import LAWS, DrawnTimes, Law
from mpi_ata.trace import Stop
from mpi_ata.version import __version__


@dataclass(frozen=True)
class Run:
    """The table [run]: what is not about the mathematics."""

    workers: int | None = None
    seed: int = 0
    evaluate_every: int = 10

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers} must be at least 1")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**64 - 1")
        if self.evaluate_every < 1:
            raise ValueError(f"evaluate_every={self.evaluate_every} must be at least 1 round")


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
            times = DrawnTimes(law, self.run.seed, self.times.unit)
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

    def with_allocators(self, names: Sequence[str]) -> list["Job"]:
        """The same job under other allocators, each with those keys that it knows; all are checked first."""
        with _named(self.path):
            if self.allocator is None:
                raise UsageError("this method has no allocator to exchange")
            own = self.allocator
            components = [own if name == "own" else _exchanged(name, own.keys) for name in names]
            known = {key for component in [self.allocator, *components] for key in component.known_keys()}
            check_keys("allocator", self.allocator.keys, sorted(known))
        return [replace(self, allocator=component) for component in components]


def load_job(path: Path, settings: Iterable[str] = ()) -> Job:
    """Read a job file; `settings` are table.key=value and override it."""
    tables, changes = _read(path), dict[str, Table]()
    for setting in settings:
        table, key, value = parse_setting(setting)
        changes.setdefault(table, {})[key] = value
    with _named(path):
        if "name" in changes.get("allocator", {}):
            tables["allocator"] = _exchanged(changes["allocator"]["name"], tables.get("allocator", {})).keys
        for table, keys in changes.items():
            given = tables.get(table, {})
            tables[table] = {key: value for key, value in given.items() if key not in _replaced(keys)} | keys
        return replace(_job(path, tables), digest=_digest(path, tables))


def _replaced(keys: Table) -> set[str]:
    """The keys of a table that name something in another way than these do."""
    replaced = set[str]()
    for name, file, cls in (("name", "file", "class"), ("update", "update_file", "update_class")):
        replaced |= {name} if file in keys else {file, cls} if name in keys else set()
    return replaced


def _digest(path: Path, tables: dict[str, Table]) -> bytes:
    """What all ranks must agree on."""
    digest = sha256(f"{__version__} {tables!r}".encode())
    for name in ("problem", "method", "allocator"):
        for key in ("file", "update_file"):
            if key in tables.get(name, {}):
                digest.update((path.parent / tables[name][key]).read_bytes())
    return digest.digest()


def _exchanged(name: str, keys: Table) -> Component:
    """The allocator of this name, with those keys of another one that it knows."""
    other = Component("allocator", pick("allocator", "name", {"name": name}, ALLOCATORS), {})
    return replace(other, keys={key: value for key, value in keys.items() if other.accepts(key)})


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


def _read(path: Path) -> dict[str, Table]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name!r} stands outside of a table; put it under [run] or the like")
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
    if stop.gap is not None or stop.loss is not None:
        needs["loss"] = "loss(x), to stop at a loss or gap"
    if stop.gap is not None:
        needs["minimum"] = "an attribute minimum, the least possible loss, to stop at a gap"
    for name, what in needs.items():
        if not hasattr(problem, name):
            raise UsageError(f"[problem] {type(problem).__name__} needs {what}")


def _kind(value: Any) -> str:
    return (
        f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
    )
