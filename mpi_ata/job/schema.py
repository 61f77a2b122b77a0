"""A job file as frozen dataclasses: strict keys, checked values; no user code runs when one is read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters import FaultPolicy
from mpi_ata.clusters.network import Network, check_exchange
from mpi_ata.errors import UsageError, did_you_mean, prefix_errors
from mpi_ata.job.component import (
    ALLOCATORS,
    LAWS,
    METHODS,
    PROBLEMS,
    UPDATES,
    Component,
    check_keys,
    checked,
    choose,
    defaults_of,
    pick,
)
from mpi_ata.job.tables import (
    Table,
    Tables,
    group,
    override,
    parse_setting,
    parse_tables,
    read_text,
    read_user_files,
    to_toml,
)
from mpi_ata.job.user_code import UserClass
from mpi_ata.runfile.store import RunFile
from mpi_ata.times import Recorded
from mpi_ata.times.drawn import Change
from mpi_ata.times.recorded import parse_samples
from mpi_ata.torch import NamedTorchUpdate
from mpi_ata.version import __version__


@dataclass(frozen=True)
class Stop:
    """When a run is finished: at whichever limit is reached first, never if there is none."""

    rounds: int | None = None
    gap: float | None = None
    loss: float | None = None
    clock: float | None = None
    elapsed: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and name != "loss" and not value > 0:
                raise ValueError(f"{name}={value} must be above 0")

    @property
    def needs_loss(self) -> bool:
        """Return whether a limit depends on the loss."""
        return self.gap is not None or self.loss is not None

    def reached(self, trace: Any) -> str | None:  # a Trace, or what a run file has of its totals
        """Return the limit that the run has reached, in words; None while there is none."""
        if self.gap is not None and trace.gap < self.gap:
            return f"gap {trace.gap:.3g} < {self.gap:g}"
        if self.loss is not None and trace.loss < self.loss:
            return f"loss {trace.loss:.6g} < {self.loss:g}"
        if self.rounds is not None and trace.round >= self.rounds:
            return f"{trace.round:,} round{'' if trace.round == 1 else 's'}"
        if self.clock is not None and trace.clock >= self.clock:
            return f"clock {trace.clock:.6g} s"
        if self.elapsed is not None and trace.elapsed >= self.elapsed:
            return f"elapsed {trace.elapsed:.6g} s"
        return None


RECORDED = "recorded"  # the name of this law


def recorded_law(keys: Table, folder: Path) -> Component:
    """Return the law of the times that `run` or `file` names; they are read when it is built."""
    named = [key for key in ("run", "file") if key in keys]
    if len(named) != 1:
        raise UsageError(
            f"[times] law = '{RECORDED}' needs one of run = 'RUN.h5' and file = 'times.csv', not "
            f"{'both' if named else 'neither'}"
        )
    path = folder / checked("times", named[0], keys[named[0]], str)

    def recorded(n: int) -> Recorded:
        try:
            return Recorded(n, read_run(path) if named == ["run"] else parse_samples(path.read_text()))
        except UsageError:  # which names the file
            raise
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return Component("times", recorded, {key: keys[key] for key in keys if key not in ("law", *named)})


def read_run(path: Path) -> list[Array]:
    """Return the task times that a run sampled of each of its workers."""
    _, groups, _ = RunFile(path).load()
    return recorded_samples(groups.get("workers", {}).get("times"), path)


def recorded_samples(times: Array | None, path: Path) -> list[Array]:
    """Return the sample of each worker's task times, of which a run file has one row each."""
    if times is None or times.ndim != 2 or times.dtype.kind != "f":
        raise UsageError(f"{path}: has no sample of task times; record one with this version of mpi_ata")
    return [row[~np.isnan(row)] for row in times]


_OWN = ("unit", "report", "stoppable", "changes")  # keys that do not belong to the law


