"""Why each worker gets as many tasks as it does: estimate, bound, what it would need, last trial."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from mpi_ata.allocators import GTA, OFTA, UTA, Allocator, ATAAuto, Bandit, MSync, Proportional
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.arrays import BoolArray, IntArray
from mpi_ata.errors import UsageError
from mpi_ata.runfile.priors import counted
from mpi_ata.runfile.schema import Record
from mpi_ata.view.learned import Learned, learned, measured
from mpi_ata.view.text import share, significant, table

STEPS = 24  # of a bisection: the ratio of the ends shrinks to 1.00002
REACH = 1000.0  # means are changed by up to this factor
MOST = 100  # workers that are listed where none is named


RULES = {  # what decides the quotas, the special kinds of allocators before the general ones
    Bandit: "bandit gives equal shares to the {0.picks} workers with the least lower bounds.",
    LowerBoundAllocator: "Quotas minimise the longest time of a worker, quota x lower bound; "
    "workers whose bound is still 0 are explored first and share the whole round.",
    ATAAuto: "ata-auto chooses the quotas of the shortest expected round, "
    "and now and then tries a worker that might turn out faster.",
    OFTA: "ofta knows the true means; its quotas minimise the longest time, quota x mean.",
    UTA: "uta gives everyone the same share, and the remainder at random; speeds do not matter.",
    GTA: "gta lets everyone work until {0.budget} results are in; speeds do not matter.",
    MSync: "m-sync gives everyone the same quota and uses the first results; speeds do not matter.",
    Proportional: "proportional gives shares by measured speed, rounded at random; everyone has one.",
    object: "The run file alone does not say how tasks are divided.",
}


FARM_RULE = (
    "A free worker gets half of its share of the remaining items, by its speed; single items at the end."
)


def rule(allocator: Allocator | None) -> str:
    """Return in one sentence what decides the quotas."""
    return next(text for kind, text in RULES.items() if isinstance(allocator, kind)).format(allocator)


def depends_on_means(allocator: Allocator | None) -> bool:
    """Return whether a mean can decide if a worker gets tasks at all."""
    return isinstance(allocator, LowerBoundAllocator | ATAAuto | OFTA)


def planned(allocator: Allocator, available: BoolArray) -> IntArray:
    """Return the next quotas without trials of workers that might be faster."""
    allocator = deepcopy(allocator)
    quota = allocator.allocate(available)
    return allocator.quota if isinstance(allocator, ATAAuto) else quota


def with_mean(allocator: Allocator, worker: int, mean: float) -> Allocator:
    """Return the same allocator with another mean of one worker's task times."""
    changed = deepcopy(allocator)
    match changed:
        case LowerBoundAllocator():
            changed.T[worker] = mean * changed.K[worker]
        case ATAAuto():
            model = changed.known.model
            model.T[worker], changed.due = mean * model.N[worker], 0
        case OFTA():
            means = changed.means.copy()
            means[worker] = mean
            changed = OFTA(changed.n, changed.budget, means)
    return changed


