"""Runs of the same job under several allocators, side by side."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from mpi_ata.layout import ranks_for
from mpi_ata.view.text import ratio, share, table

HEADER = ["allocator", "rounds", "clock [s]", "worker time [s]", "wasted tasks", "waste"]
RATIO_HEADER = ["clock / greedy", "greedy / worker time"]


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Return one row per allocator, with ratios to greedy allocation if that is among them.

    Several runs of an allocator, with different seeds, are shown as mean ± standard deviation.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["allocator"], []).append(row)
    greedy = _means(runs["gta"]) if "gta" in runs else None
    header = [*HEADER, *(RATIO_HEADER if greedy else [])]
    body = [[*_cells(name, each), *(_ratios(each, greedy) if greedy else [])] for name, each in runs.items()]
    return table(body, header) + (_billing(runs) if billed else "")


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    columns = ("clock", "worker_time", "waste", "billed")
    return {name: fmean(row[name] or 0.0 for row in rows) for name in columns}


def _cells(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    means = _means(rows)
    return [
        name,
        spread([row["rounds"] for row in rows], "{:,.0f}"),
        spread([row["clock"] for row in rows], "{:,.4g}"),
        spread([row["worker_time"] for row in rows], "{:,.4g}"),
        spread([row["tasks_wasted"] for row in rows], "{:,.0f}"),
        share(means["waste"], means["worker_time"]),
    ]


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean of some values, with their standard deviation if there are several."""
    mean = form.format(fmean(values))
    return f"{mean} ± {stdev(values):,.2g}" if len(values) > 1 else mean


def _ratios(rows: Sequence[dict[str, Any]], greedy: dict[str, float]) -> list[str]:
    means = _means(rows)
    return [ratio(means["clock"], greedy["clock"]), ratio(greedy["worker_time"], means["worker_time"])]


def _billing(runs: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Return what a cluster charges for each run, which the table does not show."""
    ranks = ranks_for(next(iter(runs.values()))[0]["workers"])
    seconds = ", ".join(f"{name} {_means(rows)['billed']:,.0f} s" for name, rows in runs.items())
    lines = [
        f"\n\nNot in the table: a cluster bills the cores of all {ranks} ranks, idle ones included:",
        f"{seconds}.",
        "Less worker time saves energy and leaves cores to others; it saves money if you release idle ranks.",
    ]
    return "\n".join(lines)
