"""A record in plain numbers and strings, for people and programs."""

from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.runfile.hosts import report_hosts
from mpi_ata.runfile.record import Record

ALWAYS = (  # entries of a summary that every run has
    *("rounds", "clock", "worker_time", "elapsed", "waste", "workers"),
    *("tasks_started", "tasks_used", "tasks_wasted", "tasks_lost"),
)
SHARES = ("setup_time", "decision_time", "update_time", "evaluation_time", "saving_time")  # of elapsed
MAYBE = (  # entries that not every run has
    *("billed", "energy", "loss", "gap", "mean_delay", "largest_delay"),
    *SHARES,
)

SLURM_ENERGY = "slurm_energy"  # joules of the Slurm jobs of a run, where its own counters say nothing
LATEST = "latest."  # begins the names of metrics as of the latest evaluation


def describe(record: Record) -> dict[str, Any]:
    """Return the contents of a record as plain numbers and strings; None where something is not known."""
    return {
        "run": record.run,
        "finished": bool(record.reason),
        "reason": record.reason,
        "failure": record.failure,
        "slurm_jobs": list(record.slurm_jobs),
        **dict.fromkeys((*MAYBE, SLURM_ENERGY)),
        **record.summary,
        "evaluation": latest_metrics(record),
        "events": [event._asdict() for event in record.events],
        "workers_table": _workers_table(record),
        "hosts": [row._asdict() for row in report_hosts(record)],
        "job": record.job.text,
        "settings": list(record.job.settings),
    }


def summary_of(record: Record, path: Path) -> dict[str, Any]:
    """Return the summary of a finished run, as it was printed at its end."""
    found = describe(record) | {"out": str(path)}
    return {name: found[name] for name in (*ALWAYS, *MAYBE, "evaluation", "finished", "out")}


def latest_metrics(record: Record) -> dict[str, float | None]:
    """Return what was evaluated last, by name; None where that is no finite number."""
    return {
        name.removeprefix(LATEST): value.item() if np.isfinite(value) else None
        for name, value in record.metrics.items()
        if name.startswith(LATEST)
    }


def _workers_table(record: Record) -> list[dict[str, Any]]:
    """Return one row per worker: who it is, what it did, how fast it was."""
    known = {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in _worker_columns(record.workers).items()
    }
    return [
        _names_and_values(identity) | {name: column[worker] for name, column in known.items()}
        for worker, identity in enumerate(record.identities)
    ]


def _worker_columns(workers: State) -> State:
    tasks, seconds = workers["tasks"], workers["seconds"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = seconds / tasks
        spread = np.sqrt(np.maximum(workers["squares"] / tasks - mean**2, 0.0))
        overhead = workers["overhead"] / workers["arrivals"]
        spent = seconds + workers["unfinished"]
        share = spent / spent.sum()
    return {"tasks": tasks, "mean": mean, "spread": spread, "overhead": overhead, "share": share}


def _names_and_values(identity: WorkerIdentity) -> dict[str, Any]:
    """Return an identity under the names that --json has for its fields."""
    return {
        "host": identity.host,
        "slot": identity.local_index,
        "hardware": identity.hardware,
        "ranks": identity.ranks_on_host,
    }
