"""Any values of a farm as bytes, and back: only between the ranks of one job, never in files.

Reading executes what the bytes say, as with mpi4py: those of a rank are as trusted as its code.
"""

import pickle
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from mpi_ata.errors import RunError, one_line

PROTOCOL = 5  # arrays are written as they lie in memory


def dumps(value: Any, name: str, by_value: bool = False) -> bytes:
    """Return a value as bytes; `name` says in an error what it is.

    What pickle finds by its name it sends by its name.  Everything else, and with `by_value` functions and
    classes of __main__ too, is sent as it is, where cloudpickle is installed.
    """
    try:
        return (by_value and _by_value(value)) or pickle.dumps(value, PROTOCOL)
    except Exception as error:  # what cannot be pickled raises anything
        if not by_value and (found := _by_value(value)):
            return found
        raise RunError(f"{_culprit(value, name)} cannot be sent to other ranks: {_reason(error)}") from None


def loads(data: Any) -> Any:
    """Return the value of some bytes, which may be followed by others."""
    return pickle.loads(data)  # noqa: S301  (from a rank of this job)


def can_send_code() -> bool:
    """Return whether functions can be sent that other ranks do not have."""
    return _cloudpickle() is not None


def _cloudpickle() -> ModuleType | None:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle  # type: ignore[no-any-return]


def _by_value(value: Any) -> bytes:
    """Return a value as bytes that need no names; empty where that cannot be done."""
    if (library := _cloudpickle()) is None:
        return b""
    try:
        return library.dumps(value, PROTOCOL)  # type: ignore[no-any-return]
    except Exception:  # the error of pickle is the shorter one
        return b""


def _reason(error: Exception) -> str:
    way_out = "" if can_send_code() else "; pip install cloudpickle sends lambdas and local functions too"
    return f"{type(error).__name__}: {one_line(error)}{way_out}"


def _culprit(value: Any, name: str, seen: frozenset[int] = frozenset()) -> str:
    """Return the name of the smallest part of a value that cannot be sent."""
    for path, part in _parts(value, name):
        if id(part) not in seen and not _sendable(part):
            return _culprit(part, path, seen | {id(value)})
    return f"{name} ({type(value).__name__})"


def _sendable(value: Any) -> bool:
    try:
        return bool(_by_value(value) or pickle.dumps(value, PROTOCOL))
    except Exception:
        return False


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a value is made of, each with its place in it."""
    match value:
        case partial():
            yield f"{name}.func", value.func
            yield from _parts(value.args, f"{name}.args")
            yield from _parts(value.keywords, f"{name}.keywords")
        case MethodType():
            yield f"{name}.__self__", value.__self__
        case FunctionType(__closure__=tuple(cells)):
            for variable, cell in zip(value.__code__.co_freevars, cells, strict=True):
                yield f"{variable} in {name}", cell.cell_contents
        case list() | tuple():
            yield from ((f"{name}[{i}]", part) for i, part in enumerate(value))
        case dict():
            yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
        case _ if not isinstance(value, type | FunctionType):
            yield from ((f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items())
