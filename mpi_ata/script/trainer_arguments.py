"""Arguments of a Trainer: which belong to the problem and which to the run, and values that are rejected."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from traceback import walk_tb
from typing import Any

from mpi_ata.errors import UsageError, did_you_mean, one_line
from mpi_ata.script.request import Request
from mpi_ata.torch import TorchProblem


@contextmanager
def checked() -> Iterator[None]:
    """Report values that this package rejects in one sentence; errors of a user's code stay as they are."""
    try:
        yield
    except ValueError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("mpi_ata."):
            raise
        raise UsageError(one_line(error)) from None


def divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which of these arguments are those of a run, and which those of the problem."""
    run = {field.name for field in fields(Request)} - {"problem", "update", "progress"}
    known = run | set(inspect.signature(TorchProblem).parameters)
    for name in options:
        if name not in known:
            raise UsageError(f"Trainer has no argument {name!r}{did_you_mean(name, known)}")
    own = {name: value for name, value in options.items() if name not in run}
    return {name: value for name, value in options.items() if name in run}, own
