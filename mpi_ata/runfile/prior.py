"""Warm start: what earlier runs learned of workers, matched to those of the present run."""

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
SHARE_OF_CLASS = 0.1  # what is known of other workers with the same hardware counts for so much
MOST_ROWS = 300_000  # of workers in what is handed on; the oldest runs are forgotten first
SHOWN = 3  # kinds of differences that are told one by one

Identity = tuple[str, int, str, int]


@dataclass(frozen=True, eq=False)
class RunStats:
    """What one run learned of its workers by itself."""

    run: str
    rounds: int
    places: Sequence[WorkerIdentity]
    columns: State

    @property
    def length(self) -> tuple[int, int]:
        """Which of two versions of a run knows more."""
        return self.rounds, int(self.columns["tasks"].sum())

    def of_known(self) -> "RunStats":
        """The same without the workers of which nothing was learned."""
        rows = np.flatnonzero((self.columns["tasks"] > 0) | (self.columns["unfinished"] > 0))
        if len(rows) == len(self.places):
            return self
        columns = {name: self.columns[name][rows] for name in COLUMNS}
        return replace(self, places=[self.places[row] for row in rows.tolist()], columns=columns)


class Difference(NamedTuple):
    """A worker that stands where another one stood, with other hardware or neighbours."""

    worker: int
    then: WorkerIdentity
    now: WorkerIdentity

    def text(self) -> str:
        """What is not as it was, in words."""
        then, now = (f"{place.hardware}, {place.ranks} ranks".split(", ") for place in self[1:])
        gone, new = [part for part in then if part not in now], [part for part in now if part not in then]
        return f"{', '.join(gone) or 'less'} then, {', '.join(new) or 'less'} now"


class Prior(NamedTuple):
    """What is known of each worker before the run: sums over earlier runs, zero for unknown workers."""

    runs: int  # that know any of these workers
    rounds: int  # of those
    columns: State
    recognised: list[int]
    by_class: list[int]
    differing: list[Difference]

    @property
    def cold(self) -> int:
        """How many workers start without any knowledge."""
        return len(self.columns["tasks"]) - len(self.recognised) - len(self.by_class)

    def summary(self) -> str:
        """Who was recognised and what differed, in one sentence."""
        parts = [f"{len(self.recognised):,} of {counted(len(self.columns['tasks']), 'worker')} recognised"]
        if self.by_class:
            parts.append(f"{_starting(len(self.by_class))} from others with the same hardware")
        if self.cold:
            parts.append(f"{_starting(self.cold)} cold")
        kinds = Counter(difference.text() for difference in self.differing)
        differences = [
            f"{counted(count, 'worker')} changed: {text}" for text, count in kinds.most_common(SHOWN)
        ]
        if len(kinds) > SHOWN:
            differences.append("...")
        rounds, runs = counted(self.rounds, "round"), counted(self.runs, "run")
        known = f"as after {rounds} of {runs}" if self.runs else "with nothing known"
        return f"{known}: {'; '.join([', '.join(parts), *differences])}"


