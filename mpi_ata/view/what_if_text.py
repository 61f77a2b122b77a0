"""Predictions from recorded times as text."""

from typing import Any

from mpi_ata.runfile.prior import counted
from mpi_ata.view.text import table

HEADER = [
    "allocator",
    "budget",
    "workers",
    "clock [s]",
    "worker time [s]",
    "wasted tasks",
    "clock ratio",
]
AGREES = 0.03  # relative difference of clocks that is not worth a remark
UNRELIABLE = 0.2  # relative difference of clocks above which predictions mislead
FEW = 30  # recorded times of a worker below which its mean is a guess


def what_if_table(answer: dict[str, Any]) -> str:
    """Return what the run took and what is predicted, and below it how far to trust that."""
    recorded, rows = answer["recorded"], answer["predicted"]
    taken = [
        f"{answer['allocator']}, recorded",
        "-",
        recorded["workers"],
        f"{recorded['clock']:,.4g}",
        f"{recorded['worker_time']:,.4g}",
        f"{recorded['tasks_wasted']:,}",
        "1.00",
    ]
    body = [taken, *(_cells(row, recorded) for row in rows)]
    return "\n".join([table(body, HEADER), "", *_remarks(answer)])


def _cells(row: dict[str, Any], recorded: dict[str, Any]) -> list[Any]:
    return [
        row["allocator"],
        row["budget"],
        row["workers"],
        _with_error(row["clock"], row["clock_error"]),
        _with_error(row["worker_time"], row["worker_time_error"]),
        f"{row['tasks_wasted']:,}",
        f"{row['clock'] / recorded['clock']:.2f}" if recorded["clock"] else "-",
    ]


def _with_error(value: float, error: float) -> str:
    return f"{value:,.4g} ± {error:,.2g}"


def _remarks(answer: dict[str, Any]) -> list[str]:
    """Return what limits the predictions."""
    rounds, least = counted(answer["recorded"]["rounds"], "round"), counted(answer["least_tasks"], "task")
    lines = [
        f"Replays of {rounds} with the recorded task times; ± is one standard deviation over replays of",
        f"resampled times: chance, and the few times that are known of some workers (at least {least}).",
    ]
    lines += _doubts(answer)
    if answer["least_tasks"] < FEW:
        lines.append(f"Workers with fewer than {FEW} tasks may be faster or slower than they seem.")
    if answer["untried"]:
        lines.append(f"Left out: {counted(answer['untried'], 'worker')} that never finished a task.")
    if answer["recorded"]["tasks_wasted"]:
        lines.append("Tasks were stopped in this run: how long they would have taken is estimated.")
    return lines


def _doubts(answer: dict[str, Any]) -> list[str]:
    """Return a warning where the replay of what really ran does not take as long, or overhead dominates."""
    off, overhead = _difference(answer), answer["overhead_ratio"]
    lines = []
    if abs(off) >= AGREES:
        lines += [
            f"The clock of what really ran is predicted with an error of {100 * off:+.0f} %, as where",
            "overhead or speeds vary, or many tasks were stopped.",
        ]
    if overhead > 1:
        lines.append(f"Overhead is {overhead:.2g} times as long as the tasks themselves.")
    if overhead > 1 or abs(off) > UNRELIABLE:
        lines.append("The predictions are not reliable here: use mpi-ata compare.")
    elif lines:
        lines.append("Compare predictions with each other.")
    return lines


def _difference(answer: dict[str, Any]) -> float:
    """Return the relative error of the predicted clock of what really ran; 0 if that was not asked for."""
    recorded, first = answer["recorded"], answer["predicted"][0]
    same = (first["allocator"], first["workers"], first["tasks_used"])
    if same != (answer["allocator"], recorded["workers"], recorded["tasks_used"]) or not recorded["clock"]:
        return 0.0
    difference: float = first["clock"] / recorded["clock"] - 1
    return difference
