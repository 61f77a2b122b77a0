"""What a replay of recorded times is asked for: allocators, a budget, and some of the workers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.errors import UsageError
from mpi_ata.job import Job
from mpi_ata.job.component import Component
from mpi_ata.job.names import METHODS
from mpi_ata.job.schema import job_from
from mpi_ata.job.tables import Table, Tables
from mpi_ata.view.what_if_recording import Recording


class Question(NamedTuple):
    """What is asked: allocators, a budget and workers; None where these are those of the run."""

    allocators: Sequence[str]
    budget: int | None = None
    workers: str | None = None


def replayed_jobs(recorded: Recording, question: Question) -> list[Job]:
    """Return the job of the run under each allocator, without its problem and its times."""
    tables, allocator = recorded.tables, _allocator(recorded, question)
    replayed: Tables = {
        "problem": {"name": "quadratic", "dimension": 1},
        "method": _method(tables.get("method", {})),
        "allocator": allocator,
        "times": {"law": "constant", "scale": recorded.means.tolist()},
        "stop": {"rounds": recorded.rounds},
        "run": {"workers": len(recorded.workers), "seed": tables.get("run", {}).get("seed", 0)},
    }
    job = job_from(recorded.path, "", (), replayed)
    return job.with_allocators(list(question.allocators))


def _method(keys: Table) -> Table:
    """Return a method whose rounds last as long as those of the run, whatever it does with results."""
    name = keys.get("name", "sgd")
    if name not in METHODS or name == "map":
        return {"name": "sgd", "step_size": 1.0}
    method = Component("method", METHODS[name], {})
    return {"name": name, "step_size": 1.0} | {key: keys[key] for key in keys if method.accepts(key)}


def _allocator(recorded: Recording, question: Question) -> Table:
    """Return the allocator of the run, with the budget that is asked for."""
    keys = dict(recorded.tables.get("allocator", {}))
    if not keys:
        rule = "its method has no allocator to exchange; what-if is for methods that have one, such as sgd"
        raise UsageError(f"{recorded.path}: {rule}")
    if "file" in keys:
        if "own" in question.allocators:
            rule = "its allocator is code of your own, which is not executed here"
            raise UsageError(f"{recorded.path}: {rule}; name others with --allocators")
        keys = {"name": "uta", "budget": keys.get("budget", 1)}
    return keys if question.budget is None else keys | {"budget": question.budget}


def chosen_workers(recorded: Recording, text: str | None) -> IntArray:
    """Return the rows of the workers in a list such as 0-7,12; a number means that many, the fastest."""
    rows = {worker: row for row, worker in enumerate(recorded.workers.tolist())}
    if text is None:
        return np.arange(len(rows))
    if text.strip().isdecimal():
        return _fastest(recorded, int(text))
    found = sorted({worker for part in text.split(",") for worker in _range(part.strip(), text)})
    for worker in found:
        if worker not in rows:
            raise UsageError(f"--workers {text}: worker {worker} has no recorded times; leave it out")
    return np.array([rows[worker] for worker in found])


def _fastest(recorded: Recording, count: int) -> IntArray:
    most = len(recorded.workers)
    if not 1 <= count <= most:
        raise UsageError(f"--workers {count} must be from 1 to {most}, the workers with recorded times")
    return np.sort(np.argsort(recorded.means, kind="stable")[:count])


def _range(part: str, text: str) -> range:
    first, dash, last = part.partition("-")
    try:
        return range(int(first), int(last if dash else first) + 1)
    except ValueError:
        rule = "is neither a number of workers nor a list of them such as 0-7,12"
        raise UsageError(f"--workers {text} {rule}") from None


def own_name(recorded: Recording, name: str) -> str:
    """Return the name of an allocator; `own` is that of the run."""
    keys = recorded.tables.get("allocator", {})
    return str(keys.get("name", keys.get("class"))) if name == "own" else name
