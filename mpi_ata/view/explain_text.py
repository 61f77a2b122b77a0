"""Explanations of quotas as text: plain sentences, and a small table."""

from typing import Any

from mpi_ata.runfile.prior import counted
from mpi_ata.view.text import share, table

HEADER = [
    *("worker", "host", "tasks", "share", "mean [s]", "bound [s]", "next quota"),
    *("used up to mean [s]", "last task in round"),
]

TAKES, WOULD_TAKE = ("its tasks take", "the round"), ("one would take", "the round without it")


def explanation_text(answer: dict[str, Any], one: bool) -> str:
    """Return an explanation for people; `one` if it is about a single worker."""
    workers = answer["workers"]
    lines = [answer["rule"]]
    if not one and answer["idle"]:
        lines.append(f"In the next round {counted(answer['idle'], 'worker')} will get no task.")
    if one:
        lines += ["", *sentences(workers[0], answer)]
    lines += ["", table([_cells(worker) for worker in workers], HEADER)]
    if not one and answer["workers_in_all"] > len(workers):
        lines.append(f"... and {answer['workers_in_all'] - len(workers):,} more; ask with --worker")
    return "\n".join(lines)


def sentences(worker: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Return why one worker gets as many tasks as it does."""
    return [
        line for line in (_done(worker), _decision(worker, answer), _needs(worker), _last(worker)) if line
    ]


def _done(worker: dict[str, Any]) -> str:
    who = f"Worker {worker['worker']} on {worker['host']}"
    if not worker["tasks"]:
        return f"{who} has not finished any task."
    part = share(worker["share"], 1.0)
    return f"{who} has finished {counted(worker['tasks'], 'task')}, {part} of all; {_times(worker)}."


def _times(worker: dict[str, Any]) -> str:
    if worker["mean"] is None:
        return "its mean time is not known"
    bound = f", with a lower bound of {seconds(worker['bound'])} s" if worker["bound"] is not None else ""
    return f"they take {seconds(worker['mean'])} s on average{bound}"


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
    tasks, others = TAKES if quota else WOULD_TAKE
    least = f"at least {seconds(max(quota, 1) * bound)} s by its bound"
    return f": {tasks} {least}, {others} at least {seconds(length)} s"


def _by_mean(worker: dict[str, Any], length: float | None) -> str:
    if length is None or worker["mean"] is None:
        return ""
    if worker["quota"]:
        took = seconds(worker["quota"] * worker["mean"])
        return f": its tasks take {took} s on average, and the round is expected to take {seconds(length)} s"
    longer = f"would make the expected round of {seconds(length)} s longer"
    return f": a task, which takes it {seconds(worker['mean'])} s on average, {longer}"


def _needs(worker: dict[str, Any]) -> str:
    needed, mean = worker["mean_to_be_used"], worker["mean"]
    if needed is None or mean is None:
        return ""
    if needed >= mean:
        return f"It would get none if its mean were above {seconds(needed)} s."
    faster = 100 * (1 - needed / mean)
    return f"It would get a task if its mean were at most {seconds(needed)} s, {faster:.0f} % less than now."


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
    return [
        worker["worker"],
        worker["host"],
        f"{worker['tasks']:,}",
        share(worker["share"], 1.0),
        seconds(worker["mean"]),
        seconds(worker["bound"]),
        "-" if worker["quota"] is None else f"{worker['quota']:,}",
        seconds(worker["mean_to_be_used"]),
        last_round(worker),
    ]


def seconds(value: float | None) -> str:
    """Return a time with three digits."""
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
