"""Runs of the same job under several allocators, side by side."""

from collections.abc import Sequence
from typing import Any

from mpi_ata.layout import ranks_for
from mpi_ata.view.text import ratio, share, table

HEADER = ["allocator", "rounds", "clock [s]", "worker time [s]"]
BILLED_HEADER = ["elapsed [s]", "billed [s]"]
WASTE_HEADER = ["wasted tasks", "waste"]
RATIO_HEADER = ["clock / greedy", "greedy / worker time"]


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Return one row per run, with ratios to greedy allocation if that is among them."""
    greedy = next((row for row in rows if row["allocator"] == "gta"), None)
    header = [*HEADER, *(BILLED_HEADER if billed else []), *WASTE_HEADER, *(RATIO_HEADER if greedy else [])]
    body = [[*_cells(row, billed), *(_ratios(row, greedy) if greedy else [])] for row in rows]
    return table(body, header) + (_how_to_read(rows[0]["workers"], greedy is not None) if billed else "")


def _cells(row: dict[str, Any], billed: bool) -> list[str]:
    return [
        row["allocator"],
        f"{row['rounds']:,}",
        f"{row['clock']:,.4g}",
        f"{row['worker_time']:,.4g}",
        *([f"{row['elapsed']:,.4g}", f"{row['billed']:,.4g}"] if billed else []),
        f"{row['tasks_wasted']:,}",
        share(row["waste"], row["worker_time"]),
    ]


def _ratios(row: dict[str, Any], greedy: dict[str, Any]) -> list[str]:
    return [ratio(row["clock"], greedy["clock"]), ratio(greedy["worker_time"], row["worker_time"])]


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
            "where\ntasks can be stopped at once, or B is large against n."
        )
    return "\n".join(lines)
