"""A run at one moment, as a live view shows it: of the run in this process, or of one in a run file."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.clusters import Cluster, WorkerIdentity
from mpi_ata.driver.trace import Trace
from mpi_ata.job.schema import tables_of
from mpi_ata.job.stop import Stop
from mpi_ata.job.values import build_table
from mpi_ata.runfile.checkpoints import LONGEST
from mpi_ata.runfile.progress import job_title
from mpi_ata.runfile.record import Record
from mpi_ata.view.learned import available_workers, measured
from mpi_ata.view.text import when

EVENTS = 3  # that are shown, the latest
QUIET = "not saved since"  # the state of a run that should have been saved again by now
PATIENCE = 2.0  # times the longest pause between two saves


@dataclass(frozen=True)
class Workers:
    """What the workers of a run did so far, one entry for each."""

    identities: Sequence[WorkerIdentity]
    available: BoolArray  # who can be given tasks
    seconds: Array  # spent on tasks, stopped ones included
    means: Array  # of the times of their tasks; NaN where none is known
    idle: BoolArray  # who has finished no task since round `since`
    since: int | None  # None: not known

    @property
    def n(self) -> int:
        """Return how many there are."""
        return len(self.means)


@dataclass(frozen=True)
class Snapshot:
    """The totals of a run, its curve, its workers and the latest events."""

    title: str
    stop: Stop
    round: int
    clock: float
    elapsed: float
    setup_time: float
    worker_time: float
    waste: float
    billed: float | None  # None: the workers are simulated
    loss: float
    gap: float
    losses: list[float]  # one for each evaluation; gaps where the minimum is known
    workers: Workers
    events: Sequence[str]
    state: str = ""  # of a run that is read from its file: finished, failed, stopped, or when it was saved
    quiet_at: float = math.inf  # when it should have been saved again

    @property
    def over(self) -> bool:
        """Return whether a run is finished or has failed: it will not be requeued."""
        return self.state.startswith(("finished", "failed"))

    @property
    def at_rest(self) -> bool:
        """Return whether a run does not change any more, unless it is resumed."""
        return self.over or self.state.startswith(("stopped", QUIET))


def snapshot_of_run(
    title: str, stop: Stop, trace: Trace, workers: Workers, events: Sequence[str]
) -> Snapshot:
    """Return a run in this process as it is now."""
    gaps = not math.isnan(trace.gap)
    return Snapshot(
        title=title,
        stop=stop,
        round=trace.round,
        clock=trace.clock,
        elapsed=trace.elapsed,
        setup_time=trace.setup_time,
        worker_time=trace.worker_time,
        waste=trace.waste,
        billed=trace.billed or None,
        loss=trace.loss,
        gap=trace.gap,
        losses=[row.gap if gaps else row.loss for row in trace.rows],
        workers=workers,
        events=events,
    )


def workers_of_cluster(
    cluster: Cluster, identities: Sequence[WorkerIdentity], before: IntArray | None, since: int
) -> Workers:
    """Return what the workers did so far; `before` are the tasks that they had finished by round `since`."""
    stats = cluster.ledger.stats.state()
    return Workers(
        identities=identities,
        available=cluster.available,
        seconds=cluster.ledger.worker_time,
        means=measured(stats)[0],
        idle=_idle(stats["tasks"], before),
        since=None if before is None else since,
    )


def snapshot_of_record(record: Record, saved: float) -> Snapshot:
    """Return a run as it was when its file was saved, at this Unix time."""
    tables, summary = tables_of(record.job), record.summary
    gaps = record.trace["gap"]
    known = bool(len(gaps)) and not math.isnan(gaps[-1])
    return Snapshot(
        title=job_title(tables),
        stop=build_table("stop", Stop, tables.get("stop", {})),
        round=int(summary["rounds"]),
        **{name: float(summary[name]) for name in ("clock", "elapsed", "worker_time", "waste")},
        setup_time=float(summary.get("setup_time", 0.0)),
        billed=summary.get("billed"),
        loss=float(summary.get("loss", math.nan)),
        gap=float(summary.get("gap", math.nan)),
        losses=(gaps if known else record.trace["loss"]).tolist(),
        workers=_workers_of_record(record),
        events=[_event_text(event.time, event.kind, event.text) for event in record.events[-EVENTS:]],
        state=_state(record, saved),
        quiet_at=_quiet_at(record, saved),
    )


def _workers_of_record(record: Record) -> Workers:
    workers = record.workers
    before, since = _earlier_tasks(record.task_map, len(record.identities), int(record.method["k"]))
    return Workers(
        identities=record.identities,
        available=available_workers(record),
        seconds=workers["seconds"] + workers["unfinished"],
        means=measured(workers)[0],
        idle=_idle(workers["tasks"], before),
        since=since,
    )


def _earlier_tasks(task_map: State, n: int, rounds: int) -> tuple[IntArray | None, int | None]:
    """Return the tasks by the last tenth of a run, and the round; None where workers were put into groups."""
    if not task_map or task_map["tasks"].shape[1] != n:
        return None, None
    rows = np.flatnonzero(task_map["round"] <= 0.9 * rounds)
    if not len(rows):
        return None, None
    return task_map["tasks"][rows[-1]], int(task_map["round"][rows[-1]])


def _idle(tasks: IntArray, before: IntArray | None) -> BoolArray:
    return np.zeros(len(tasks), np.bool_) if before is None else tasks == before


def _state(record: Record, saved: float) -> str:
    if record.failure:
        return f"failed: {record.failure}"
    if record.reason:
        return f"finished at {record.reason}"
    if record.events and (last := record.events[-1]).kind == "ended":  # "early, by Ctrl-C"
        return f"stopped {last.text.replace(',', '', 1)}; resume it with --resume"
    if time.time() > _quiet_at(record, saved):
        return f"{QUIET} {when(saved)}: it was killed, or waits; resume it with --resume if it was"
    if not int(record.summary["rounds"]):
        return f"saved at {when(saved)}, before the first round; progress is shown once it is saved again"
    return f"as saved at {when(saved)}"


def _quiet_at(record: Record, saved: float) -> float:
    """Return when a run that is alive would have been saved again; one at rest has no such time."""
    if record.reason or record.failure or (record.events and record.events[-1].kind == "ended"):
        return math.inf
    given = tables_of(record.job).get("run", {}).get("checkpoint_seconds") or 0.0
    round = float(record.summary["elapsed"]) / max(int(record.summary["rounds"]), 1)
    return saved + PATIENCE * (max(LONGEST, given) + round)


def _event_text(seconds: float, kind: str, text: str) -> str:
    return f"{when(seconds)} {kind}: {text.splitlines()[0] if text else ''}"
