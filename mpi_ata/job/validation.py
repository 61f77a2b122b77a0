"""Checking keys and values of a job against the types of Python's parameters."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from mpi_ata.errors import UsageError, did_you_mean, one_line

_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a string", (str,)),
    list: ("a list", (list,)),
}


def check_keys(table: str, keys: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Reject keys that nobody would read."""
    for key in keys:
        if key not in valid:
            listed = f"{', '.join(valid) or 'none'}{did_you_mean(key, valid)}"
            raise UsageError(f"unknown key {key!r} in [{table}]; valid keys: {listed}")


def check_numbers(table: str, key: str, value: Any) -> None:
    """Reject whole numbers beyond 64 bits, which arrays cannot hold and Python may not be able to print."""
    if isinstance(value, int) and abs(value) > 2**64:
        raise UsageError(f"{key} in [{table}] must be a number of at most 64 bits")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        check_numbers(table, key, each)


def checked(table: str, key: str, value: Any, annotation: Any) -> Any:
    """Return the value, if its type fits; annotations beyond numbers, strings and lists are not checked."""
    kinds = _kinds(annotation)
    if kinds and not any(_is(value, kind) for kind in kinds):
        wanted = " or ".join(_KINDS[kind][0] for kind in kinds)
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        way_out = f": write {int(value)}" if whole else ""
        raise UsageError(f"{key} = {value!r} in [{table}] must be {wanted}{way_out}")
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"{key} = {value!r} in [{table}] must be finite")
    return float(value) if kinds == [float] else value


def build_table(table: str, cls: type[Any], keys: Mapping[str, Any], **fixed: Any) -> Any:
    """Return a dataclass whose fields are the keys of a table, but for the fixed ones."""
    check_keys(table, keys, [field.name for field in fields(cls) if field.name not in fixed])
    for field in fields(cls):
        if field.name not in {**keys, **fixed} and field.default is field.default_factory is MISSING:
            raise UsageError(f"[{table}] needs the key '{field.name}'")
    hints = typing.get_type_hints(cls)
    values = {key: checked(table, key, value, hints[key]) for key, value in keys.items()}
    try:
        return cls(**values, **fixed)
    except ValueError as error:
        raise UsageError(f"[{table}] {one_line(error)}") from None


def described_type(annotation: Any) -> str:
    """Return " (a number)" and the like; nothing where the type is not known."""
    kinds = _kinds(annotation)
    return f" ({' or '.join(_KINDS[kind][0] for kind in kinds)})" if kinds else ""


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, _KINDS[kind][1]) and (kind is bool or not isinstance(value, bool))


def _kinds(annotation: Any) -> list[type]:
    """Return the kinds of TOML values that fit an annotation; none where that is not known."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        kinds = [_kinds(part) for part in parts]
        return [kind for several in kinds for kind in several] if all(kinds) else []
    origin = typing.get_origin(annotation) or annotation
    if origin in _KINDS:
        return [origin]
    return [list] if origin in (Sequence, tuple) else []
