"""The contents of a run file: the record of one run, and its schema (documented in docs/run-file.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.errors import DamagedError
from mpi_ata.job.source import JobText
from mpi_ata.runfile.hdf5 import Attributes, texts, untexts
from mpi_ata.runfile.prior import COLUMNS, COUNTS, RunStats
from mpi_ata.runfile.store import FORMAT
from mpi_ata.version import __version__

MOST_EVENTS, LONGEST_EVENT = 1000, 1000
ALWAYS = (  # entries of a summary that every run has
    *("rounds", "clock", "worker_time", "elapsed", "waste", "workers"),
    *("tasks_started", "tasks_used", "tasks_wasted", "tasks_lost"),
)
MAYBE = ("billed", "loss", "gap", "mean_delay", "largest_delay")  # entries that not every run has


class Event(NamedTuple):
    """Something that happened to a run besides its rounds."""

    time: float  # seconds since 1970
    worker: int  # -1: about the whole run
    kind: str
    text: str


@dataclass
class Record:
    """All that is saved of a run: enough to resume it, to warm-start others, and to report what happened."""

    run: str  # a unique name of this run
    job: JobText
    identities: tuple[WorkerIdentity, ...]
    workers: State  # of this run alone, one entry per worker
    method: State = field(default_factory=dict)
    allocator: State = field(default_factory=dict)
    cluster: State = field(default_factory=dict)
    totals: State = field(default_factory=dict)
    trace: State = field(default_factory=dict)
    metrics: State = field(default_factory=dict)  # what evaluate(x) of the problem returned
    prior: list[RunStats] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # what the run achieved, late messages included
    reason: str = ""  # which limit was reached; empty while unfinished

    @property
    def source(self) -> RunStats:
        """What this run itself learned about its workers."""
        return RunStats(
            self.run, int(self.method["k"]), self.identities, {name: self.workers[name] for name in COLUMNS}
        )

    def event(self, time: float, kind: str, text: str, worker: int = -1) -> None:
        """Record an event; when there are too many, the oldest are dropped."""
        self.events.append(Event(time, worker, kind, text[:LONGEST_EVENT]))
        del self.events[:-MOST_EVENTS]


def _outside(identity: WorkerIdentity) -> dict[str, Any]:
    """Return an identity under the names that run files and --json have for its fields."""
    return {
        "host": identity.host,
        "slot": identity.local_index,
        "hardware": identity.hardware,
        "ranks": identity.ranks_on_host,
    }


def describe(record: Record) -> dict[str, Any]:
    """Return the contents of a record as plain numbers and texts; None where something is not known."""
    summary: dict[str, Any] = dict.fromkeys(MAYBE) | record.summary
    workers = record.workers
    tasks, seconds = workers["tasks"], workers["seconds"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = seconds / tasks
        spread = np.sqrt(np.maximum(workers["squares"] / tasks - mean**2, 0.0))
        overhead = workers["overhead"] / workers["arrivals"]
        spent = seconds + workers["unfinished"]
        shares = spent / spent.sum()
    columns = {"tasks": tasks, "mean": mean, "spread": spread, "overhead": overhead, "share": shares}
    known = {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in columns.items()
    }
    latest = "latest."
    return {
        "run": record.run,
        "finished": bool(record.reason),
        "reason": record.reason,
        **summary,
        "evaluation": {
            name.removeprefix(latest): value.item() if np.isfinite(value) else None
            for name, value in record.metrics.items()
            if name.startswith(latest)
        },
        "events": [event._asdict() for event in record.events],
        "workers_table": [
            _outside(identity) | {name: column[worker] for name, column in known.items()}
            for worker, identity in enumerate(record.identities)
        ],
        "job": record.job.text,
        "settings": list(record.job.settings),
    }


def summary_of(record: Record, path: Path) -> dict[str, Any]:
    """Return the summary of a finished run, as it was printed at its end."""
    found = describe(record) | {"out": str(path)}
    return {name: found[name] for name in (*ALWAYS, *MAYBE, "evaluation", "finished", "out")}


def to_tree(record: Record) -> tuple[Attributes, dict[str, State]]:
    """Return the record as attributes and groups of arrays."""
    attributes = {
        "format": FORMAT,
        "run": record.run,
        "package": __version__,
        "finished": bool(record.reason),
        "reason": record.reason,
        **{name: value for name, value in record.summary.items() if isinstance(value, int | float)},
    }
    job, events = record.job, record.events
    groups: dict[str, State] = {
        "job": {
            "text": np.array(job.text.encode() or b"\0"),
            "settings": texts(list(job.settings)),
            "file_tables": texts(list(job.files)),
            "file_texts": texts(list(job.files.values())),
        },
        "method": record.method,
        "allocator": record.allocator,
        "cluster": record.cluster,
        "workers": {**_identity_columns(record.identities), **record.workers},
        "prior": _prior(tuple(record.prior)),
        "totals": record.totals,
        "trace": record.trace,
        "figures": record.metrics,
        "events": {
            "time": np.array([event.time for event in events], np.float64),
            "worker": np.array([event.worker for event in events], np.int64),
            "kind": texts([event.kind for event in events]),
            "text": texts([event.text for event in events]),
        },
    }
    return attributes, groups


def from_tree(attributes: Mapping[str, Any], groups: Mapping[str, State]) -> Record:
    """Return the record that was read; DamagedError where something is missing or has the wrong type."""
    try:
        job, workers, events = groups["job"], dict(groups["workers"]), groups["events"]
        files = dict(zip(untexts(job["file_tables"]), untexts(job["file_texts"]), strict=True))
        identities = _identities(workers)
        columns = {name: array for name, array in workers.items() if name not in _IDENTITY_COLUMNS}
        _check("workers", columns, len(identities))
        record = Record(
            run=str(attributes["run"]),
            job=JobText(bytes(job["text"].item()).decode(), tuple(untexts(job["settings"])), files),
            identities=identities,
            workers=columns,
            method=groups["method"],
            allocator=groups["allocator"],
            cluster=_with_orders_in_flight(groups["cluster"], groups["method"]),
            totals=groups["totals"],
            trace=groups["trace"],
            metrics=groups["figures"],
            prior=_sources(groups["prior"]),
            events=[
                Event(*row)
                for row in zip(
                    events["time"].tolist(),
                    events["worker"].tolist(),
                    untexts(events["kind"]),
                    untexts(events["text"]),
                    strict=True,
                )
            ],
            summary={name: value for name, value in attributes.items() if name not in _OTHER},
            reason=str(attributes["reason"]),
        )
        _check_complete(record)
        return record
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise DamagedError(f"is not a complete run file: {error}") from None


def _with_orders_in_flight(cluster: State, method: State) -> State:
    """Return the state of a cluster with every order in flight: in files of 0.1.0 `born` has some of them."""
    if "born" not in method or "stopping" not in cluster:
        return cluster
    return cluster | {"stopping": np.maximum(cluster["stopping"], method["born"] >= 0)}


def _check_complete(record: Record) -> None:
    """Raise an error where a record lacks something that every description needs."""
    if not record.identities:
        raise ValueError("no workers")
    int(record.method["k"])
    for name in ALWAYS:
        float(record.summary[name])
    for name, value in record.metrics.items():
        if name.startswith("latest."):
            float(value)


_OTHER = ("format", "run", "package", "finished", "reason")
_IDENTITY_COLUMNS = ("host", "slot", "ranks", "hardware", "hardware_names")


@lru_cache(maxsize=2)  # they stay the same from save to save
def _identity_columns(identities: Sequence[WorkerIdentity]) -> State:
    names = {name: number for number, name in enumerate(dict.fromkeys(each.hardware for each in identities))}
    return {
        "host": texts([each.host for each in identities]),
        "slot": np.array([each.local_index for each in identities], np.int64),
        "ranks": np.array([each.ranks_on_host for each in identities], np.int64),
        "hardware": np.array([names[each.hardware] for each in identities], np.int64),
        "hardware_names": texts(list(names)),
    }


def _identities(columns: State) -> tuple[WorkerIdentity, ...]:
    names, numbers = untexts(columns["hardware_names"]), columns["hardware"].tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(names):
        raise ValueError("hardware has a number without a name")
    rows = zip(
        untexts(columns["host"]),
        columns["slot"].tolist(),
        (names[number] for number in numbers),
        columns["ranks"].tolist(),
        strict=True,
    )
    return tuple(
        WorkerIdentity(host, local_index=slot, hardware=hardware, ranks_on_host=ranks)
        for host, slot, hardware, ranks in rows
    )


@lru_cache(maxsize=2)  # it stays the same from save to save
def _prior(sources: tuple[RunStats, ...]) -> State:
    counts = [len(source.identities) for source in sources]
    tree = dict(_identity_columns(tuple(each for source in sources for each in source.identities)))
    for name in COLUMNS:
        kind = np.int64 if name in COUNTS else np.float64
        tree[name] = np.concatenate([np.zeros(0, kind), *(source.columns[name] for source in sources)])
    return {
        **tree,
        "run": texts([source.run for source in sources]),
        "rounds": np.array([source.rounds for source in sources], np.int64),
        "source": np.repeat(np.arange(len(counts)), counts),
    }


def _sources(group: State) -> list[RunStats]:
    identities, owners = _identities(group), group["source"]
    runs, rounds = untexts(group["run"]), group["rounds"].tolist()
    _check("prior", group, len(identities))
    if owners.tolist() != sorted(owners.tolist()) or not set(owners.tolist()) <= set(range(len(runs))):
        raise ValueError("prior/source is not in order")
    ends = np.searchsorted(owners, np.arange(len(runs)), side="right").tolist()
    return [
        RunStats(run, number, identities[begin:end], {name: group[name][begin:end] for name in COLUMNS})
        for run, number, (begin, end) in zip(runs, rounds, pairwise([0, *ends]), strict=True)
    ]


def _check(group: str, columns: State, workers: int) -> None:
    """Raise ValueError where columns are not what a run writes."""
    for name in COLUMNS:
        if columns[name].shape != (workers,):
            raise ValueError(f"{group}/{name} does not have one entry per worker")
        if columns[name].dtype.kind != ("i" if name in COUNTS else "f"):
            raise ValueError(f"{group}/{name} is of {columns[name].dtype}")
