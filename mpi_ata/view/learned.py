"""What a run has learned about its workers, and what its allocator makes of it: rebuilt from a run file."""

import math
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpi_ata.allocators import Allocator, ATAAuto
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.errors import UsageError
from mpi_ata.job.build import build_law
from mpi_ata.job.component import ALLOCATORS, LAWS, METHODS, choose
from mpi_ata.job.schema import read_times
from mpi_ata.job.tables import Tables
from mpi_ata.runfile.schema import Record

SURE = 1.96  # standard errors of a 95 % confidence interval
SUSPENDED = ("lost", "overdue", "failed", "bad-result", "excluded")


@dataclass(frozen=True)
class Learned:
    """What a run knows about its workers, one entry for each; NaN where nothing is known."""

    name: str  # of the allocator, or of its class if it is the user's own; empty without one
    allocator: Allocator | None  # as it was saved; None: the method has none, or it is the user's own
    available: BoolArray  # who can be given tasks
    tasks: IntArray  # that each worker has finished
    means: Array  # of the times that decide the quotas
    bounds: Array  # lower confidence bounds on those: the allocator's own, or of 95 %
    quota: IntArray | None  # of the next round


def learned(record: Record) -> Learned:
    """Return what a run has learned, from its record alone: no code of the user's is executed."""
    allocator, available = restored(record), available_workers(record)
    means, errors = measured(record.workers)
    bounds = np.maximum(means - SURE * errors, 0.0)
    if isinstance(allocator, LowerBoundAllocator):
        means = np.where(allocator.K > 0, allocator.means_and_widths()[0], math.nan)
        bounds = allocator.bounds()
    elif isinstance(allocator, ATAAuto):
        means, bounds = _estimates(allocator)
    quota = None
    if allocator is not None:  # asked without changing it
        quota = (
            deepcopy(allocator).allocate(available) if available.any() else np.zeros(allocator.n, np.int64)
        )
    name = allocator_name(named_tables(record))
    return Learned(name, allocator, available, record.workers["tasks"], means, bounds, quota)


def allocator_name(tables: Tables) -> str:
    """Return the name of a job's allocator, or of its class if it is the user's own; empty without one."""
    keys = tables.get("allocator", {})
    return str(keys.get("name", keys.get("class", "")))


def named_tables(record: Record) -> Tables:
    """Return the settings of a run as a job file has them; a script names the classes of this package."""
    tables = dict(record.job.tables)
    for table, names in (("allocator", ALLOCATORS), ("method", METHODS)):
        keys = dict(tables.get(table, {}))
        if "class" in keys and "file" not in keys and f"{table}.file" not in record.job.files:
            known = {getattr(cls, "__qualname__", ""): name for name, cls in names.items()}
            if keys["class"] in known:
                tables[table] = {"name": known[keys.pop("class")]} | keys
    return tables


def restored(record: Record) -> Allocator | None:
    """Return the allocator of a run as it was saved; None where the run file alone cannot say."""
    tables, n = named_tables(record), len(record.identities)
    keys, seed = tables.get("allocator"), tables.get("run", {}).get("seed", 0)
    if keys is None or "file" in keys:
        return None
    try:
        chosen = choose("allocator", keys, ALLOCATORS, Path())
        allocator: Allocator = chosen.build(n=n, seed=seed, means=true_means(record))
        allocator.restore(record.allocator)
    except (UsageError, ValueError):  # written by another version of mpi_ata
        return None
    return allocator


def true_means(record: Record) -> Array:
    """Return the mean times of the job's law where that has a name, and otherwise the measured ones."""
    tables = record.job.tables
    table = tables.get("times", {})
    if table.get("law") not in LAWS:
        means, _ = measured(record.workers)
        return np.where(np.isnan(means), np.nanmean(means) if (means == means).any() else 1.0, means)
    times = read_times(table, Path(), "")
    law = build_law(times, len(record.identities), tables.get("run", {}).get("seed", 0))
    return np.asarray(law.means * times.unit)


def measured(workers: State) -> tuple[Array, Array]:
    """Return the mean task time of each worker and its standard error; NaN where it finished no task."""
    tasks = workers["tasks"]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = workers["seconds"] / tasks
        variance = np.maximum(workers["squares"] / tasks - means**2, 0.0)
        return means, np.sqrt(variance / np.maximum(tasks - 1, 1))


def available_workers(record: Record) -> BoolArray:
    """Return which workers can be given tasks, as far as the events say."""
    available = np.ones(len(record.identities), np.bool_)
    for event in record.events:
        if event.kind == "resumed":
            available[:] = True
        elif 0 <= event.worker < len(available) and event.kind in (*SUSPENDED, "back"):
            available[event.worker] = event.kind == "back"
    return available


def _estimates(allocator: ATAAuto) -> tuple[Array, Array]:
    """Return the means that ata-auto plans with, and lower ends of their confidence intervals."""
    model = allocator.known.model
    means, bounds = np.full(allocator.n, math.nan), np.zeros(allocator.n)
    tried = np.flatnonzero(model.N > 0.0)
    if len(tried):
        mu, _, un = model.speeds(tried)
        means[tried], bounds[tried] = mu, np.maximum(mu - SURE * un, 0.0)
    return means, bounds
