"""Warm start: what earlier runs learned of workers, matched to those of the present run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.cluster import Place

SUMS = ("tasks", "seconds", "squares", "arrivals", "overhead", "unfinished")
COLUMNS = (*SUMS, "least")
SHARE_OF_CLASS = 0.1  # what is known of other workers with the same hardware counts for so much
MOST_ROWS = 1_000_000  # of workers in what is handed on; the oldest runs are forgotten first


@dataclass(frozen=True)
class Source:
    """What one run learned of its workers by itself."""

    run: str
    rounds: int
    places: Sequence[Place]
    columns: State


class Inherited(NamedTuple):
    """What is known of each worker before the run: sums over earlier runs, zero for unknown workers."""

    rounds: int
    columns: State
    recognised: list[int]
    by_class: list[int]
    differing: list[tuple[int, str]]  # workers whose host and slot were met with other hardware

    @property
    def cold(self) -> int:
        """How many workers start without any knowledge."""
        return len(self.columns["tasks"]) - len(self.recognised) - len(self.by_class)

    def summary(self) -> str:
        """Who was recognised, in one sentence."""
        parts = [f"{len(self.recognised):,} of {len(self.columns['tasks']):,} workers recognised"]
        if self.by_class:
            parts.append(f"{len(self.by_class):,} start from others with their hardware")
        if self.cold:
            parts.append(f"{self.cold:,} start cold")
        text = ", ".join(parts) + f"; {self.rounds:,} rounds are known"
        for worker, hardware in self.differing[:3]:
            text += f"; worker {worker} had other hardware: {hardware}"
        return text + ("; ..." if len(self.differing) > 3 else "")


@dataclass
class Known:
    """Sums of one worker over several runs."""

    columns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0) | {"least": np.inf})

    def add(self, source: Source, row: int) -> None:
        """Take in one row of a run."""
        for name in SUMS:
            self.columns[name] += source.columns[name][row]
        self.columns["least"] = min(self.columns["least"], source.columns["least"][row])


def merged(sources: Iterable[Source]) -> list[Source]:
    """Each run once, in its longest version, oldest first; the oldest go where there are too many."""
    longest: dict[str, Source] = {}
    for source in sources:
        if source.run not in longest or source.rounds > longest[source.run].rounds:
            longest[source.run] = source
    kept: list[Source] = []
    rows = 0
    for source in reversed(longest.values()):
        rows += len(source.places)
        if rows > MOST_ROWS and kept:
            break
        kept.append(source)
    return kept[::-1]


def discounted(source: Source, weight: float) -> Source:
    """The same knowledge, as if it came from fewer tasks; so it is soon outweighed where it is wrong."""
    if weight == 1.0:
        return source
    tasks = source.columns["tasks"]
    fewer = np.where(tasks > 0, np.maximum(1, np.round(weight * tasks)), 0)
    share = fewer / np.maximum(tasks, 1)
    columns = {name: column * share for name, column in source.columns.items() if name != "least"}
    columns |= {"tasks": fewer.astype(np.int64), "arrivals": np.round(columns["arrivals"]).astype(np.int64)}
    columns["least"] = source.columns["least"]
    return replace(source, rounds=round(weight * source.rounds), columns=columns)


def inherited(sources: Sequence[Source], places: Sequence[Place]) -> Inherited:
    """What the runs know of the workers at these places."""
    known: dict[Place, Known] = {}
    classes: dict[str, list[Known]] = {}
    for source in sources:
        for row, place in enumerate(source.places):
            if not source.columns["tasks"][row]:
                continue
            if place not in known:
                known[place] = Known()
                classes.setdefault(place.hardware, []).append(known[place])
            known[place].add(source, row)
    slots = {(place.host, place.slot): place.hardware for place in known}
    hosts = {place.host for place in known}
    columns: State = {name: np.full(len(places), np.inf if name == "least" else 0.0) for name in COLUMNS}
    recognised, by_class, differing = list[int](), list[int](), list[tuple[int, str]]()
    for worker, place in enumerate(places):
        if place in known:
            recognised.append(worker)
            _take(columns, worker, known[place].columns, 1.0)
        elif (place.host, place.slot) in slots:
            differing.append((worker, slots[place.host, place.slot]))
        elif place.host not in hosts and place.hardware in classes:
            by_class.append(worker)
            _take(columns, worker, _average(classes[place.hardware]), SHARE_OF_CLASS)
    columns["tasks"] = columns["tasks"].astype(np.int64)
    columns["arrivals"] = columns["arrivals"].astype(np.int64)
    rounds = sum(source.rounds for source in sources) if recognised or by_class else 0
    return Inherited(rounds, columns, recognised, by_class, differing)


def _average(members: Sequence[Known]) -> dict[str, float]:
    sums = {name: sum(member.columns[name] for member in members) / len(members) for name in SUMS}
    return sums | {"least": min(member.columns["least"] for member in members)}


def _take(columns: State, worker: int, known: dict[str, float], weight: float) -> None:
    """Enter what is known of a worker, as if it had done a share of its tasks; at least one."""
    tasks = max(1, round(weight * known["tasks"]))
    share = tasks / known["tasks"]
    for name in SUMS:
        columns[name][worker] = known[name] * share
    columns["tasks"][worker] = tasks
    columns["arrivals"][worker] = round(known["arrivals"] * share)
    columns["least"][worker] = known["least"]
