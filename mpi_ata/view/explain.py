"""Why each worker gets as many tasks as it does: mean, bound, what it would need, when it was tried last."""

from typing import Any, NamedTuple

import numpy as np

from mpi_ata.allocators import ATAAuto
from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.errors import UsageError
from mpi_ata.runfile.record import Record
from mpi_ata.view.explain_rules import mean_to_be_used, rule
from mpi_ata.view.learned import Learned, learned

MOST = 100  # workers that are listed where none is named


class WorkerFacts(NamedTuple):
    """What decides about one worker; None where something is not known or does not matter."""

    worker: int
    host: str
    slot: int
    tasks: int  # that it has finished
    share: float  # of all finished tasks
    mean: float | None  # seconds
    bound: float | None  # lower confidence bound on that
    quota: int | None  # of the next round
    mean_to_be_used: float | None  # the largest mean at which it gets a task
    tried_after: int | None  # its last task was in a round after this one,
    tried_by: int | None  # and not after this one
    available: bool


def explain(record: Record, worker: int | None = None) -> dict[str, Any]:
    """Return what decides the quotas of one worker, or of the first hundred."""
    n, known = len(record.identities), learned(record)
    if worker is not None and not 0 <= worker < n:
        raise UsageError(f"--worker {worker} must be from 0 to {n - 1}: this run has {n} workers")
    rows = range(min(n, MOST)) if worker is None else [worker]
    facts = [worker_facts(record, known, each) for each in rows]
    return {
        "allocator": known.name,
        "rule": rule(known.allocator),
        "rounds": int(record.method["k"]),
        "workers_in_all": n,
        "idle": None if known.quota is None else int(np.count_nonzero(known.quota == 0)),
        **_round_lengths(known),
        "workers": [each._asdict() for each in facts],
    }


def _round_lengths(known: Learned) -> dict[str, float | None]:
    """Return how long the next round takes at least, by the bounds, or is expected to take by ata-auto."""
    bound = expected = None
    if isinstance(known.allocator, LowerBoundAllocator) and known.quota is not None:
        bound = float((known.quota * known.bounds).max())
    elif isinstance(known.allocator, ATAAuto):
        expected = float(known.allocator.length)
    return {"bound_of_round": bound, "expected_round": expected}


def worker_facts(record: Record, known: Learned, worker: int) -> WorkerFacts:
    """Return what decides about one worker."""
    identity, tasks = record.identities[worker], int(known.tasks[worker])
    mean, bound = known.means.item(worker), known.bounds.item(worker)
    after, by = last_tried(record, known, worker)
    return WorkerFacts(
        worker,
        identity.host,
        identity.local_index,
        tasks,
        tasks / max(int(known.tasks.sum()), 1),
        None if np.isnan(mean) else mean,
        None if np.isnan(bound) else bound,
        None if known.quota is None else int(known.quota[worker]),
        mean_to_be_used(known.allocator, known.available, worker, mean),
        after,
        by,
        bool(known.available[worker]),
    )


def last_tried(record: Record, known: Learned, worker: int) -> tuple[int | None, int | None]:
    """Return two rounds between which a worker did its last task; None if it never did, or if unknown."""
    if isinstance(known.allocator, ATAAuto) and (heard := known.allocator.known.heard.item(worker)):
        return heard - 1, heard
    tasks, rounds = record.task_map.get("tasks"), record.task_map.get("round")
    if tasks is None or rounds is None or tasks.shape[1] != len(known.tasks) or not known.tasks[worker]:
        return None, None
    done = np.flatnonzero(tasks[:, worker] == known.tasks[worker])
    ends = [0, *rounds.tolist(), int(record.method["k"])]
    row = int(done[0]) if len(done) else len(rounds)
    return ends[row], ends[row + 1]
