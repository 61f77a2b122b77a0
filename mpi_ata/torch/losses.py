"""What a model and its loss make of a batch: samples may be pairs, tuples or dicts, losses have parts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mpi_ata.errors import RunError
from mpi_ata.torch.layout import GRADIENT_NORM


class Loss(NamedTuple):
    """The mean loss of a batch, how much the batch counts, and what is logged beside it."""

    total: Any
    weight: float
    logs: Mapping[str, Any]


def forward(model: Any, batch: Any) -> tuple[Any, Any]:
    """Return the model's outputs, and what the loss compares them with.

    Of a tuple, the last entry is the target and the others are the model's arguments; a dict has named
    arguments and is the target as well, and so is a single tensor.
    """
    if isinstance(batch, Mapping):
        return model(**batch), batch
    if isinstance(batch, list | tuple) and len(batch) > 1:
        *inputs, targets = batch
        return model(*inputs), targets
    single = batch[0] if isinstance(batch, list | tuple) else batch
    return model(single), single


def loss_parts(value: Any, logs: tuple[str, ...], has_tail: bool) -> Loss:
    """Return the loss that a loss function returned: a tensor, or a dict with an entry "loss".

    An entry "weight" says over how many things, such as tokens, that loss is a mean.
    """
    entries = {GRADIENT_NORM: 0.0, **(value if isinstance(value, Mapping) else {"loss": value})}
    if missing := {"loss", *logs}.difference(entries):
        there = ", ".join(name for name in entries if name != GRADIENT_NORM)
        raise RunError(
            f"the loss has no entry {missing.pop()!r}; it has: {there}; return a dict with 'loss' and "
            "everything that logs= names"
        )
    weight = float(entries.get("weight", 1.0))
    if weight != 1 and not has_tail:
        raise RunError("a loss with an entry 'weight' needs logs=['loss'], with which weights are sent")
    if not weight >= 0:
        raise RunError(f"the weight of a batch is {weight}, but it must be at least 0")
    return Loss(entries["loss"], weight, {name: _number(entries[name]) for name in logs})


def weighted(value: Any, size: int) -> tuple[float, float]:
    """Return the sum that belongs to the mean over a batch, and its weight: its own, or this size."""
    entries = value if isinstance(value, Mapping) else {"loss": value}
    weight = float(entries.get("weight", size))
    return float(entries["loss"]) * weight, weight


def _number(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value
