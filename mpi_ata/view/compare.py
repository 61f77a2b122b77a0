"""Runs of the same job under several allocators, side by side."""

from collections.abc import Sequence
from typing import Any

from mpi_ata.layout import ranks_for
from mpi_ata.view.text import ratio, share, significant, table

HEADER = ["allocator", "rounds", "clock [s]", "worker time [s]", "wasted tasks", "waste"]
RATIO_HEADER = ["clock / greedy", "greedy / worker time"]


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Return one row per run, with ratios to greedy allocation if that is among them."""
    greedy = next((row for row in rows if row["allocator"] == "gta"), None)
    header = [*HEADER, *(RATIO_HEADER if greedy else [])]
    body = [[*_cells(row), *(_ratios(row, greedy) if greedy else [])] for row in rows]
    return table(body, header) + (_billing(rows) if billed else "")


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["allocator"],
        f"{row['rounds']:,}",
        significant(row["clock"], 4),
        significant(row["worker_time"], 4),
        f"{row['tasks_wasted']:,}",
        share(row["waste"], row["worker_time"]),
    ]


def _ratios(row: dict[str, Any], greedy: dict[str, Any]) -> list[str]:
    return [ratio(row["clock"], greedy["clock"]), ratio(greedy["worker_time"], row["worker_time"])]


def _billing(rows: Sequence[dict[str, Any]]) -> str:
    """Return what a cluster charges for each run, which the table does not show."""
    ranks = ranks_for(rows[0]["workers"])
    seconds = ", ".join(f"{row['allocator']} {row['billed']:,.0f} s" for row in rows)
    lines = [
        f"\n\nNot in the table: a cluster bills the cores of all {ranks} ranks, idle ones included:",
        f"{seconds}.",
        "Less worker time saves energy and leaves cores to others; it saves money if you release idle ranks.",
    ]
    return "\n".join(lines)
