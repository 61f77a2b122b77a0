"""What a farm sends to its workers: a function by its name, and the items to call it with."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import RunError, UsageError, in_users_code
from mpi_ata.packing import pack, unpack
from mpi_ata.problems import Task


class Items:
    """The problem of a farm: each task calls a function, which all ranks have, with one item."""

    x0 = None

    def __init__(self) -> None:
        self.orders = 0  # sent so far: each is a round of its own, in which tasks count from 0
        self.open = False  # whether a call of map() has orders under way
        self.slowness: Array | None = None  # of each worker, as learned from earlier calls of map()

    def compute(self, x: Any, task: Task) -> Any:
        """Return what the function returns for one item of an order."""
        if x is None:  # the task with which a worker sets up
            return None
        call, index = found(x["function"]), x["indices"][task.number]
        try:
            return call(*unpack(x["data"][x["begins"][task.number] :]))
        except RunError:
            raise
        except (Exception, SystemExit) as error:
            function = x["function"].rpartition(":")[0]
            raise in_users_code(f"{function} failed for item {index}", error) from None

    def result_name(self, x: Any, task: Task) -> str:
        """Return what the result of one item of an order is called in an error."""
        if x is None:
            return "nothing"
        return f"what {x['function'].split(':')[1]}() returned for item {x['indices'][task.number]}"


def order(function: str, items: Sequence[tuple[Any, ...]], indices: Sequence[int]) -> dict[str, Any]:
    """Return what a worker needs to call a function with some of the items."""
    packed = [pack(items[index], f"item {index}") for index in indices]
    begins = np.cumsum([0, *map(len, packed)])[:-1]
    return {
        "function": function,
        "indices": np.array(indices),
        "begins": begins,
        "data": np.concatenate(packed),
    }


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which all ranks find a function; UsageError where they cannot."""
    module, path = (getattr(function, name, "") for name in ("__module__", "__qualname__"))
    name = f"{module}:{path}:{_line(function)}"
    try:
        if found(name) is function:
            return name
    except (RunError, ImportError):
        pass
    shown = "a lambda" if getattr(function, "__name__", "") == "<lambda>" else repr(function)
    raise UsageError(
        f"{shown} cannot be found by its name on other ranks; "
        "define a function with def at the top level of the script, above mpi_ata.cluster()"
    )


def found(name: str) -> Callable[..., Any]:
    """Return the function of this name, as module:function:line."""
    module, path, line = name.split(":")
    place: Any = sys.modules.get(module) or importlib.import_module(module or "builtins")
    for part in path.split("."):
        place = getattr(place, part, None)
    if not callable(place):
        raise RunError(
            f"there is no function {path!r} in {module!r} on this rank; define it above mpi_ata.cluster(), "
            "where workers stay"
        )
    function: Callable[..., Any] = place
    if line != _line(function):
        raise RunError(
            f"{path!r} in {module!r} was defined again after mpi_ata.cluster(), where workers stay; "
            "give the new function a name of its own, and define it above"
        )
    return function


def _line(function: Callable[..., Any]) -> str:
    """Return the line where a function is defined, if it is one of Python's."""
    return str(getattr(getattr(function, "__code__", None), "co_firstlineno", ""))
