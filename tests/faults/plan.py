"""Scripts of faults: what goes wrong with which worker in which round, drawn from a seed."""

from dataclasses import asdict, dataclass
from operator import itemgetter
from random import Random
from typing import Any

FAILURES = {"raise": "failed", "memory": "failed", "text": "failed"}
GARBAGE = dict.fromkeys(("nan", "infinity", "shape", "none"), "bad-result")
DEATHS = dict.fromkeys(("kill", "segfault", "abort", "exit-0", "exit-3", "sys-exit"), "lost")
HANGS = {"stop": "overdue"}
EVENTS = FAILURES | GARBAGE | DEATHS | HANGS  # kinds of faults, and the kind of event that each must cause
SLOW = ("crawl", "pause")  # what causes none: nobody is overdue before the deadline
HEALTHY = 0  # the worker that nothing happens to, so that somebody is always left
NOBODY = -1


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one worker from a round on: in its task, or caused from outside."""

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
    rounds: int
    allocator: str
    budget: int
    dimension: int
    faults: tuple[Fault, ...]


def drawn(seed: int, deaths: int, faults: int = 26, hangs: int = 2, ends: int = 1) -> Plan:
    """Draw a plan: so many workers die, so many hang, and the run is ended so many times before its end."""
    rng = Random(seed)  # noqa: S311  (nothing here is secret)
    workers, rounds = rng.randint(6, 8), 120
    most = rounds * 3 // 4  # the last rounds show what has become of the run
    others = [worker for worker in range(workers) if worker != HEALTHY]
    hanging = [others.pop(rng.randrange(len(others))) for _ in range(hangs)]
    chosen = [
        (worker, rng.randint(rounds // 4, most), rng.choice([*DEATHS]))
        for worker in rng.sample(others, deaths)
    ]
    together = rng.randint(10, most)  # each alone would cost a deadline
    chosen += [(worker, together, "stop") for worker in hanging]
    chosen += [
        (rng.choice(others), rng.randint(1, most), rng.choice([*FAILURES, *GARBAGE, *SLOW]))
        for _ in range(faults - deaths - hangs - ends)
    ]
    chosen += [(NOBODY, rng.randint(5, most), "terminate") for _ in range(ends)]
    chosen.sort(key=itemgetter(1))
    found = tuple(_fault(rng, number, *fault) for number, fault in enumerate(chosen))
    allocator, dimension = rng.choice(["ata-empirical", "gta", "uta"]), rng.choice([10, 2000])
    return Plan(seed, workers, rounds, allocator, rng.randint(9, 20), dimension, found)


def _fault(rng: Random, number: int, worker: int, round: int, kind: str) -> Fault:
    """Draw the rest of a fault."""
    outside = kind in ("pause", "terminate") or (kind == "kill" and rng.random() < 0.5)
    seconds = rng.uniform(0, 1) if kind == "stop" else rng.uniform(0.02, 0.1)
    return Fault(number, worker, round, kind, seconds, outside)
