"""The numbers behind a report: curves, pictures of workers and tables, as plain JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.runfile.describe import describe
from mpi_ata.runfile.record import Record
from mpi_ata.view.plots_curves import CurvePanel, curve_panels, known_points
from mpi_ata.view.plots_data import PlottedRun, Rows, plotted, task_rates, worker_rows
from mpi_ata.view.plots_workers import WIDE, histograms
from mpi_ata.view.text import when

MOST_POINTS = 512  # of a curve
MOST_ROWS = 1000  # of the table of workers
DIGITS = 5
WORKER_HEADER = [
    *("worker", "host", "slot", "tasks", "mean [s]", "spread [s]", "overhead [s]"),
    *("share of worker time [%]", "next quota"),
]
EVENT_HEADER = ["time", "worker", "kind", "text"]


def report_data(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    """Return what the page draws."""
    runs = [plotted(record, name) for record, name in zip(records, names, strict=True)]
    return {
        "panels": [_panel(panel, runs) for panel in curve_panels(runs).values()],
        "runs": [_run(number, *pair) for number, pair in enumerate(zip(records, runs, strict=True))],
    }


def _panel(panel: CurvePanel, runs: Sequence[PlottedRun]) -> dict[str, Any]:
    curves = [_curve(number, *known_points(panel, run)) for number, run in enumerate(runs)]
    positive = all(value > 0 for curve in curves for value in curve["y"])
    return {"x": panel.x, "y": panel.y, "log": positive and panel.y.startswith("gap"), "curves": curves}


def _curve(run: int, x: Array, y: Array) -> dict[str, Any]:
    step = max(1, -(-len(x) // MOST_POINTS))
    return {"run": run, "x": numbers(x[::step]), "y": numbers(y[::step])}


def _run(number: int, record: Record, run: PlottedRun) -> dict[str, Any]:
    assert run.workers is not None
    rows, known, described = worker_rows(run), run.workers, describe(record)
    quota = None if known.quota is None else numbers(rows.averaged(known.quota.astype(np.float64)))
    return {
        "number": number,
        "name": run.name,
        "row_label": rows.label.replace("\n", " "),
        "row_names": row_names(rows),
        "means": numbers(rows.averaged(known.means)),
        "bounds": numbers(rows.averaged(known.bounds)),
        "quota": quota,
        "times": _times(run, rows),
        "map": _map(run, rows),
        "table": _workers(described["workers_table"], known.quota),
        "events": {"header": EVENT_HEADER, "rows": [_event(event) for event in described["events"]]},
        "job": "\n".join([record.job.text.strip(), *(f"--set {each}" for each in record.job.settings)]),
    }


def _times(run: PlottedRun, rows: Rows) -> dict[str, Any]:
    edges, shares = histograms(run.times, rows) if run.times.size else (np.zeros(0), np.zeros((0, 0)))
    return {
        "caption": "share of its tasks that took so long: the brighter, the more",
        "x": "task time [s]",
        "y": rows.label.replace("\n", " "),
        "log": bool(len(edges) and edges[-1] > WIDE * edges[0]),
        "rows": row_names(rows),
        "edges": numbers(edges),
        "values": [numbers(row) for row in shares],
    }


def _map(run: PlottedRun, rows: Rows) -> dict[str, Any]:
    if not len(run.task_map.get("round", ())):
        return {"edges": [], "values": []}
    clock, rates, label = task_rates(run)
    names = row_names(rows) if len(rates) == len(rows.groups) else [f"row {row}" for row in range(len(rates))]
    return {
        "caption": "tasks per round over the run: the brighter, the more",
        "x": "clock [s]",
        "y": label.replace("\n", " "),
        "log": False,
        "rows": names,
        "edges": numbers(clock),
        "values": [numbers(row) for row in rates],
    }


def row_names(rows: Rows) -> list[str]:
    """Return what each row of a picture shows."""
    return [
        f"worker {group[0]}" if len(group) == 1 else f"{len(group)} workers, such as {group[0]}"
        for group in rows.groups
    ]


def _workers(workers: Sequence[dict[str, Any]], quota: IntArray | None) -> dict[str, Any]:
    """Return the table of workers; of very many, those with the most tasks."""
    order = sorted(range(len(workers)), key=lambda worker: -workers[worker]["tasks"])[:MOST_ROWS]
    rows = [
        _worker(each, workers[each], None if quota is None else int(quota[each])) for each in sorted(order)
    ]
    left = len(workers) - len(rows)
    note = f"{left:,} more workers, with fewer tasks, are not in the table." if left else ""
    return {"header": WORKER_HEADER, "rows": rows, "left_out": note}


def _worker(number: int, worker: dict[str, Any], quota: int | None) -> list[Any]:
    part = None if worker["share"] is None else 100 * worker["share"]
    columns = ("host", "slot", "tasks", "mean", "spread", "overhead")
    return [number, *(worker[name] for name in columns), part, quota]


def _event(event: dict[str, Any]) -> list[Any]:
    worker = event["worker"] if event["worker"] >= 0 else None
    return [when(event["time"]), worker, event["kind"], event["text"]]


def numbers(values: Array) -> list[float | None]:
    """Return numbers with few digits, None for those that are not known."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
