"""Arguments of a script, checked before anything is made from them: Python accepts values of any type."""

import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mpi_ata.clusters import FaultPolicy
from mpi_ata.errors import UsageError, did_you_mean
from mpi_ata.job.stop import Stop
from mpi_ata.script.ending import report_errors_in_one_sentence

WHOLE, NUMBER = ((int,), "a whole number (int)"), ((int, float), "a number")
RULES: dict[str, tuple[tuple[type, ...], str]] = {
    "workers": WHOLE,
    "budget": WHOLE,
    "rounds": WHOLE,
    "seed": WHOLE,
    "evaluate_every": WHOLE,
    "checkpoint_rounds": WHOLE,
    "checkpoint_seconds": NUMBER,
    "grace": NUMBER,
    "prior_weight": NUMBER,
    "out": ((str, os.PathLike), "a path, as in out='runs/mine.h5'"),
    "warm_start": ((str, os.PathLike, Sequence), "a path, or a list of paths"),
    "stop": ((Stop,), "limits, as in stop=Stop(gap=1e-5)"),
    "exchange": ((str,), "a string, as in exchange='chain'"),
    "faults": ((FaultPolicy,), "a policy, as in faults=FaultPolicy(deadline=5.0)"),
}
# Those that cannot be None.
REQUIRED = ("seed", "exchange", "evaluate_every", "grace", "prior_weight", "warm_start")

SWITCHES = ("progress", "replicated")

P = ParamSpec("P")
T = TypeVar("T")


def suggests_names(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function; an unknown argument is rejected with the name that was probably meant."""
    known, name = inspect.signature(function).parameters, function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        for word in given:
            if word not in known:
                report_errors_in_one_sentence()
                raise UsageError(f"{name}() has no argument {word!r}{did_you_mean(word, known)}")
        return function(*args, **given)

    return call


def check_arguments(**given: Any) -> None:
    """Reject arguments of another type than theirs; None stands for those that are not given."""
    check_observers(given.pop("observers", ()))
    for name, value in given.items():
        if name in SWITCHES and not isinstance(value, bool):
            raise UsageError(f"{name}={value!r} must be True or False")
        if name in RULES and not (value is None and name not in REQUIRED):
            kinds, rule = RULES[name]
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise UsageError(f"{name}={value!r} must be {rule}")


def check_observers(given: Any) -> None:
    """Reject observers that are none, such as a single one instead of a list, or a class of them."""
    rule = "must be a list of observers, as in observers=[CSVLogger()]"
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError(f"observers={given!r} {rule}")
    for each in given:
        if isinstance(each, type) or not hasattr(each, "on_round"):
            raise UsageError(f"{each!r} is no observer; observers {rule}")
