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


def seed_model(seed: int) -> None:
    """Seed the generators from which a model draws on this rank."""
    torch = import_torch()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed costs as much as a small task
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def check_at_least_1(**counts: int | None) -> None:
    """Reject counts below 1; None stands for those that are not given."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{name}={count} must be at least 1")


def device_of(torch: Any, name: str) -> Any:
    """Return the device of this name; of several GPUs on a node each rank takes its own."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device={name!r} is not known to PyTorch; use 'cpu' or 'cuda'") from None
    if device.type != "cuda":
        return device
    if under_launcher() and rank() == MANAGER:
        return torch.device("cpu")  # the manager does no tasks and leaves the GPUs to the workers
    if not torch.cuda.is_available():
        raise UsageError(f"device={name!r}, but PyTorch sees no GPU here; use 'cpu'")
    if device.index is None:
        device = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def on_device(device: Any, values: Any, pinned: bool = False) -> Any:
    """Move a tensor, or lists and dicts of them, to the device; to a GPU if `pinned` by locked memory."""
    if isinstance(values, Mapping):
        return {name: on_device(device, value, pinned) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [on_device(device, value, pinned) for value in values]
    if not hasattr(values, "to"):
        return values
    if pinned and device.type == "cuda" and hasattr(values, "pin_memory"):
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
