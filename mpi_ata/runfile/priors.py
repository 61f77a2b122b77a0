"""Warm start: what earlier runs learned about workers, matched to those of this run."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import IntArray, State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.identity import DRAWN

SUMS = ("tasks", "seconds", "squares", "arrivals", "overhead", "unfinished")
COUNTS = ("tasks", "arrivals")
COLUMNS = (*SUMS, "least")
SHARE_OF_CLASS = 0.1  # weight of what is known about other workers with the same hardware
MOST_ROWS = 300_000  # workers of earlier runs in a run file; the oldest runs are dropped first
SHOWN = 3  # kinds of differences that are listed

Key = tuple[str, int, str, int]


@dataclass(frozen=True, eq=False)
class RunStats:
    """What one run itself learned about its workers."""

    run: str
    rounds: int
    identities: Sequence[WorkerIdentity]
    columns: State

    @property
    def length(self) -> tuple[int, int]:
        """The rounds and tasks of this version of a run: the longest version knows most."""
        return self.rounds, int(self.columns["tasks"].sum())

    def of_known(self) -> "RunStats":
        """Return the same without the workers about which nothing was learned."""
        rows = np.flatnonzero((self.columns["tasks"] > 0) | (self.columns["unfinished"] > 0))
        if len(rows) == len(self.identities):
            return self
        columns = {name: self.columns[name][rows] for name in COLUMNS}
        return replace(self, identities=[self.identities[row] for row in rows.tolist()], columns=columns)


class Prior(NamedTuple):
    """What is known about each worker before the run: sums over earlier runs, zero for unknown workers."""

    runs: int  # that know any of these workers
    rounds: int  # of those
    columns: State
    recognised: list[int]
    by_class: list[int]
    changed: Counter[str]  # workers where an earlier run had another one, by what is different

    @property
    def cold(self) -> int:
        """The number of workers about which nothing is known."""
        return len(self.columns["tasks"]) - len(self.recognised) - len(self.by_class)

    def summary(self) -> str:
        """Describe which workers were recognised and what differs, in one sentence."""
        parts = [f"{len(self.recognised):,} of {counted(len(self.columns['tasks']), 'worker')} recognised"]
        if self.by_class:
            parts.append(f"{_starting(len(self.by_class))} from others with the same hardware")
        if self.cold:
            parts.append(f"{_starting(self.cold)} cold")
        kinds = self.changed.most_common(SHOWN)
        differences = [f"{counted(count, 'worker')} changed: {text}" for text, count in kinds]
        if len(self.changed) > SHOWN:
            differences.append("...")
        rounds, runs = counted(self.rounds, "round"), counted(self.runs, "earlier run")
        known = f"from {rounds} of {runs}" if self.runs else "with nothing known"
        return f"{known}: {'; '.join([', '.join(parts), *differences])}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _starting(number: int) -> str:
    return f"{number:,} start{'s' if number == 1 else ''}"


def merge_runs(sources: Iterable[RunStats]) -> list[RunStats]:
    """Return each run once, in its longest version, oldest first; too many, and the oldest are dropped."""
    longest: dict[str, RunStats] = {}
    for source in sources:
        if source.run not in longest or source.length > longest[source.run].length:
            longest[source.run] = source
    known = [each for source in longest.values() if (each := source.of_known()).identities]
    rows = np.cumsum([len(source.identities) for source in reversed(known)])
    kept = int(np.count_nonzero(rows <= MOST_ROWS))
    return known[-max(kept, 1) :]


def discount(source: RunStats, weight: float) -> RunStats:
    """Return the same knowledge as if it came from fewer tasks, soon outweighed where it is wrong."""
    if weight == 1.0:
        return source
    return replace(source, rounds=round(weight * source.rounds), columns=_scaled(source.columns, weight))


def _scaled(columns: State, weight: float) -> State:
    """Scale sums to a share of the tasks, a whole number and at least one, without changing the means."""
    tasks = columns["tasks"]
    fewer = np.where(tasks > 0, np.maximum(1, np.round(weight * tasks)), 0)
    share = np.divide(fewer, tasks, out=np.full(len(tasks), weight), where=tasks > 0)
    scaled = {name: columns[name] * share for name in SUMS} | {"tasks": fewer, "least": columns["least"]}
    return scaled | {name: np.round(scaled[name]).astype(np.int64) for name in COUNTS}


def same_workers(before: Sequence[WorkerIdentity], now: Sequence[WorkerIdentity]) -> bool:
    """Return whether a resumed run has the workers that it had."""
    return _keys(before, crowded=False) == _keys(now, crowded=False)


def kept_workers(before: Sequence[WorkerIdentity], now: Sequence[WorkerIdentity]) -> list[tuple[int, int]]:
    """Return the workers that a resumed run still has: pairs of a worker now and its row before."""
    rows = {key: row for row, key in enumerate(_keys(before, crowded=False))}
    keys = _keys(now, crowded=False)
    return [(worker, rows[key]) for worker, key in enumerate(keys) if key in rows]


def _keys(identities: Sequence[WorkerIdentity], crowded: bool) -> list[Key]:
    """Return what workers are recognised by: law and index alone where times are drawn.

    `crowded` if the number of ranks on their host matters too.
    """
    drawn = {law: law.startswith(DRAWN) for law in {each.hardware for each in identities}}
    return [
        ("", index, hardware, 0) if drawn[hardware] else (host, index, hardware, ranks if crowded else 0)
        for host, index, hardware, ranks in identities
    ]


def match_prior(
    sources: Sequence[RunStats], identities: Sequence[WorkerIdentity], same_run: bool = False
) -> Prior:
    """Return what the runs know about these workers.

    A worker is the same if host, local index, hardware and the number of ranks on its host are; where the
    same run resumes on other workers, that number may have changed.
    """
    known = _KnownRuns(sources, crowded=not same_run)
    rows = np.array([known.workers.get(who, -1) for who in _keys(identities, not same_run)], np.int64)
    kinds, changed = np.full(len(identities), -1), Counter[str]()
    for worker in np.flatnonzero(rows < 0).tolist():
        identity = identities[worker]
        if (then := known.predecessors.get(identity[:2])) is not None:
            changed[_change(then, identity)] += 1
        else:
            kinds[worker] = known.classes.get(identity[2:], -1)
    recognised, by_class = np.flatnonzero(rows >= 0), np.flatnonzero(kinds >= 0)
    n = len(identities)
    columns: State = {name: np.zeros(n) for name in SUMS} | {"least": np.full(n, np.inf)}
    for name in COLUMNS:
        columns[name][recognised] = known.of_workers[name][rows[recognised]]
        columns[name][by_class] = known.of_classes[name][kinds[by_class]]
    columns |= {name: columns[name].astype(np.int64) for name in COUNTS}
    rounds = known.rounds(rows[recognised], kinds[by_class])
    return Prior(len(rounds), sum(rounds), columns, recognised.tolist(), by_class.tolist(), changed)


def _change(then: WorkerIdentity, now: WorkerIdentity) -> str:
    """Describe what has changed in hardware or neighbours."""
    before, after = (f"{each.hardware}, {each.ranks_on_host} ranks".split(", ") for each in (then, now))
    gone, new = [part for part in before if part not in after], [part for part in after if part not in before]
    return f"{', '.join(gone) or 'less'} then, {', '.join(new) or 'less'} now"


class _KnownRuns:
    """What several runs know together: about each worker, and each class of workers with equal hardware."""

    def __init__(self, sources: Iterable[RunStats], crowded: bool) -> None:
        self._sources = [source.of_known() for source in sources]
        identities = [each for source in self._sources for each in source.identities]
        self.workers, self._worker = _numbered(_keys(identities, crowded))
        first = np.unique(self._worker, return_index=True)[1]
        different = [identities[row] for row in first.tolist()]
        self.classes, class_of = _numbered(
            [None if each.hardware.startswith(DRAWN) else each[2:] for each in different]
        )
        self._class = class_of[self._worker]
        self.predecessors = {each[:2]: each for each in different}
        self.of_workers = self._added(self._worker, len(self.workers))
        self.of_classes = _scaled(self._average(class_of), SHARE_OF_CLASS)

    def _added(self, numbers: IntArray, count: int) -> State:
        """Return sums over rows that have the same number, and the least of their least."""
        sums: State = {name: np.zeros(count) for name in SUMS} | {"least": np.full(count, np.inf)}
        for name in COLUMNS:
            parts = [np.zeros(0), *(source.columns[name] for source in self._sources)]
            (np.minimum if name == "least" else np.add).at(sums[name], numbers, np.concatenate(parts))
        return sums

    def _average(self, class_of: IntArray) -> State:
        """Return what an average worker of each class did; fast ones, with the most tasks, weigh most."""
        members = np.bincount(class_of, minlength=len(self.classes))
        sums = self._added(self._class, len(self.classes))
        return {name: sums[name] / members for name in SUMS} | {"least": sums["least"]}

    def rounds(self, workers: IntArray, classes: IntArray) -> list[int]:
        """Return the rounds of each run that knows any of these workers or classes."""
        used = np.isin(self._worker, workers) | np.isin(self._class, classes)
        lengths = [len(source.identities) for source in self._sources]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        return [self._sources[number].rounds for number in np.unique(owners[used])]


def _numbered(keys: Sequence[Hashable]) -> tuple[dict[Any, int], IntArray]:
    """Number the different keys, and return the numbers by key and those of all keys in turn."""
    numbers: dict[Any, int] = {}
    return numbers, np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