@dataclass(frozen=True)
class TimesTable:
    """The table [times]: a law of task times, and how it is emulated on real ranks."""

    law: Component
    unit: float = 1.0
    report: str = "measured"
    stoppable: bool = True
    changes: tuple[Change, ...] = ()
    content: str = ""  # of the file that the law comes from: its text or checksum

    def __post_init__(self) -> None:
        if not self.unit > 0:
            raise ValueError(f"unit={self.unit} must be above 0 seconds")
        if self.report not in ("measured", "drawn"):
            raise ValueError(f"report={self.report!r} must be 'measured' or 'drawn'")

    def label(self, seed: int) -> str:
        """Return the law in words, short enough for a run file; with the seed, if the law depends on it."""
        changes = "".join(f" from {c.round}: {c.workers} x {c.factor:g}" for c in self.changes)
        file = f" of {sha256(self.content.encode()).hexdigest()[:16]}" if self.content else ""
        drawn = f" seed {seed}" if self.law.accepts("seed") else ""
        name = f"{self.law.factory.__name__}{file} {self.law.keys}{drawn}"
        return short_label(f"{name} x {self.unit:g} s{changes}")


def short_label(text: str) -> str:
    """Return words that identify a law, cut to a length that fits into a run file."""
    text = text.replace("'", "")
    return text if len(text) <= 80 else f"{text[:60]} {sha256(text.encode()).hexdigest()[:16]}"


def read_times(table: Table, folder: Path, content: str) -> TimesTable:
    """Return the table, checked; `content` is that of the file that it names, if any."""
    keys = {key: value for key, value in table.items() if key not in _OWN}
    if keys.get("law") == RECORDED:
        law = recorded_law(keys, folder)
    else:
        law = choose("times", keys, LAWS | {RECORDED: recorded_law}, folder, key="law")
    law = replace(law, others=(*(key for key in keys if key not in law.keys), *_OWN))
    own = {key: table[key] for key in _OWN if key in table and key != "changes"}
    given = {"law": law, "changes": _changes(table.get("changes", [])), "content": content}
    times: TimesTable = Component("times", TimesTable, own).build(**given)
    return times


def _changes(tables: Any) -> tuple[Change, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"changes = {tables!r} in [times] must be tables [[times.changes]]")
    return tuple(Component("times.changes", Change, table).build() for table in tables)


def override_job(tables: Tables, changes: Tables) -> Tables:
    """Return the tables of a job with what --set changes.

    A new method or allocator drops what it does not know: keys of others, and all quotas if it has none.
    """
    if (name := changes.get("method", {}).get("name")) in list(METHODS):
        tables = _tables_for(METHODS[name], tables)
    if "name" in changes.get("allocator", {}):
        keys = tables.get("allocator", {})
        tables = tables | {"allocator": _keys_for(changes["allocator"]["name"], keys)}
    return override(tables, changes)


def _tables_for(cls: Any, tables: Tables) -> Tables:
    """Return the tables of a job for another method; its budget is that of an allocator it has no use for."""
    method, keys, quotas = Component("method", cls, {}), tables.get("method", {}), tables.get("allocator", {})
    others = {key for each in METHODS.values() for key in Component("method", each, {}).known_keys()}
    kept = {key: value for key, value in keys.items() if key not in others or method.accepts(key)}
    if not quotas or method.accepts("allocator"):
        return tables | {"method": kept}
    budget = {"budget": quotas["budget"]} if method.accepts("budget") and "budget" in quotas else {}
    rest = {name: table for name, table in tables.items() if name != "allocator"}
    return rest | {"method": budget | kept}


def _keys_for(name: Any, keys: Table) -> Table:
    """Return those keys of one allocator that another one knows; unknown to both is an error."""
    known = allocator_keys(name)
    if "file" not in keys:  # a user's class is not asked here what it knows
        own = allocator_keys(keys["name"]) if keys.get("name") in list(ALLOCATORS) else []
        check_keys("allocator", [key for key in keys if key != "name"], sorted({*known, *own}))
    return {key: value for key, value in keys.items() if key in known}


def allocator_keys(name: Any) -> list[str]:
    """Return the keys that the allocator of this name knows."""
    chosen = Component("allocator", pick("allocator", "name", {"name": name}, ALLOCATORS), {})
    return [key for key in chosen.known_keys() if key not in ("n", "seed")]


TABLES = ("problem", "method", "allocator", "times", "network", "stop", "run", "faults")
REQUIRED = ("problem", "method", "stop")
LOGS = ("csv", "tensorboard", "wandb", "mlflow")
REMOVED = {"run.replicated": 'was removed; use exchange = "chain" in [run], or mpi_ata.Balance in a script'}
_LEAST = {"workers": 1, "evaluate_every": 1, "checkpoint_rounds": 1, "checkpoint_seconds": 0, "grace": 0}


