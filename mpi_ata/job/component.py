"""The parts of a job that are chosen by name or by file: their keys are their constructor's parameters."""

import importlib.util
import inspect
import math
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError

Table = dict[str, Any]
_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    list: ("a list", (list,)),
}
_EXTRAS = ("torch", "sklearn")  # libraries that our extras of the same name bring
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Component:
    """A class and the keys a job gives it; `table` is the part of the job they stand in."""

    table: str
    factory: Callable[..., Any]
    keys: Table
    others: tuple[str, ...] = ()  # keys of the same table that somebody else reads

    def accepts(self, key: str) -> bool:
        """Whether the constructor has a parameter of this name."""
        return key in self._parameters()

    def accepts_any(self) -> bool:
        """Whether the constructor takes keys of any name."""
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters().values())

    def known_keys(self) -> list[str]:
        """The names of the constructor's parameters."""
        return [name for name, parameter in self._parameters().items() if parameter.kind not in _VARIADIC]

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.factory, eval_str=True).parameters
        except Exception:  # an annotation that only type checkers can resolve
            return inspect.signature(self.factory).parameters

    def build(self, **given: Any) -> Any:
        """Construct it: from `given` what a job cannot know, from the job's keys the rest."""
        parameters = self._parameters()
        given = {key: value for key, value in given.items() if key in parameters}
        named = {key: p for key, p in parameters.items() if key not in given and p.kind not in _VARIADIC}
        if not self.accepts_any():
            check_keys(self.table, self.keys, [*self.others, *named])
        keys = dict(self.keys)
        for key, parameter in named.items():
            if key in keys:
                keys[key] = checked(self.table, key, keys[key], parameter.annotation)
            elif parameter.default is parameter.empty:
                kind = _kind_of(parameter.annotation)
                raise UsageError(
                    f"[{self.table}] {_name(self.factory)} needs the key '{key}'{kind}; "
                    f"set it in the file or by --set {self.table}.{key}=..."
                )
        try:
            return self.factory(**given, **keys)
        except ValueError as error:
            raise UsageError(f"[{self.table}] {one_line(error)}") from None
        except (Exception, SystemExit) as error:
            raise UsageError(f"[{self.table}] {_name(self.factory)}: {_described(error)}") from None


def choose(
    table: str,
    keys: Table,
    choices: Mapping[str, Callable[..., Any]],
    folder: Path,
    key: str = "name",
    default: str | None = None,
) -> Component:
    """The component that a table of a job names, by `name` or by `file` and `class`.

    With another key than "name", that one stands for it, and is put before the others: `update`,
    `update_file` and `update_class`.
    """
    keys = dict(keys)
    file, cls = ("file", "class") if key == "name" else (f"{key}_file", f"{key}_class")
    if file in keys or cls in keys:
        for each in (file, cls):
            if each not in keys:
                raise UsageError(f"[{table}] needs both '{file}' and '{cls}'; '{each}' is missing")
            checked(table, each, keys[each], str)
        if key in keys:
            raise UsageError(f"[{table}] has both '{key}' and '{file}'; keep one of them")
        return Component(table, load_class(table, folder / keys.pop(file), keys.pop(cls)), keys)
    return Component(table, pick(table, key, keys, choices, default), keys)


def pick(table: str, key: str, keys: Table, choices: Mapping[str, Any], default: str | None = None) -> Any:
    """Take `key` out of a table and look up what it names."""
    name = keys.pop(key, default)
    if name is None:
        raise UsageError(f"[{table}] needs the key '{key}'; valid values: {', '.join(choices)}")
    if not isinstance(name, str) or name not in choices:
        raise UsageError(f"unknown {key} {name!r} in [{table}]; valid values: {', '.join(choices)}")
    return choices[name]


def load_class(table: str, path: Path, name: str) -> Callable[..., Any]:
    """The class of this name in a Python file of the user's."""
    if not path.is_file():
        raise UsageError(f"[{table}] file = {str(path)!r} is no file; paths are relative to the job file")
    spec = importlib.util.spec_from_file_location(f"{path.stem}@{path.resolve()}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"[{table}] file = {str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"[{table}] {path} cannot be imported: {_described(error)}") from None
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        there = [found.__name__ for found in classes if found.__module__ == spec.name]
        raise UsageError(f"[{table}] no class {name!r} in {path}; there are: {', '.join(there) or 'none'}")
    return found


def check_keys(table: str, keys: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Refuse keys that nobody would read."""
    for key in keys:
        if key not in valid:
            raise UsageError(f"unknown key {key!r} in [{table}]; valid keys: {', '.join(valid) or 'none'}")


def checked(table: str, key: str, value: Any, annotation: Any) -> Any:
    """The value, of the right type; annotations beyond numbers, texts and lists are not judged."""
    kinds = _kinds(annotation)
    if kinds and not any(_is(value, kind) for kind in kinds):
        wanted = " or ".join(_KINDS[kind][0] for kind in kinds)
        raise UsageError(f"{key} = {value!r} in [{table}] must be {wanted}")
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"{key} = {value!r} in [{table}] must be finite")
    return float(value) if kinds == [float] else value


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, _KINDS[kind][1]) and (kind is bool or not isinstance(value, bool))


def _kinds(annotation: Any) -> list[type]:
    """The kinds of TOML values that suit an annotation; none where it cannot be told."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        kinds = [_kinds(part) for part in parts]
        return [kind for several in kinds for kind in several] if all(kinds) else []
    origin = typing.get_origin(annotation) or annotation
    if origin in _KINDS:
        return [origin]
    return [list] if origin in (Sequence, tuple) else []


def _kind_of(annotation: Any) -> str:
    kinds = _kinds(annotation)
    return f" ({' or '.join(_KINDS[kind][0] for kind in kinds)})" if kinds else ""


def _described(error: BaseException) -> str:
    """What went wrong in a user's code, and in which line."""
    frames = traceback.extract_tb(error.__traceback__)
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS else ""
    way_out = f"; install it with pip install 'mpi-ata[{missing}]'" if missing else ""
    return f"{f'line {line}: ' if line else ''}{type(error).__name__}: {one_line(error)}{way_out}"


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks."""
    return " ".join(str(error).split())


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__name__", repr(factory))
