"""The table [method]: the method, and the update whose keys stand in the same table."""

from dataclasses import replace
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job.component import Component, choose
from mpi_ata.job.names import UPDATES
from mpi_ata.job.tables import Table
from mpi_ata.job.user_class import UserClass
from mpi_ata.torch import NamedTorchUpdate


def split_update(method: Component, folder: Path) -> tuple[Component, Component | None]:
    """Return the method and its update, each with its own keys."""
    if not method.accepts("update"):
        return method, None
    update = choose_update(method.keys, folder)
    takes_all = update.accepts_any() and not method.accepts_any()
    keys, own = Table(), Table()
    for key, value in update.keys.items():
        of_update = update.accepts(key) or (takes_all and not method.accepts(key))
        (own if of_update else keys)[key] = value
    others = ("name", "update", *(key for key in update.known_keys() if key != "optimizer"))
    return replace(method, keys=keys, others=others), replace(update, keys=own)


def choose_update(keys: Table, folder: Path) -> Component:
    """Return the update, by `update` or by `update_file` and `update_class`, with all keys of the table."""
    name = keys.get("update")
    if isinstance(name, str) and name.startswith("torch."):
        keys = {key: value for key, value in keys.items() if key != "update"}
        return Component("method", NamedTorchUpdate, keys | {"optimizer": name.removeprefix("torch.")})
    choices = UPDATES | {"torch.<class of torch.optim>": NamedTorchUpdate}
    return choose("method", keys, choices, folder, key="update", default="plain")


def check_allocator(method: Component, allocator: Component | None) -> None:
    """Reject a method without the allocator it needs, or with one it has no use for."""
    if method.accepts("allocator") and allocator is None:
        raise UsageError("this method needs a table [allocator]")
    if allocator is not None and not method.accepts("allocator"):
        raise UsageError("this method decides on its own who works: remove the table [allocator]")


def check_built_in(method: Component, allocator: Component | None, folder: Path) -> None:
    """Check a method of the package when the job is read; one of the user's is checked when it is built."""
    if isinstance(method.cls, UserClass):
        return
    check_allocator(method, allocator)
    if method.accepts("update"):
        choose_update(method.keys, folder)