@dataclass(frozen=True)
class RunTable:
    """The table [run]: what is not about the mathematics."""

    workers: int | None = None
    seed: int = 0
    evaluate_every: int = 10
    checkpoint_rounds: int | None = None
    checkpoint_seconds: float | None = None
    grace: float = 20.0  # seconds that a round may still take after a signal
    log: list[str] | None = None  # names of loggers
    exchange: str = "auto"  # how x and results travel between ranks

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = vars(self)[name]
            if value is not None and not value >= least:
                raise ValueError(f"{name}={value} must be at least {least}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**64 - 1")
        check_exchange(self.exchange)
        for name in self.log or ():
            if name not in LOGS:
                listed = f"{', '.join(LOGS)}{did_you_mean(str(name), LOGS)}"
                raise ValueError(f"log has the unknown name {name!r}; valid names: {listed}")


FARM = {"class": "Farm"}  # the table [method] of a farm or a pool


@dataclass(frozen=True)
class RunDescription:
    """What a run file keeps of a job or a script: its text, what --set changed, and the user's files."""

    text: str
    settings: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # texts, or checksums of data, by table.key
    defaults: Callable[[], Mapping[str, Any]] = field(default=dict, compare=False)  # of the problem's keys

    @classmethod
    def of_tables(cls, tables: Tables, files: Mapping[str, str], title: str = "") -> "RunDescription":
        """Return the description of a run that has no job file."""
        return cls(title + to_toml(tables), (), files)

    @property
    def tables(self) -> Tables:
        """Return the tables with what --set changed."""
        return _tables_of(self.text, self.settings)

    @property
    def is_farm(self) -> bool:
        """Return whether it is the run of a farm or a pool: items, no rounds and no point."""
        return self.tables.get("method") == FARM

    @cached_property
    def stop(self) -> Stop:
        """Return the limits of the run."""
        return Stop(**self.tables.get("stop", {}))

    @cached_property
    def run(self) -> RunTable:
        """Return what is not about the mathematics; keys of older run files that were removed are ignored."""
        given = self.tables.get("run", {})
        return RunTable(**{key: value for key, value in given.items() if f"run.{key}" not in REMOVED})

    @property
    def digest(self) -> bytes:
        """Return a hash of what all ranks must agree on: version, tables, and the files they name."""
        return sha256(f"{__version__} {self.tables!r} {self.files!r}".encode()).digest()


@lru_cache(maxsize=8)
def _tables_of(text: str, settings: tuple[str, ...]) -> Tables:
    return override_job(parse_tables(text), group(map(parse_setting, settings)))


@dataclass(frozen=True, kw_only=True)
class Job(RunDescription):
    """The description of a run by a job file, with the classes that it names."""

    path: Path
    problem: Component
    method: Component  # with the keys of its update, which stand in the same table
    allocator: Component | None
    times: TimesTable | None
    network: Network | None  # of simulated workers
    faults: FaultPolicy

    def with_seed(self, seed: int) -> "Job":
        """Return the same job with another seed."""
        return self._set(f"run.seed={seed}")

    def with_allocators(self, names: Sequence[str]) -> list["Job"]:
        """Return the same job under other allocators ("own": its own), each with the keys it knows."""
        if self.allocator is None:
            raise UsageError(f"{self.path}: this method has no allocator to exchange; use mpi-ata run")
        return [self if name == "own" else self._with_allocator(name) for name in names]

    def _with_allocator(self, name: str) -> "Job":
        with prefix_errors(f"{self.path}: "):
            known = _keys_for(name, self.tables["allocator"])
        settings = map(parse_setting, self.settings)
        kept = [each.text for each in settings if each.table != "allocator" or each.key in known]
        return replace(self, settings=tuple(kept))._set(f"allocator.name={name}")

    def with_methods(self, methods: Sequence[str]) -> list["Job"]:
        """Return the same job under other methods: each its name, and keys, as in ringmaster:delay=20."""
        chosen = [[part.strip() for part in method.split(":")] for method in methods]
        return [
            self._set(f"method.name={name}", *(f"method.{key}" for key in keys)) for name, *keys in chosen
        ]

    def _set(self, *settings: str) -> "Job":
        """Return the job that --set gives."""
        with prefix_errors(f"{self.path}: "):
            return job_from(self.path, RunDescription(self.text, (*self.settings, *settings)))