def counted(number: int, noun: str) -> str:
    """So many of them, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _starting(number: int) -> str:
    return f"{number:,} start{'s' if number == 1 else ''}"


def merge_runs(sources: Iterable[RunStats]) -> list[RunStats]:
    """Each run once, in its longest version, oldest first; the oldest go where there are too many."""
    longest: dict[str, RunStats] = {}
    for source in sources:
        if source.run not in longest or source.length > longest[source.run].length:
            longest[source.run] = source
    kept: list[RunStats] = []
    rows = 0
    for source in reversed([source.of_known() for source in longest.values()]):
        rows += len(source.places)
        if rows > MOST_ROWS and kept:
            break
        kept.append(source)
    return [source for source in reversed(kept) if source.places]


def discount(source: RunStats, weight: float) -> RunStats:
    """The same knowledge, as if it came from fewer tasks; so it is soon outweighed where it is wrong."""
    if weight == 1.0:
        return source
    return replace(source, rounds=round(weight * source.rounds), columns=_scaled(source.columns, weight))


def _scaled(columns: State, weight: float) -> State:
    """Sums over a share of the tasks, in whole numbers and at least one; so that the means stay."""
    tasks = columns["tasks"]
    fewer = np.where(tasks > 0, np.maximum(1, np.round(weight * tasks)), 0)
    share = np.divide(fewer, tasks, out=np.full(len(tasks), weight), where=tasks > 0)
    scaled = {name: columns[name] * share for name in SUMS} | {"tasks": fewer, "least": columns["least"]}
    return scaled | {name: np.round(scaled[name]).astype(np.int64) for name in COUNTS}


def same_workers(before: Sequence[WorkerIdentity], now: Sequence[WorkerIdentity]) -> bool:
    """Whether a run that goes on has the workers that it had."""
    return _identities(before, crowded=False) == _identities(now, crowded=False)


def kept_workers(before: Sequence[WorkerIdentity], now: Sequence[WorkerIdentity]) -> list[tuple[int, int]]:
    """The workers that a run has kept: pairs of a worker now and its row before."""
    rows = {identity: row for row, identity in enumerate(_identities(before, crowded=False))}
    identities = _identities(now, crowded=False)
    return [(worker, rows[identity]) for worker, identity in enumerate(identities) if identity in rows]


def _identities(places: Sequence[WorkerIdentity], crowded: bool) -> list[Identity]:
    """Who the workers are; where times are drawn nothing but law and index counts, wherever they are."""
    drawn = {law: law.startswith(DRAWN) for law in {place.hardware for place in places}}
    return [
        ("", slot, hardware, 0) if drawn[hardware] else (host, slot, hardware, ranks if crowded else 0)
        for host, slot, hardware, ranks in places
    ]


def match_prior(
    sources: Sequence[RunStats], places: Sequence[WorkerIdentity], same_run: bool = False
) -> Prior:
    """What the runs know of the workers at these places.

    A worker is the same if host, slot, hardware and the number of ranks beside it are; in the same run that
    goes on with other workers, that number may have changed.
    """
    known = _Known(sources, crowded=not same_run)
    rows = np.array([known.workers.get(who, -1) for who in _identities(places, not same_run)], np.int64)
    kinds, differing = np.full(len(places), -1), list[Difference]()
    for worker in np.flatnonzero(rows < 0).tolist():
        place = places[worker]
        if (then := known.standing.get(place[:2])) is not None:
            differing.append(Difference(worker, then, place))
        else:
            kinds[worker] = known.classes.get(place[2:], -1)
    recognised, by_class = np.flatnonzero(rows >= 0), np.flatnonzero(kinds >= 0)
    columns: State = {name: np.zeros(len(places)) for name in SUMS} | {"least": np.full(len(places), np.inf)}
    for name in COLUMNS:
        columns[name][recognised] = known.of_workers[name][rows[recognised]]
        columns[name][by_class] = known.of_classes[name][kinds[by_class]]
    columns |= {name: columns[name].astype(np.int64) for name in COUNTS}
    rounds = known.rounds(rows[recognised], kinds[by_class])
    return Prior(len(rounds), sum(rounds), columns, recognised.tolist(), by_class.tolist(), differing)


class _Known:
    """What several runs know together: of each worker, and of each class of workers with equal hardware."""

    def __init__(self, sources: Iterable[RunStats], crowded: bool) -> None:
        self._sources = [source.of_known() for source in sources]
        places = [place for source in self._sources for place in source.places]
        self.workers, self._worker = _numbered(_identities(places, crowded))
        first = np.unique(self._worker, return_index=True)[1]
        different = [places[row] for row in first.tolist()]
        self.classes, class_of = _numbered(
            [None if place.hardware.startswith(DRAWN) else place[2:] for place in different]
        )
        self._class = class_of[self._worker]
        self.standing = {place[:2]: place for place in different}
        self.of_workers = self._added(self._worker, len(self.workers))
        self.of_classes = _scaled(self._average(class_of), SHARE_OF_CLASS)

    def _added(self, numbers: IntArray, count: int) -> State:
        """Sums over rows that have the same number, and the least of their least."""
        sums: State = {name: np.zeros(count) for name in SUMS} | {"least": np.full(count, np.inf)}
        for name in COLUMNS:
            parts = [np.zeros(0), *(source.columns[name] for source in self._sources)]
            (np.minimum if name == "least" else np.add).at(sums[name], numbers, np.concatenate(parts))
        return sums

    def _average(self, class_of: IntArray) -> State:
        """What an average worker of each class did: so those that did most tasks, the fast ones, say most."""
        members = np.bincount(class_of, minlength=len(self.classes))
        sums = self._added(self._class, len(self.classes))
        return {name: sums[name] / members for name in SUMS} | {"least": sums["least"]}

    def rounds(self, workers: IntArray, classes: IntArray) -> list[int]:
        """The rounds of each run that knows any of these workers or classes."""
        used = np.isin(self._worker, workers) | np.isin(self._class, classes)
        lengths = [len(source.places) for source in self._sources]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        return [self._sources[number].rounds for number in np.unique(owners[used])]


def _numbered(keys: Sequence[Hashable]) -> tuple[dict[Any, int], IntArray]:
    """Numbers for different keys, and those of all."""
    numbers: dict[Any, int] = {}
    return numbers, np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