def mean_to_be_used(known: Learned, worker: int) -> float | None:
    """Return the largest mean at which a worker still gets a task; None where means do not decide that."""
    allocator, available, mean = known.allocator, known.available, known.means.item(worker)
    if allocator is None or not depends_on_means(allocator) or np.isnan(mean) or not available[worker]:
        return None

    def used(mean: float) -> bool:
        return bool(planned(with_mean(allocator, worker, mean), available)[worker])

    low, high = (mean, REACH * mean) if used(mean) else (mean / REACH, mean)
    if not used(low) or used(high):
        return None
    for _ in range(STEPS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if used(middle) else (low, middle)
    return low


def explain(record: Record, worker: int | None = None) -> dict[str, Any]:
    """Return what decides the quotas of one worker, or of the first hundred."""
    n, known = len(record.identities), learned(record)
    if worker is not None and not 0 <= worker < n:
        raise UsageError(f"--worker {worker} must be from 0 to {n - 1}: this run has {n} workers")
    rows = range(min(n, MOST)) if worker is None else [worker]
    allocator, quota, bound, expected = known.allocator, known.quota, None, None
    if isinstance(allocator, LowerBoundAllocator) and quota is not None:
        bound = float((quota * known.bounds).max())
    elif isinstance(allocator, ATAAuto):
        expected = float(allocator.length)
    return {
        "allocator": known.name,
        "rule": FARM_RULE if record.job.is_farm else rule(allocator),
        "rounds": int(record.method["k"]),
        "workers_in_all": n,
        "idle": None if quota is None else int(np.count_nonzero(quota == 0)),
        "bound_of_round": bound,  # how long the next round takes at least
        "expected_round": expected,  # and is expected to take, by ata-auto
        "workers": [worker_facts(record, known, each) for each in rows],
    }


def worker_facts(record: Record, known: Learned, worker: int) -> dict[str, Any]:
    """Return what decides about one worker; None where something is not known or does not matter."""
    identity, tasks = record.identities[worker], int(known.tasks[worker])
    columns = measured(record.workers)[0], known.means, known.bounds
    mean, estimate, bound = (None if x[worker] != x[worker] else x.item(worker) for x in columns)
    after, by = last_tried(record, known, worker)
    return {
        "worker": worker,
        "host": identity.host,
        "slot": identity.local_index,
        "tasks": tasks,  # that it has finished
        "share": tasks / max(int(known.tasks.sum()), 1),
        "mean": mean,  # seconds, over all its tasks, as mpi-ata show has it
        "estimate": estimate,  # with which the allocator plans: since a change, maybe with overhead and prior
        "bound": bound,  # lower confidence bound on that
        "quota": None if known.quota is None else int(known.quota[worker]),  # of the next round
        "mean_to_be_used": mean_to_be_used(known, worker),
        "tried_after": after,  # its last task was in a round after this one,
        "tried_by": by,  # and not after this one
        "available": bool(known.available[worker]),
    }


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


HEADER = [
    *("worker", "host", "tasks", "share of tasks", "mean [s]", "estimate [s]", "bound [s]", "next quota"),
    *("largest estimate [s]", "last task in round"),
]

NUMBERS = ("tasks", "mean", "estimate", "bound", "quota", "mean_to_be_used")


def explanation_text(answer: dict[str, Any], one: bool) -> str:
    """Return an explanation for people; `one` if it is about a single worker."""
    workers, lines = answer["workers"], [answer["rule"]]
    if one:
        worker = workers[0]
        why = (_done(worker), _decision(worker, answer), _needs(worker), _last(worker))
        lines += ["", *filter(None, why)]
    elif answer["idle"]:
        lines.append(f"In the next round {counted(answer['idle'], 'worker')} will get no task.")
    lines += ["", table([_cells(worker) for worker in workers], HEADER)]
    if not one and answer["workers_in_all"] > len(workers):
        lines.append(f"... and {answer['workers_in_all'] - len(workers):,} more; ask with --worker")
    return "\n".join(lines)


def _done(worker: dict[str, Any]) -> str:
    who = f"Worker {worker['worker']} on {worker['host']}"
    if not worker["tasks"]:
        return f"{who} has not finished any task."
    text = f"{who} has finished {counted(worker['tasks'], 'task')}, {share(worker['share'])} of all"
    if worker["mean"] is not None:
        text += f", in {seconds(worker['mean'])} s on average"
    if worker["estimate"] is not None:
        text += f"; the allocator's estimate is {seconds(worker['estimate'])} s"
        text += "" if worker["bound"] is None else f", its lower bound {seconds(worker['bound'])} s"
    return f"{text}."


def _decision(worker: dict[str, Any], answer: dict[str, Any]) -> str:
    quota = worker["quota"]
    if not worker["available"]:
        return "It gets no tasks because it is lost or suspended; see the events in mpi-ata show."
    if quota is None:
        return ""
    reason = _by_bound(worker, answer["bound_of_round"]) or _by_mean(worker, answer["expected_round"])
    return f"In the next round it gets {counted(quota, 'task') if quota else 'none'}{reason}."


def _by_bound(worker: dict[str, Any], length: float | None) -> str:
    quota, bound = worker["quota"], worker["bound"]
    if length is None or bound is None:
        return ""
    if bound == 0.0:
        return ": its bound is still 0, so it is explored" if quota else ": others are explored first"
    takes = "its tasks take" if quota else "one would take"
    others = "the round" if quota else "the round without it"
    least = seconds(max(quota, 1) * bound)
    return f": {takes} at least {least} s by its bound, {others} at least {seconds(length)} s"


def _by_mean(worker: dict[str, Any], length: float | None) -> str:
    quota, mean = worker["quota"], worker["estimate"]
    if length is None or mean is None:
        return ""
    takes = f"{seconds(max(quota, 1) * mean)} s by the allocator's estimate"
    if quota:
        return f": its tasks take {takes}, and the round is expected to take {seconds(length)} s"
    return f": a task, which takes it {takes}, would make the expected round of {seconds(length)} s longer"


def _needs(worker: dict[str, Any]) -> str:
    needed, mean = worker["mean_to_be_used"], worker["estimate"]
    if needed is None:
        return ""
    if needed >= mean:
        return f"It would get none if its estimate were above {seconds(needed)} s."
    faster = 100 * (1 - needed / mean)
    limit = f"at most {seconds(needed)} s, {faster:.0f} % less than now"
    return f"It would get a task if its estimate were {limit}."


def _last(worker: dict[str, Any]) -> str:
    if not worker["tasks"] and worker["available"]:
        return "It has never been tried, or its tasks were stopped."
    return f"It did its last task in round {last_round(worker)}." if worker["tried_by"] is not None else ""


def last_round(worker: dict[str, Any]) -> str:
    """Return the round of a worker's last task, or between which rounds it was."""
    after, by = worker["tried_after"], worker["tried_by"]
    if by is None:
        return "-"
    return f"{by:,}" if by - after <= 1 else f"{after + 1:,} to {by:,}"


def _cells(worker: dict[str, Any]) -> list[Any]:
    tasks, *others = (seconds(worker[name]) for name in NUMBERS)
    return [worker["worker"], worker["host"], tasks, share(worker["share"]), *others, last_round(worker)]


seconds = partial(significant, digits=3)