def load_job(path: Path, settings: Iterable[str] = ()) -> Job:
    """Read a job file; `settings` are table.key=value and override it."""
    description = RunDescription(read_text(path), tuple(settings))
    with prefix_errors(f"{path}: "):
        return job_from(path, description)


def job_from(path: Path, description: RunDescription) -> Job:
    """Return the job that is described, checked as far as that needs none of the user's code."""
    tables = description.tables
    _check_tables(tables)
    folder, keys = path.parent, tables.get("allocator")
    problem = choose("problem", tables["problem"], PROBLEMS, folder)
    method = choose("method", tables["method"], METHODS, folder)
    allocator = None if keys is None else choose("allocator", keys, ALLOCATORS, folder)
    if not isinstance(method.cls, UserClass):  # one of the user's is checked when it is built
        check_allocator(method, allocator)
        if method.accepts("update"):
            choose_update(method.keys, folder)
    for name, cls in (("stop", Stop), ("run", RunTable)):
        Component(name, cls, tables.get(name, {})).build()
    files = read_user_files(folder, tables)
    law_file = files.get("times.file", "") + files.get("times.run", "")
    return Job(
        description.text,
        description.settings,
        files,
        lambda: defaults_of(problem.factory),
        path=path,
        problem=problem,
        method=method,
        allocator=allocator,
        times=read_times(tables["times"], folder, law_file) if "times" in tables else None,
        network=Component("network", Network, tables["network"]).build() if "network" in tables else None,
        faults=Component("faults", FaultPolicy, tables.get("faults", {})).build(owned=False),
    )


GIVEN = ("x0", "n", "allocator", "means", "combine", "owned")  # parameters that are no keys


def setting_names() -> list[str]:
    """Return what --set can begin with: each key as table.key=, and names of classes as table.key=name."""
    named = {"problem.name": PROBLEMS, "method.name": METHODS, "method.update": UPDATES}
    named |= {"allocator.name": ALLOCATORS, "times.law": LAWS}
    plain = {"times": TimesTable, "stop": Stop, "run": RunTable, "faults": FaultPolicy, "network": Network}
    found = {f"{key}={name}" for key, names in named.items() for name in names}
    classes: list[tuple[str, Any]] = [*plain.items()]
    classes += [(key.partition(".")[0], cls) for key, names in named.items() for cls in names.values()]
    for table, cls in classes:
        found |= {f"{table}.{key}=" for key in Component(table, cls, {}).known_keys() if key not in GIVEN}
    return sorted(found)


def check_allocator(method: Component, allocator: Component | None) -> None:
    """Reject a method without the allocator it needs, or with one it has no use for."""
    if method.accepts("allocator") and allocator is None:
        raise UsageError("this method needs a table [allocator]")
    if allocator is not None and not method.accepts("allocator"):
        raise UsageError("this method decides on its own who works: remove the table [allocator]")


def choose_update(keys: Table, folder: Path) -> Component:
    """Return the update, by `update` or by `update_file` and `update_class`, with all keys of the table."""
    name = keys.get("update")
    if isinstance(name, str) and name.startswith("torch."):
        keys = {key: value for key, value in keys.items() if key != "update"}
        return Component("method", NamedTorchUpdate, keys | {"optimizer": name.removeprefix("torch.")})
    choices = UPDATES | {"torch.<class of torch.optim>": NamedTorchUpdate}
    return choose("method", keys, choices, folder, key="update", default="plain")


def _check_tables(tables: Tables) -> None:
    """Reject unknown and missing tables, keys that were removed, and numbers that nothing can hold."""
    for name in tables:
        if name not in TABLES:
            listed = f"{', '.join(TABLES)}{did_you_mean(name, TABLES)}"
            raise UsageError(f"unknown table {name!r}; valid tables: {listed}")
        for key, value in tables[name].items():
            if why := REMOVED.get(f"{name}.{key}"):
                raise UsageError(f"the key {key!r} in [{name}] {why}")
            _check_numbers(name, key, value)
    for name in REQUIRED:
        if not tables.get(name):
            raise UsageError(f"the table [{name}] is missing or empty")


def _check_numbers(table: str, key: str, value: Any) -> None:
    """Reject whole numbers beyond 64 bits, which arrays cannot hold and Python may not be able to print."""
    if isinstance(value, int) and abs(value) > 2**64:
        raise UsageError(f"{key} in [{table}] must be a number of at most 64 bits")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        _check_numbers(table, key, each)
