"""What a farm sends to its workers: a function by its name, and the items to call it with."""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
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
            raise in_users_code(f"{x['function']} failed for item {index}", error) from None


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
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        if found(name) is function:
            return name
    except (RunError, ImportError):
        pass
    raise UsageError(
        f"{function!r} cannot be found by its name on other ranks; "
        "define a function with def at the top level of the script, above mpi_ata.cluster()"
    )


@lru_cache
def found(name: str) -> Callable[..., Any]:
    """Return the function of this name, as module:function."""
    module, _, path = name.partition(":")
    place: Any = sys.modules.get(module) or importlib.import_module(module or "builtins")
    for part in path.split("."):
        place = getattr(place, part, None)
    if not callable(place):
        raise RunError(
            f"there is no function {path!r} in {module!r} on this rank; define it above mpi_ata.cluster(), "
            "where workers stay"
        )
    function: Callable[..., Any] = place
    return function
