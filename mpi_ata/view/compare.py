"""Runs of the same job under several allocators, side by side."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from mpi_ata.layout import ranks_for
from mpi_ata.view.text import ratio, share, significant, table

HEADER = ["allocator", "rounds", "clock [s]", "worker time [s]"]
BILLED_HEADER = ["elapsed [s]", "billed [s]"]
WASTE_HEADER = ["wasted tasks", "waste"]
RATIO_HEADER = ["clock / greedy", "greedy / worker time"]


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Return one row per allocator, with ratios to greedy allocation if that is among them.

    Several runs of an allocator, with different seeds, are shown as mean ± standard deviation.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["allocator"], []).append(row)
    greedy = runs.get("gta")
    header = [*HEADER, *(BILLED_HEADER if billed else []), *WASTE_HEADER, *(RATIO_HEADER if greedy else [])]
    body = [
        [*_cells(name, each, billed), *(_ratios(each, greedy) if greedy else [])]
        for name, each in runs.items()
    ]
    return table(body, header) + (_how_to_read(rows[0]["workers"], greedy is not None) if billed else "")


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: fmean(row[name] for row in rows) for name in ("clock", "worker_time", "waste")}


def _cells(name: str, rows: Sequence[dict[str, Any]], billed: bool) -> list[str]:
    means = _means(rows)
    shown = ["clock", "worker_time", *(["elapsed", "billed"] if billed else [])]
    return [
        name,
        spread([row["rounds"] for row in rows], 0),
        *(spread([row[column] for row in rows], 4) for column in shown),
        spread([row["tasks_wasted"] for row in rows], 0),
        share(means["waste"], means["worker_time"]),
    ]


def spread(values: Sequence[float], digits: int) -> str:
    """Return the mean of some values, with their standard deviation if there are several."""
    mean = significant(fmean(values), digits)
    return f"{mean} ± {significant(stdev(values), 2)}" if len(values) > 1 else mean


def _ratios(rows: Sequence[dict[str, Any]], greedy: Sequence[dict[str, Any]]) -> list[str]:
    """Return clock and worker time against greedy allocation's, where the runs of both were finished."""
    if not all(row["finished"] for row in (*rows, *greedy)):
        return ["-", "-"]
    means, greedy_means = _means(rows), _means(greedy)
    return [
        ratio(means["clock"], greedy_means["clock"]),
        ratio(greedy_means["worker_time"], means["worker_time"]),
    ]


def _how_to_read(workers: int, greedy: bool) -> str:
    """Return what the columns mean for the reader, and when greedy allocation is the better choice."""
    lines = [
        "",
        "",
        "Clock: all rounds. Worker time: all tasks. "
        f"Billed: the cores of all {ranks_for(workers)} ranks, also while they are idle.",
        "Less worker time saves energy and leaves cores to others; it saves money if you release idle ranks.",
    ]
    if greedy:
        lines.append(
            "Greedy (gta) is the better choice if idle nodes are free and its clock is shorter, as it may be "
            "where\ntasks can be stopped at once, or B is large compared with n."
        )
    return "\n".join(lines)
