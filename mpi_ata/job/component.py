"""The parts of a job that are chosen by name or by file: their keys are their constructor's parameters."""

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mpi_ata import methods
from mpi_ata.allocators import ATA, GTA, OFTA, UTA, ATAAuto, ATAEmpirical, Bandit, MSync, Proportional
from mpi_ata.errors import UsageError, describe_error, did_you_mean, one_line, users_line
from mpi_ata.job.tables import Table
from mpi_ata.job.user_code import UserClass
from mpi_ata.problems import Logistic, Quadratic
from mpi_ata.times import (
    Constant,
    Exponential,
    Linear,
    Mix,
    Sqrt,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)
from mpi_ata.torch import Cifar100
from mpi_ata.updates import LMO, Adam, Momentum, Nesterov, Plain

_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
}
NAMED_TABLES = ("problem", "method", "allocator")  # whose key `name` chooses a class
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_keys(table: str, keys: Iterable[str], valid: Collection[str]) -> None:
    """Reject keys that nobody would read."""
    for key in keys:
        if key not in valid:
            listed = f"{', '.join(valid) or 'none'}{did_you_mean(key, valid)}"
            raise UsageError(f"unknown key {key!r} in [{table}]; valid keys: {listed}")


def checked(table: str, key: str, value: Any, annotation: Any) -> Any:
    """Return the value, if its type fits; annotations beyond numbers, strings and lists are not checked."""
    kinds = _kinds(annotation)
    if kinds and not any(_is(value, kind) for kind in kinds):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        way_out = f": write {int(value)}" if whole else ""
        raise UsageError(f"{key} = {value!r} in [{table}] must be {type_in_words(annotation)}{way_out}")
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"{key} = {value!r} in [{table}] must be finite")
    return float(value) if kinds == [float] else value


def type_in_words(annotation: Any) -> str:
    """Return "a number" and the like; nothing where the type is not known."""
    return " or ".join(dict.fromkeys(_KINDS[kind] for kind in _kinds(annotation)))


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # which Python counts as a number
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _kinds(annotation: Any) -> list[type]:
    """Return the kinds of TOML values that fit an annotation; none where that is not known."""
    origin = typing.get_origin(annotation) or annotation
    if origin in (types.UnionType, typing.Union):
        parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        kinds = [_kinds(part) for part in parts]
        return [kind for several in kinds for kind in several] if all(kinds) else []
    if origin in _KINDS or origin is Path:
        return [str if origin is Path else origin]
    return [list] if origin in (Sequence, tuple) else []


def _is_path(annotation: Any) -> bool:
    return Path in (annotation, *typing.get_args(annotation))


@dataclass(frozen=True)
class Component:
    """A class and the keys that a job gives it; a user's class is imported when it is first asked about."""

    table: str  # the part of the job that the keys are in
    cls: Callable[..., Any] | UserClass
    keys: Table
    others: tuple[str, ...] = ()  # keys of the same table that belong to something else
    folder: Path = Path()  # of the job, from which relative paths start

    @property
    def factory(self) -> Callable[..., Any]:
        """Return the class itself."""
        return self.cls.loaded if isinstance(self.cls, UserClass) else self.cls

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        factory = self.factory
        try:
            return inspect.signature(factory, eval_str=True).parameters
        except Exception:  # an annotation that only type checkers can resolve
            return inspect.signature(factory).parameters

    def accepts(self, key: str) -> bool:
        """Return whether the constructor has a parameter of this name."""
        return key in self._parameters

    def accepts_any(self) -> bool:
        """Return whether the constructor takes keys of any name."""
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters.values())

    def known_keys(self) -> list[str]:
        """Return the names of the constructor's parameters."""
        return [name for name, parameter in self._parameters.items() if parameter.kind not in _VARIADIC]

    def check_keys(self, given: Iterable[str]) -> None:
        """Reject keys of the job that the constructor does not take; it is `given` others anyway."""
        if not self.accepts_any():
            own = [key for key in self.known_keys() if key not in given]
            name = ["name"] if self.table in NAMED_TABLES and not isinstance(self.cls, UserClass) else []
            check_keys(self.table, self.keys, dict.fromkeys([*self.others, *own, *name]))

    def build(self, **given: Any) -> Any:
        """Construct it: from `given` what a job cannot know, from the job's keys the rest."""
        given = {key: value for key, value in given.items() if self.accepts(key)}
        self.check_keys(given)
        own = {key: self._value(key) for key in self.known_keys() if key not in given and self._needs(key)}
        name = self._name
        try:
            return self.factory(**given, **self.keys | own)
        except ValueError as error:
            place = users_line(error)
            raise UsageError(f"[{self.table}] {one_line(error)}{f' ({place})' if place else ''}") from None
        except MemoryError as error:
            rule = f"needs more memory than there is: {one_line(error)}; choose smaller numbers"
            raise UsageError(f"[{self.table}] {name} {rule}") from None
        except (Exception, SystemExit) as error:
            what = f"{describe_error(error)}{self._is_beside(error)}"
            raise UsageError(f"[{self.table}] {name}: {what}") from None

    def _is_beside(self, error: BaseException) -> str:
        """Return the way out if a file was not found that lies beside the job."""
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        keys = [key for key, value in self.keys.items() if value == missing and key in self._parameters]
        if not keys or not (self.folder / str(missing)).exists():
            return ""
        return f"; to look for it beside the job file, annotate the parameter: {keys[0]}: Path"

    def paths(self) -> dict[str, Path]:
        """Return the absolute paths among the keys; none of a class that cannot be imported here."""
        with suppress(UsageError):
            known = self._parameters if any(isinstance(value, str) for value in self.keys.values()) else {}
            found = [key for key in self.keys if key in known and _is_path(known[key].annotation)]
            return {key: Path(self._value(key)).absolute() for key in found}
        return {}

    @property
    def _name(self) -> str:
        return getattr(self.factory, "__name__", repr(self.factory))

    def _needs(self, key: str) -> bool:
        return key in self.keys or self._parameters[key].default is inspect.Parameter.empty

    def _value(self, key: str) -> Any:
        """Return the job's value for a parameter, checked."""
        annotation = self._parameters[key].annotation
        if key in self.keys:
            value = checked(self.table, key, self.keys[key], annotation)
            is_path = isinstance(value, str) and _is_path(annotation)
            return self.folder / Path(value).expanduser() if is_path else value
        wanted = f"'{key}' ({words})" if (words := type_in_words(annotation)) else f"'{key}'"
        way_out = "" if "." in self.table else f"; set it in the file or with --set {self.table}.{key}=..."
        raise UsageError(f"[{self.table}] {self._name} needs the key {wanted}{way_out}")


