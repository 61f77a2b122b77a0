"""PyTorch itself, the device of a rank, and how values get there."""

from collections.abc import Mapping
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.launch import local_rank, rank, under_launcher
from mpi_ata.layout import MANAGER


def import_torch() -> Any:
    """Import PyTorch, which takes a second or two, only where it is needed."""
    try:
        import torch
    except ImportError:
        raise UsageError("PyTorch is missing; install it with pip install 'mpi-ata[torch]'") from None
    return torch


def device_of(torch: Any, name: str) -> Any:
    """Return the device of this name; of several GPUs on a node each rank takes its own."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} is not known to PyTorch; use 'cpu' or 'cuda'") from None
    if device.type != "cuda":
        return device
    if under_launcher() and rank() == MANAGER:
        return torch.device("cpu")  # the manager does no tasks and leaves the GPUs to the workers
    if not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, but PyTorch sees no GPU here; use 'cpu'")
    if device.index is None:
        device = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def on_device(device: Any, values: Any) -> Any:
    """Move a tensor, or lists and dicts of them, to the device."""
    if isinstance(values, Mapping):
        return {name: on_device(device, value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [on_device(device, value) for value in values]
    return values.to(device) if hasattr(values, "to") else values
