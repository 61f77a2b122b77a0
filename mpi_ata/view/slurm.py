"""Submitted runs as text."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi_ata.view.text import aligned, duration, rate, significant, table

STATUS_HEADER = [
    "run",
    "Slurm job",
    "state",
    "rounds",
    "speed",
    "to go",
    "starts",
    "billed [core h]",
    "worked [h]",
]


def submission_text(result: dict[str, Any]) -> str:
    """Return what was submitted and how to watch it, or what a dry run would submit."""
    if result["job"] is None:
        return "\n".join([result["script"], *(f"$ {shlex.join(words)}" for words in result["commands"])])
    job, runs, following = result["job"], result["runs"], len(result["jobs"]) - 1
    rows = [
        ("submitted", f"Slurm job {job}" + (f" and {following} that continue it" if following > 0 else "")),
        ("run file", runs[0] if len(runs) == 1 else f"{len(runs)} from {runs[0]} on"),
        ("log", result["log"]),
        ("watch it", f"mpi-ata status {job}"),
        ("stop it", f"mpi-ata stop {job}"),
    ]
    return aligned(rows)


def status_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the progress of submitted runs, and below it why any of them waits or failed."""
    if not rows:
        return "nothing was submitted from here, and nothing is queued"
    reasons = [f"{Path(row['run']).stem}: {row['why']}" for row in rows if row["why"]]
    return "\n".join([table([_status_cells(row) for row in rows], STATUS_HEADER), *reasons])


def _status_cells(row: dict[str, Any]) -> list[Any]:
    of = f" of {row['of_rounds']:,}" if row["of_rounds"] else ""
    end = row["expected_end"]
    return [
        Path(row["run"]).stem,
        row["job"] or "-",
        row["state"],
        f"{row['rounds']:,}{of}",
        rate(row["rounds"], row["rounds"] / row["rate"]) if row["rate"] else "-",
        duration(max(0.0, end - time.time())) if end else "-",
        row["starts"],
        significant(row["billed_core_hours"], 4),
        significant(row["worker_hours"], 4),
    ]