def defaults_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a class or function."""
    parameters = inspect.signature(factory).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def choose(
    table: str,
    keys: Table,
    choices: Mapping[str, Callable[..., Any]],
    folder: Path,
    key: str = "name",
    default: str | None = None,
) -> Component:
    """Return the component that a table of a job names, by `name` or by `file` and `class`.

    Updates, which share a table with a method, have a prefix: `update`, `update_file` and `update_class`.
    """
    keys = dict(keys)
    file, cls = (f"{key}_file", f"{key}_class") if key == "update" else ("file", "class")
    if file not in keys and cls not in keys:
        return Component(table, pick(table, key, keys, choices, default), keys, folder=folder)
    for each in (file, cls):
        if each not in keys:
            raise UsageError(f"[{table}] needs both '{file}' and '{cls}'; '{each}' is missing")
        checked(table, each, keys[each], str)
    if key in keys:
        raise UsageError(f"[{table}] has both '{key}' and '{file}'; keep one of them")
    return Component(table, UserClass(table, folder / keys.pop(file), keys.pop(cls)), keys, folder=folder)


def pick(table: str, key: str, keys: Table, choices: Mapping[str, Any], default: str | None = None) -> Any:
    """Remove `key` from a table and return what it names."""
    name = keys.pop(key, default)
    if name is None:
        raise UsageError(f"[{table}] needs the key '{key}'; valid values: {', '.join(choices)}")
    if not isinstance(name, str) or name not in choices:
        listed = f"{', '.join(choices)}{did_you_mean(name, choices)}"
        raise UsageError(f"unknown {key} {name!r} in [{table}]; valid values: {listed}")
    return choices[name]


Names = dict[str, Callable[..., Any]]

ALLOCATORS: Names = {
    "ata": ATA,
    "ata-auto": ATAAuto,
    "ata-empirical": ATAEmpirical,
    "gta": GTA,
    "ofta": OFTA,
    "uta": UTA,
    "m-sync": MSync,
    "bandit": Bandit,
    "proportional": Proportional,
}

MACHINES: Names = {
    "lonestar6": lonestar6,
    "longhorn": longhorn,
    "frontera": frontera,
    "gpu-generations": gpu_generations,
    "bytedance-ar": bytedance_ar,
    "bytedance-se": bytedance_se,
}

LAWS: Names = {
    "constant": Constant,
    "exponential": Exponential,
    "linear": Linear,
    "mix": Mix,
    "sqrt": Sqrt,
    **MACHINES,
}

METHODS: Names = {
    "sgd": methods.SGD,
    "heterogeneous-data-sgd": methods.HeterogeneousDataSGD,
    "malenia": methods.Malenia,
    "asgd": methods.ASGD,
    "ringmaster": methods.Ringmaster,
    "map": methods.Map,
    "mindflayer": methods.MindFlayer,
    "rennala-mvr": methods.RennalaMVR,
    "ringleader": methods.Ringleader,
    "rescaled-asgd": methods.RescaledASGD,
    "heterogeneous-data-asgd": methods.HeterogeneousDataASGD,
}

PROBLEMS: Names = {"quadratic": Quadratic, "logistic": Logistic, "cifar100": Cifar100}

UPDATES: Names = {"plain": Plain, "momentum": Momentum, "nesterov": Nesterov, "adam": Adam, "lmo": LMO}
