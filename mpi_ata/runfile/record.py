"""What a run file says: the record of one run, and its schema (docs/run-file.md tells it to users)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.job.source import JobText
from mpi_ata.runfile.prior import COLUMNS, COUNTS, RunStats
from mpi_ata.runfile.store import FORMAT, Attributes, DamagedError, texts, untexts
from mpi_ata.version import __version__

MOST_EVENTS, LONGEST_EVENT = 1000, 1000
ALWAYS = (  # figures of a summary that every run has
    *("rounds", "clock", "worker_time", "elapsed", "waste", "workers"),
    *("tasks_started", "tasks_used", "tasks_wasted", "tasks_lost"),
)
MAYBE = ("billed", "loss", "gap", "mean_delay", "largest_delay")  # figures that not every run has


class Event(NamedTuple):
    """Something that happened to a run beside its rounds."""

    time: float  # seconds since 1970
    worker: int  # -1: about the whole run
    kind: str
    text: str


@dataclass
class Record:
    """All that is kept of a run: enough to go on, to warm-start others, and to tell what happened."""

    run: str  # a name for this run that no other has
    job: JobText
    places: tuple[WorkerIdentity, ...]
    workers: State  # of this run alone, one entry a worker
    method: State = field(default_factory=dict)
    allocator: State = field(default_factory=dict)
    cluster: State = field(default_factory=dict)
    totals: State = field(default_factory=dict)
    trace: State = field(default_factory=dict)
    figures: State = field(default_factory=dict)
    prior: list[RunStats] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # what the run came to, late answers included
    reason: str = ""  # which limit was reached; empty while unfinished

    @property
    def source(self) -> RunStats:
        """What this run learned of its workers by itself."""
        return RunStats(
            self.run, int(self.method["k"]), self.places, {name: self.workers[name] for name in COLUMNS}
        )

    def event(self, time: float, kind: str, text: str, worker: int = -1) -> None:
        """Note that something happened; of very many the oldest are forgotten."""
        self.events.append(Event(time, worker, kind, text[:LONGEST_EVENT]))
        del self.events[:-MOST_EVENTS]


def told(record: Record) -> dict[str, Any]:
    """What a record tells, as plain numbers and texts; None where something is not known."""
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
            for name, value in record.figures.items()
            if name.startswith(latest)
        },
        "events": [event._asdict() for event in record.events],
        "workers_table": [
            place._asdict() | {name: column[worker] for name, column in known.items()}
            for worker, place in enumerate(record.places)
        ],
        "job": record.job.text,
        "settings": list(record.job.settings),
    }


def figures_of(record: Record, path: Path) -> dict[str, Any]:
    """What a finished run came to, as it said at its end."""
    found = told(record) | {"out": str(path)}
    return {name: found[name] for name in (*ALWAYS, *MAYBE, "evaluation", "finished", "out")}


def to_tree(record: Record) -> tuple[Attributes, dict[str, State]]:
    """The record as attributes and groups of arrays."""
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
        "workers": {**_places(record.places), **record.workers},
        "prior": _prior(tuple(record.prior)),
        "totals": record.totals,
        "trace": record.trace,
        "figures": record.figures,
        "events": {
            "time": np.array([event.time for event in events], np.float64),
            "worker": np.array([event.worker for event in events], np.int64),
            "kind": texts([event.kind for event in events]),
            "text": texts([event.text for event in events]),
        },
    }
    return attributes, groups


def from_tree(attributes: Mapping[str, Any], groups: Mapping[str, State]) -> Record:
    """The record in what was read, refused where something is missing or of another kind."""
    try:
        job, workers, events = groups["job"], dict(groups["workers"]), groups["events"]
        files = dict(zip(untexts(job["file_tables"]), untexts(job["file_texts"]), strict=True))
        places = _unplaced(workers)
        columns = {name: array for name, array in workers.items() if name not in _PLACE}
        _check("workers", columns, len(places))
        record = Record(
            run=str(attributes["run"]),
            job=JobText(bytes(job["text"].item()).decode(), tuple(untexts(job["settings"])), files),
            places=places,
            workers=columns,
            method=groups["method"],
            allocator=groups["allocator"],
            cluster=groups["cluster"],
            totals=groups["totals"],
            trace=groups["trace"],
            figures=groups["figures"],
            prior=_unprior(groups["prior"]),
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
        _check_told(record)
        return record
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise DamagedError(f"lacks what a run file has: {error}") from None


def _check_told(record: Record) -> None:
    """Refuse a record of which nothing could be told."""
    if not record.places:
        raise ValueError("no workers")
    int(record.method["k"])
    for name in ALWAYS:
        float(record.summary[name])
    for name, value in record.figures.items():
        if name.startswith("latest."):
            float(value)


_OTHER = ("format", "run", "package", "finished", "reason")
_PLACE = ("host", "slot", "ranks", "hardware", "hardware_names")


@lru_cache(maxsize=2)  # they stay the same from save to save
def _places(places: Sequence[WorkerIdentity]) -> State:
    names = {name: number for number, name in enumerate(dict.fromkeys(place.hardware for place in places))}
    return {
        "host": texts([place.host for place in places]),
        "slot": np.array([place.slot for place in places], np.int64),
        "ranks": np.array([place.ranks for place in places], np.int64),
        "hardware": np.array([names[place.hardware] for place in places], np.int64),
        "hardware_names": texts(list(names)),
    }


def _unplaced(columns: State) -> tuple[WorkerIdentity, ...]:
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
    return tuple(map(WorkerIdentity._make, rows))


@lru_cache(maxsize=2)  # it stays the same from save to save
def _prior(sources: tuple[RunStats, ...]) -> State:
    counts = [len(source.places) for source in sources]
    tree = dict(_places(tuple(place for source in sources for place in source.places)))
    for name in COLUMNS:
        kind = np.int64 if name in COUNTS else np.float64
        tree[name] = np.concatenate([np.zeros(0, kind), *(source.columns[name] for source in sources)])
    return {
        **tree,
        "run": texts([source.run for source in sources]),
        "rounds": np.array([source.rounds for source in sources], np.int64),
        "source": np.repeat(np.arange(len(counts)), counts),
    }


def _unprior(group: State) -> list[RunStats]:
    places, owners = _unplaced(group), group["source"]
    runs, rounds = untexts(group["run"]), group["rounds"].tolist()
    _check("prior", group, len(places))
    if owners.tolist() != sorted(owners.tolist()) or not set(owners.tolist()) <= set(range(len(runs))):
        raise ValueError("prior/source is not in order")
    ends = np.searchsorted(owners, np.arange(len(runs)), side="right").tolist()
    return [
        RunStats(run, number, places[begin:end], {name: group[name][begin:end] for name in COLUMNS})
        for run, number, (begin, end) in zip(runs, rounds, pairwise([0, *ends]), strict=True)
    ]


def _check(group: str, columns: State, workers: int) -> None:
    """Refuse columns that are not what a run wrote."""
    for name in COLUMNS:
        if columns[name].shape != (workers,):
            raise ValueError(f"{group}/{name} has not one entry a worker")
        if columns[name].dtype.kind != ("i" if name in COUNTS else "f"):
            raise ValueError(f"{group}/{name} is of {columns[name].dtype}")
