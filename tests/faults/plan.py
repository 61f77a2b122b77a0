"""Scripts of faults: what goes wrong with which worker in which round, drawn from a seed."""

from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from tests.faults.scripted import following

FAILURES = dict.fromkeys(("raise", "memory", "sys-exit", "interrupt", "base", "surrogate"), "failed")
GARBAGE = dict.fromkeys(("nan", "infinity", "shape", "none", "text"), "bad-result")
DEATHS = dict.fromkeys(("kill", "segfault", "abort", "exit-0", "exit-3"), "lost")
HANGS = {"stop": "overdue"}
EVENTS = FAILURES | GARBAGE | DEATHS | HANGS  # kinds of faults, and the kind of event that each must cause
# What causes none: nobody is overdue before the deadline, and a worker that hangs at its exit is ended.
SLOW = ("crawl", "pause", "freeze", "hang-at-exit")
HEALTHY = 0  # the worker that nothing happens to, so that somebody is always left
NOBODY = -1
WAYS = {  # how x moves
    "sgd ata-empirical": 'name = "sgd"\n[allocator]\nname = "ata-empirical"\nbudget = {budget}',
    "sgd uta": 'name = "sgd"\n[allocator]\nname = "uta"\nbudget = {budget}',
    "sgd gta": 'name = "sgd"\n[allocator]\nname = "gta"\nbudget = {budget}',
    "asgd": 'name = "asgd"\n[allocator]\nname = "ata-empirical"\nbudget = {budget}',
    "ringmaster": 'name = "ringmaster"\ndelay = 20\nbudget = {budget}',
    "owned": 'name = "heterogeneous-data-sgd"\n[allocator]\nname = "uta"\nbudget = {budget}',
}
CHAINED = ["sgd ata-empirical", "sgd uta"]  # in which x and results may travel by the chain
REISSUE = 'on_task_error = "reissue"\non_bad_result = "reissue"\nmax_failures = 1000'
JOB = """
[problem]
file = "scripted.py"
class = "{problem}"
folder = "{folder}"
dimension = {dimension}

[method]
step_size = 1.0
{way}

[stop]
rounds = {rounds}

[run]
workers = {workers}
seed = {seed}
exchange = "{exchange}"
checkpoint_rounds = 10

[faults]
deadline = 1.0
{policy}
"""
FARM = """
import mpi_ata
from scripted import do_item

with mpi_ata.cluster(workers={workers}) as cluster:
    assert list(cluster.map(do_item, range({rounds}))) == [value**2 for value in range({rounds})]
    print("all items")
"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one worker from a round on: in its task, or caused from outside.

    In a farm, `round` is the item, and whoever has it is the worker.
    """

    number: int
    worker: int
    round: int
    kind: str
    seconds: float = 0.0  # how long it lasts; a hang, after it was noticed
    outside: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """One run and its faults; all follow from the seed."""

    seed: int
    workers: int
    rounds: int  # or items
    way: str  # a key of WAYS, or "farm"
    budget: int
    dimension: int
    faults: tuple[Fault, ...]
    exchange: str = "star"

    @property
    def is_farm(self) -> bool:
        """Return whether it is a script with cluster.map()."""
        return self.way == "farm"

    @property
    def waits(self) -> bool:
        """Return whether a round waits for each worker that takes part in it."""
        return self.way not in ("sgd gta", "ringmaster", "farm")

    @property
    def together(self) -> bool:
        """Return whether the tasks of an order come back as a whole."""
        return self.way in ("sgd ata-empirical", "sgd uta", "owned")

    @property
    def _counting(self) -> bool:
        return self.way in ("asgd", "ringmaster")

    def point_after(self, rounds: int) -> Array:
        """Return the point at which every run is after so many rounds, whatever happened to it."""
        x: Array = np.arange(self.dimension, dtype=float)
        if self._counting:
            return x - rounds * self.budget
        for _ in range(rounds):
            x = following(x)
        return x

    def job(self, folder: Path) -> str:
        """Return the job file, or the script."""
        if self.is_farm:
            return FARM.format(**vars(self))
        problem, policy = "Counting" if self._counting else "Scripted", "" if self.way == "owned" else REISSUE
        way = WAYS[self.way].format(budget=self.budget)
        return JOB.format(**vars(self) | {"folder": folder, "problem": problem, "policy": policy, "way": way})


def drawn(
    seed: int, deaths: int, faults: int = 26, hangs: int = 2, ends: int = 1, farm: bool = False
) -> Plan:
    """Draw a plan: so many workers die, so many hang, and the run is ended so many times before its end.

    A farm cannot be resumed, and an item that fails ends it: neither happens there.
    """
    rng = Random(seed)  # noqa: S311  (nothing here is secret)
    workers, rounds, ends = rng.randint(6, 8), 600 if farm else 120, 0 if farm else ends
    most = rounds * 3 // 4  # the last rounds show what has become of the run
    others = [worker for worker in range(workers) if worker != HEALTHY]
    hanging = [others.pop(rng.randrange(len(others))) for _ in range(hangs)]
    ends_at = {worker: rng.randint(most // 2, most) for worker in rng.sample(others, deaths)}
    chosen = [(worker, round, rng.choice([*DEATHS])) for worker, round in ends_at.items()]
    together = rng.randint(10, most)  # each alone would cost a deadline
    chosen += [(worker, together, "stop") for worker in hanging]
    for _ in range(faults - deaths - hangs - ends):
        worker = rng.choice(others)
        round = rng.randrange(1, ends_at.get(worker, most))
        chosen.append((worker, round, rng.choice(SLOW if farm else [*FAILURES, *GARBAGE, *SLOW])))
    chosen += [(NOBODY, rng.randint(5, most), "terminate") for _ in range(ends)]
    chosen.sort(key=itemgetter(1))
    found = tuple(_fault(rng, number, *fault) for number, fault in enumerate(chosen))
    exchange = "star" if farm else rng.choice(["star", "star", "chain"])
    dimension = 2000 if exchange == "chain" else rng.choice([10, 2000])  # small arrays go by the star
    ways = CHAINED if exchange == "chain" else [way for way in WAYS if way != "owned"]
    way = "farm" if farm else rng.choice(ways)
    return Plan(seed, workers, rounds, way, rng.randint(9, 20), dimension, found, exchange)


def _fault(rng: Random, number: int, worker: int, round: int, kind: str) -> Fault:
    """Draw the rest of a fault."""
    outside = kind in ("pause", "freeze", "terminate") or (kind == "kill" and rng.random() < 0.5)
    seconds = rng.uniform(0, 1) if kind == "stop" else rng.uniform(0.02, 0.1)
    seconds += kind == "freeze"  # longer than clocks may differ
    return Fault(number, worker, round, kind, seconds, outside)
