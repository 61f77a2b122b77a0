"""Exchanging the allocator of a job: the new one takes over the keys that it knows."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mpi_ata.job.component import Component, pick
from mpi_ata.job.names import ALLOCATORS
from mpi_ata.job.tables import Table, Tables, override
from mpi_ata.job.values import check_keys


def override_job(tables: Tables, changes: Tables) -> Tables:
    """Return the tables of a job with what --set changes; a new allocator drops keys it does not know."""
    if "name" in changes.get("allocator", {}):
        keys = tables.get("allocator", {})
        tables = tables | {"allocator": _keys_for(changes["allocator"]["name"], keys)}
    return override(tables, changes)


def _keys_for(name: Any, keys: Table) -> Table:
    """Return those keys of one allocator that another one knows; unknown to both is an error."""
    other = exchanged(name, keys)
    if "file" not in keys:  # a user's class is not asked here what it knows
        own = [exchanged(keys["name"], {})] if keys.get("name") in list(ALLOCATORS) else []
        check_known({key: value for key, value in keys.items() if key != "name"}, [other, *own])
    return other.keys


def exchanged(name: Any, keys: Table) -> Component:
    """Return the allocator of this name with those keys of another one that it knows."""
    other = Component("allocator", pick("allocator", "name", {"name": name}, ALLOCATORS), {})
    return replace(other, keys={key: value for key, value in keys.items() if other.accepts(key)})


def check_known(keys: Table, allocators: Iterable[Component]) -> None:
    """Reject keys that none of these allocators knows."""
    known = {key for allocator in allocators for key in allocator.known_keys()}
    check_keys("allocator", keys, sorted(known - {"n", "seed"}))
