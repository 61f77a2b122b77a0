"""Files of weights: state_dicts as torch.save writes them, of which only tensors are unpickled."""

import os
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.torch.devices import import_torch


def write_weights(state: "dict[str, Any]", path: str | Path) -> None:
    """Write a state_dict to a file, which is there as a whole or not at all."""
    partial = Path(f"{path}.{os.getpid()}.part")
    try:
        import_torch().save(state, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # PyTorch reports a missing folder as the latter
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UsageError(f"{str(path)!r} cannot be written: {why}") from None
    finally:
        partial.unlink(missing_ok=True)


def read_weights(path: str | Path) -> "dict[str, Any]":
    """Return the state_dict in a file."""
    try:
        state: dict[str, Any] = import_torch().load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except Exception:
        way = "write one with torch.save(model.state_dict(), ...)"
        raise UsageError(f"{str(path)!r} is not a file of tensors alone; {way}") from None
    return state


def load_weights(model: Any, path: str | Path) -> None:
    """Give a model the weights in a file."""
    state = read_weights(path)
    try:
        model.load_state_dict(state)
    except Exception as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{str(path)!r} is not a state_dict of this model: {why}") from None
