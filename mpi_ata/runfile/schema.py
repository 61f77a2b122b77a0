"""The schema of a run file: a record as attributes and groups of arrays, and back (see docs/run-file.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.identity import VIRTUAL
from mpi_ata.errors import DamagedError
from mpi_ata.job.schema import RunDescription
from mpi_ata.runfile.hdf5 import Attributes
from mpi_ata.runfile.priors import COLUMNS, COUNTS, RunStats
from mpi_ata.runfile.store import FORMAT
from mpi_ata.version import __version__


class HistoryRow(NamedTuple):
    """The totals of a run at the end of one of its rounds: the columns of its history, in this order."""

    round: int
    clock: float
    elapsed: float
    worker_time: float
    waste: float
    started: int
    used: int
    wasted: int
    lost: int
    loss: float
    gap: float
    regret: float
    mean_delay: float
    largest_delay: int


ALWAYS = (  # entries of a summary that every run has
    *("rounds", "clock", "worker_time", "elapsed", "waste", "workers"),
    *("tasks_started", "tasks_used", "tasks_wasted", "tasks_lost"),
)
SHARES = ("setup_time", "decision_time", "update_time", "evaluation_time", "saving_time")  # of elapsed
MAYBE = (  # entries that not every run has
    *("billed", "loss", "gap", "mean_delay", "largest_delay"),
    *SHARES,
)

MOST_EVENTS, LONGEST_EVENT = 1000, 1000


class Event(NamedTuple):
    """Something that happened to a run besides its rounds."""

    time: float  # seconds since 1970
    worker: int  # -1: about the whole run
    kind: str
    text: str
    host: str = ""  # that the worker ran on: a resumed run may have others


@dataclass
class Record:
    """All that is saved of a run: enough to resume it, to warm-start others, and to report what happened."""

    run: str  # a unique name of this run
    job: RunDescription
    identities: tuple[WorkerIdentity, ...]
    workers: State  # of this run alone, one entry per worker
    method: State = field(default_factory=dict)
    allocator: State = field(default_factory=dict)
    cluster: State = field(default_factory=dict)
    totals: State = field(default_factory=dict)
    trace: State = field(default_factory=dict)
    metrics: State = field(default_factory=dict)  # what evaluate(x) of the problem returned
    task_map: State = field(default_factory=dict)  # tasks that each worker has done by some rounds
    rounds: State = field(default_factory=dict)  # what tasks and orders took in some rounds on ranks
    prior: list[RunStats] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # what the run achieved, late messages included
    reason: str = ""  # which limit was reached; empty while unfinished
    failure: str = ""  # why it failed; empty otherwise
    slurm_jobs: tuple[str, ...] = ()  # in which it ran

    @property
    def is_simulated(self) -> bool:
        """Return whether its workers were simulated."""
        return all(identity.host == VIRTUAL for identity in self.identities)

    @property
    def is_shared(self) -> bool:
        """Return whether other jobs ran on its workers, too."""
        return any(event.kind == "shared" for event in self.events)

    @property
    def position(self) -> str:
        """Return how far the run is: its latest round, or how many items a farm has done."""
        return (
            f"item {self.summary['tasks_used']:,}" if self.job.is_farm else f"round {int(self.method['k']):,}"
        )

    @property
    def source(self) -> RunStats:
        """What this run itself learned about its workers."""
        return RunStats(
            self.run, int(self.method["k"]), self.identities, {name: self.workers[name] for name in COLUMNS}
        )

    def event(self, time: float, kind: str, text: str, worker: int = -1) -> None:
        """Record an event; when there are too many, the oldest are dropped."""
        host = self.identities[worker].host if 0 <= worker < len(self.identities) else ""
        self.events.append(Event(time, worker, kind, text[:LONGEST_EVENT], host))
        del self.events[:-MOST_EVENTS]


# Attributes that are not part of the summary; older files have "energy".
_OTHER = ("format", "run", "package", "finished", "reason", "failure", "slurm_jobs", "energy")
_IDENTITY_COLUMNS = ("host", "slot", "ranks", "hardware", "hardware_names")


# What reading a record raises where arrays or attributes are not what a run writes.
MALFORMED = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


def to_tree(record: Record) -> tuple[Attributes, dict[str, State]]:
    """Return the record as attributes and groups of arrays."""
    attributes = {
        "format": FORMAT,
        "run": record.run,
        "package": __version__,
        "finished": bool(record.reason),
        "reason": record.reason,
        **({"failure": record.failure} if record.failure else {}),
        **({"slurm_jobs": ",".join(record.slurm_jobs)} if record.slurm_jobs else {}),
        **{name: value for name, value in record.summary.items() if isinstance(value, int | float)},
    }
    groups: dict[str, State] = {
        "job": _job_arrays(record.job),
        "method": record.method,
        "allocator": record.allocator,
        "cluster": record.cluster,
        "workers": {**_identity_columns(record.identities), **record.workers},
        "prior": _prior(tuple(record.prior)),
        "totals": record.totals,
        "trace": record.trace,
        "figures": record.metrics,
        "task_map": record.task_map,
        **({"rounds": record.rounds} if record.rounds else {}),
        "events": _event_columns(record.events),
    }
    return attributes, groups


def from_tree(attributes: Mapping[str, Any], groups: Mapping[str, State]) -> Record:
    """Return the record that was read; DamagedError where something is missing or has the wrong type."""
    try:
        workers = dict(groups["workers"])
        identities = _identities(workers)
        columns = {name: array for name, array in workers.items() if name not in _IDENTITY_COLUMNS}
        _check("workers", columns, len(identities))
        record = Record(
            run=str(attributes["run"]),
            job=_job(groups["job"]),
            identities=identities,
            workers=columns,
            method=groups["method"],
            allocator=groups["allocator"],
            cluster=_with_orders_in_flight(groups["cluster"], groups["method"]),
            totals=groups["totals"],
            trace=groups["trace"],
            metrics=groups["figures"],
            task_map=groups.get("task_map", {}),
            rounds=groups.get("rounds", {}),
            prior=_sources(groups["prior"]),
            events=_events(groups["events"]),
            summary={name: value for name, value in attributes.items() if name not in _OTHER},
            reason=str(attributes["reason"]),
            failure=str(attributes.get("failure", "")),
            slurm_jobs=tuple(filter(None, str(attributes.get("slurm_jobs", "")).split(","))),
        )
        _check_complete(record)
        return record
    except MALFORMED as error:
        raise DamagedError(f"is not a complete run file: {error}") from None


def texts(values: Iterable[str]) -> Any:
    """Return strings as an array that HDF5 stores without pointers."""
    encoded = [value.encode() for value in values]
    return np.array(encoded, f"S{max(map(len, encoded), default=0) or 1}")


def untexts(array: Any) -> list[str]:
    """Return the strings in such an array."""
    return [value.decode() for value in array.tolist()]


def _job_arrays(job: RunDescription) -> State:
    return {
        "text": np.array(job.text.encode() or b"\0"),
        "settings": texts(job.settings),
        "file_tables": texts(job.files),
        "file_texts": texts(job.files.values()),
    }


def _job(group: State) -> RunDescription:
    files = dict(zip(untexts(group["file_tables"]), untexts(group["file_texts"]), strict=True))
    return RunDescription(bytes(group["text"].item()).decode(), tuple(untexts(group["settings"])), files)


def _event_columns(events: Sequence[Event]) -> State:
    times, workers, kinds, words, hosts = zip(*events, strict=True) if events else ((),) * 5
    return {
        "time": np.array(times, np.float64),
        "worker": np.array(workers, np.int64),
        "kind": texts(kinds),
        "text": texts(words),
        **({"host": texts(hosts)} if any(hosts) else {}),  # only where something happened to a worker
    }


def _events(group: State) -> list[Event]:
    times, workers = group["time"].tolist(), group["worker"].tolist()
    hosts = untexts(group["host"]) if "host" in group else [""] * len(times)
    rows = zip(times, workers, untexts(group["kind"]), untexts(group["text"]), hosts, strict=True)
    return [Event(*row) for row in rows]


def _with_orders_in_flight(cluster: State, method: State) -> State:
    """Return the state of a cluster with its running orders; in the first files only ringmaster knew them."""
    if "stopping" not in cluster or "running" in cluster:
        return cluster
    running = np.zeros_like(cluster["stopping"])
    if (born := method.get("born", running)).shape == running.shape and "born" in method:
        running[born >= 0] = 1
    return cluster | {"running": running}


def _check_complete(record: Record) -> None:
    """Raise an error where a record lacks something that every description needs; older files lack more."""
    if not record.identities:
        raise ValueError("no workers")
    int(record.method["k"])
    for name in ALWAYS:
        float(record.summary[name])
    for name, value in record.metrics.items():
        if name.startswith("latest."):
            float(value)
    times, n = record.workers.get("times"), len(record.identities)
    if times is not None and (times.ndim != 2 or len(times) != n or times.dtype.kind != "f"):
        raise ValueError("workers/times does not have one row of seconds per worker")
    _check_lengths("task_map", record.task_map, ("round", "clock", "tasks"))
    if rounds := record.rounds:
        _check_lengths("rounds", rounds, ("round", "duration", "deliveries"))
        _check_lengths("rounds", rounds, ("worker", "overhead", "tasks"), int(rounds["deliveries"].sum()))
        _check_lengths("rounds", rounds, ("seconds",), int(rounds["tasks"].sum()))


def _check_lengths(group: str, columns: State, names: Sequence[str], length: int | None = None) -> None:
    """Raise ValueError where some columns, if there are any, are not equally long, or not of this length."""
    lengths = {len(columns[name]) for name in names} if columns else set()
    if len(lengths | ({length} if length is not None else set())) > 1:
        raise ValueError(f"{group}/{names[0]} does not have as many rows as it should")


@lru_cache(maxsize=2)  # they stay the same from save to save
def _identity_columns(identities: Sequence[WorkerIdentity]) -> State:
    hosts, slots, hardware, ranks = zip(*identities, strict=True) if identities else ((),) * 4
    names = {name: number for number, name in enumerate(dict.fromkeys(hardware))}
    return {
        "host": texts(hosts),
        "slot": np.array(slots, np.int64),
        "ranks": np.array(ranks, np.int64),
        "hardware": np.array([names[name] for name in hardware], np.int64),
        "hardware_names": texts(names),
    }


def _identities(columns: State) -> tuple[WorkerIdentity, ...]:
    names, numbers = untexts(columns["hardware_names"]), columns["hardware"].tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(names):
        raise ValueError("hardware has a number without a name")
    hardware, ranks = [names[number] for number in numbers], columns["ranks"].tolist()
    rows = zip(untexts(columns["host"]), columns["slot"].tolist(), hardware, ranks, strict=True)
    return tuple(WorkerIdentity(*row) for row in rows)


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
