"""A run at one moment as one screenful of text."""

import math
import time

import numpy as np

from mpi_ata.arrays import Array, BoolArray, IntArray
from mpi_ata.runfile.prior import counted
from mpi_ata.view.progress import after_setup, part_done, time_left
from mpi_ata.view.screen import curve
from mpi_ata.view.snapshot import Snapshot, Workers
from mpi_ata.view.text import aligned, duration, rate, share, significant

CURVE = 40  # columns of the curve
LISTED = 3  # workers of each kind
NUMBERS = 12  # of idle workers, before the others are only counted


def snapshot_text(run: Snapshot) -> str:
    """Return one screenful about a run."""
    head = f"{run.title} on {counted(run.workers.n, 'worker')}"
    rows = [("round", _round(run)), *_loss(run), *_times(run), *_workers(run.workers)]
    events = [("" if i else "events", text) for i, text in enumerate(run.events)]
    state = [run.state] if run.state else []
    lines = [head, *state, "", *aligned([*rows, *events]).split("\n")]
    return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """Return a line without codes for terminals, which names in a run file might contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _round(run: Snapshot) -> str:
    of = f" of {run.stop.rounds:,}" if run.stop.rounds else ""
    parts = [f"{run.round:,}{of}", rate(run.round, after_setup(run))]
    if done := part_done(run, run.stop):
        parts.insert(1, f"{100 * done:.1f} %")
    if not run.at_rest and (left := time_left(run, run.stop)) < math.inf:
        parts.append(f"at most {duration(left)} to go, until {_clock_time(time.time() + left)}")
    return ", ".join(parts)


def _clock_time(when: float) -> str:
    """Return a time of the next day's length as a time of day, a later one with its date."""
    form = "%H:%M:%S" if when - time.time() < 86400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(when))


def _loss(run: Snapshot) -> list[tuple[str, str]]:
    if not math.isnan(run.gap):
        return [("gap", f"{run.gap:.2e}  {curve(run.losses, CURVE)}")]
    return [] if math.isnan(run.loss) else [("loss", f"{run.loss:.5g}  {curve(run.losses, CURVE)}")]


def _times(run: Snapshot) -> list[tuple[str, str]]:
    billed = [] if run.billed is None else [("billed", f"{duration(run.billed)}: cores x elapsed")]
    waste = f"{significant(run.waste, 4)} s of it wasted, {share(run.waste, run.worker_time)}"
    return [
        ("clock", f"{significant(run.clock, 4)} s, {duration(run.elapsed)} elapsed"),
        ("worker time", f"{significant(run.worker_time, 4)} s, {waste}"),
        *billed,
    ]


def _workers(workers: Workers) -> list[tuple[str, str]]:
    """Return the busiest, the slowest, the idle and the missing workers."""
    known = np.flatnonzero(~np.isnan(workers.means))
    return [
        *_listed("busiest", workers, _largest(known, workers.seconds)),
        *_listed("slowest", workers, _largest(known, workers.means)),
        *_numbers("idle", workers, workers.idle & workers.available, f", since round {workers.since}"),
        *_numbers("missing", workers, ~workers.available),
    ]


def _largest(among: IntArray, values: Array) -> IntArray:
    """Return those with the largest values, the largest first."""
    return among[np.argsort(-values[among], kind="stable")[:LISTED]]


def _listed(name: str, workers: Workers, chosen: IntArray) -> list[tuple[str, str]]:
    return [("" if i else name, _worker(workers, worker)) for i, worker in enumerate(chosen.tolist())]


def _worker(workers: Workers, worker: int) -> str:
    part = share(float(workers.seconds[worker]), float(workers.seconds.sum()))
    mean, host = duration(workers.means[worker]), workers.identities[worker].host
    return f"worker {worker} ({host}): {mean} per task, {part} of worker time"


def _numbers(name: str, workers: Workers, which: BoolArray, since: str = "") -> list[tuple[str, str]]:
    chosen = np.flatnonzero(which).tolist()
    if not chosen:
        return []
    more = f" and {len(chosen) - NUMBERS:,} more" if len(chosen) > NUMBERS else ""
    return [(name, f"{len(chosen):,} of {workers.n:,}: {', '.join(map(str, chosen[:NUMBERS]))}{more}{since}")]
