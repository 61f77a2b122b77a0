"""Keeps a run in its file: where it starts from, what is saved of it, how it goes on."""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.clusters import Cluster, in_flight
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError, diverged
from mpi_ata.job.component import Table, one_line
from mpi_ata.job.schema import Job, load_again, problem_of
from mpi_ata.methods import Method
from mpi_ata.runfile.checkpoints import Checkpoints, fresh_path
from mpi_ata.runfile.prior import (
    Prior,
    RunStats,
    counted,
    discount,
    kept_workers,
    match_prior,
    merge_runs,
    same_workers,
)
from mpi_ata.runfile.record import Record, from_tree
from mpi_ata.runfile.store import DamagedError, RunFile, check_place

Note = Callable[[str], None]
MOST_REFUSALS = 3  # of files in a folder that are told one by one
NONE = np.zeros(0, np.int64)
ANOTHER_ALLOCATOR = ("allocator.name", "allocator.file", "allocator.class")


@dataclass(frozen=True)
class OutputOptions:
    """How the user wants a run to be kept."""

    out: Path | None = None  # a fresh name in runs/, if not given
    resume: bool = False
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False

    def check(self) -> None:
        """Refuse what cannot be, before anything else is done."""
        if self.out is not None:
            check_place(self.out)
            exists = RunFile(self.out).exists()
            if exists and not self.resume:
                there = self.out if self.out.exists() else RunFile(self.out).previous
                raise UsageError(f"{there}: exists; go on with it by --resume, or choose another --out")
            if exists:
                return
        elif self.resume:
            raise UsageError("--resume goes on with a run; say with which one: --out RUN.h5 --resume")
        self.check_prior()

    def check_prior(self) -> None:
        """Refuse a warm start from nothing."""
        if not 0 < self.prior_weight <= 1:
            raise UsageError(f"--prior-weight {self.prior_weight:g} must be above 0 and at most 1")
        if self.prior_weight < 1 and not self.warm_start:
            raise UsageError("--prior-weight says how much --warm-start counts, but there is none; add one")
        if self.any_problem and not self.warm_start:
            raise UsageError("--any-problem says what --warm-start may take, but there is none; add one")
        for path in self.warm_start:
            if not os.path.exists(path) and not os.path.exists(f"{path}.previous"):
                raise UsageError(f"--warm-start {path}: there is no such run file or folder")

    def open(self, job: Job, note: Note) -> tuple[Job, "RunRecorder"]:
        """The job as it is to be run, and who keeps the run; on the manager only."""
        self.check()
        file = RunFile(self.out or fresh_path(job.path))
        if file.exists():
            if self.warm_start:
                note(f"{file.path} goes on with what it knows; --warm-start is for new runs")
            return self._again(job, file, note)
        if self.resume:
            note(f"there is no {file.path} yet: the run starts afresh")
        sources = self.sources(job, note)
        if self.warm_start and not sources:
            folders = ", ".join(map(str, self.warm_start))
            note(f"found no run to warm-start from in {folders}: all workers start cold")
        return job, RunRecorder(job, file, note, sources=sources)

    def sources(self, job: Job, note: Note) -> list[RunStats]:
        """What earlier runs know of the workers, for a new run; refuses files that do not fit the job."""
        known = merge_runs(_sources(self.warm_start, None if self.any_problem else job, note))
        return [discount(source, self.prior_weight) for source in known]

    def _again(self, job: Job, file: RunFile, note: Note) -> tuple[Job, "RunRecorder"]:
        record, complaint = load_named(file)
        if complaint:
            note(complaint)
        job, changes = load_again(job.path, record.job, job.source.settings)
        return job, RunRecorder(job, file, note, record, changes=changes)

    def finished(self, job: Job) -> Record | None:
        """The record of a run that is to go on, but has reached its limit, and nothing is changed."""
        if not self.resume or self.out is None or not RunFile(self.out).exists():
            return None
        record, complaint = load_named(RunFile(self.out))
        changes = load_again(job.path, record.job, job.source.settings)[1]
        return record if record.reason and not changes and not complaint else None

    def continued(self, job: Job) -> Job:
        """The job as it is to be run; where a run goes on, with what --set has changed in it before."""
        if self.out is None or not RunFile(self.out).exists():
            return job
        record, _ = load_named(RunFile(self.out))
        return load_again(job.path, record.job, job.source.settings)[0]


def load(file: RunFile) -> tuple[Record, str]:
    """The record in a run file's newest intact generation; and a word on a newer one that is not."""
    attributes, groups, complaint = file.load()
    try:
        return from_tree(attributes, groups), complaint
    except DamagedError as error:
        raise DamagedError(f"{file.path}: {error}") from None


def load_named(file: RunFile) -> tuple[Record, str]:
    """The same of the very run that the user wants, with a way out where nothing of it is whole."""
    try:
        return load(file)
    except DamagedError as error:
        raise DamagedError(f"{error}; put back a copy of it, or start anew with another --out") from None


def _sources(paths: Iterable[Path], job: Job | None, note: Note) -> Iterator[RunStats]:
    """What the runs in these files and folders know; those of another problem than the job's are refused."""
    for path in paths:
        if not path.is_dir():
            yield from _known_to(path, job, note)
            continue
        refused = 0
        for file in _files_in(path):
            try:
                yield from _known_to(file, job, note)
            except UsageError as error:
                refused += 1
                if refused <= MOST_REFUSALS:
                    note(f"not taken into account: {error}")
        if refused > MOST_REFUSALS:
            note(f"not taken into account: {refused - MOST_REFUSALS:,} more files in {path}")


def _known_to(file: Path, job: Job | None, note: Note) -> list[RunStats]:
    """What one run knows, by itself and from those before it."""
    record, complaint = load(RunFile(file))
    if complaint:
        note(complaint)
    if job is not None:
        _check_problem(file, record, job)
    return [*record.prior, record.source]


def _files_in(folder: Path) -> list[Path]:
    """The run files of a folder; one that was hit while being replaced has left its older generation."""
    older = (file.with_suffix("") for file in folder.glob("*.h5.previous"))
    return sorted({*folder.glob("*.h5"), *older})


def _check_problem(file: Path, record: Record, job: Job) -> None:
    (then, then_file), (now, now_file) = problem_of(record.job), problem_of(job.source)
    keys = [key for key in {**then, **now} if key != "file" and then.get(key) != now.get(key)]
    differing = [f"{key} = {_said(then, key)}, here {_said(now, key)}" for key in keys]
    if then_file != now_file:
        differing.append("another problem file")
    if differing:
        raise UsageError(
            f"{file}: is of another problem ({'; '.join(differing)}), whose tasks take other times; "
            "take it all the same with --any-problem"
        )


def _said(table: Table, key: str) -> str:
    return repr(table[key]) if key in table else "not given"


def _allocator_of(method: Method) -> Allocator | None:
    """Who decides the quotas; a method of the user's own need not tell."""
    allocator: Allocator | None = getattr(method, "allocator", None)
    return allocator


def _missing(method: Method) -> str:
    """What the user's own parts of a method lack so that a run could go on in another process."""
    for part in (method, _allocator_of(method), getattr(method, "update", None)):
        if part is not None and not (hasattr(part, "state") and hasattr(part, "restore")):
            return f"{type(part).__name__} has no state() and restore(state)"
    return ""


class RunRecorder:
    """Saves a run as it goes, and lets it begin where an earlier one has ended."""

    def __init__(
        self,
        job: Job,
        file: RunFile,
        note: Note,
        earlier: Record | None = None,
        sources: list[RunStats] | None = None,
        changes: Iterable[str] = (),
    ) -> None:
        self.path = file.path
        self.resumable = True
        self._job, self._note = job, note
        self._earlier, self._sources, self._changes = earlier, sources or [], list(changes)
        self._checkpoints = Checkpoints(file, job.run.checkpoint_rounds, job.run.checkpoint_seconds, note)
        self._record = earlier or Record(secrets.token_hex(16), job.source, (), {}, prior=self._sources)

    def begin(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Bring a run to where it starts from, and see that it can be saved."""
        missing = _missing(method)
        self.resumable = not missing
        if missing and self._earlier is None:
            self._note(f"{missing}: the run is recorded, but cannot be resumed")
        if self._earlier is None:
            self._say("started", f"on {counted(cluster.n, 'worker')}")
            self._warm_start(method, cluster)
        else:
            try:
                if missing:
                    raise ValueError(missing)
                self._resume(self._earlier, method, cluster, trace)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise UsageError(f"{self.path}: cannot go on: {one_line(error)}") from None
        self._record.job, self._record.identities, self._record.reason = (
            self._job.source,
            cluster.identities,
            "",
        )
        self._checkpoints.save_first(self._filled(method, cluster, trace))

    def _warm_start(self, method: Method, cluster: Cluster) -> None:
        if self._sources and (allocator := _allocator_of(method)) is not None:
            self._inherit(allocator, match_prior(self._sources, cluster.identities))

    def _inherit(self, allocator: Allocator, known: Prior) -> None:
        if hasattr(allocator, "inherit"):
            allocator.inherit(known.rounds, known.columns)
            self._say("warm-started", known.summary())
        else:
            self._note(f"{type(allocator).__name__} has no inherit(rounds, known), so it starts anew")

    def _resume(self, record: Record, method: Method, cluster: Cluster, trace: Trace) -> None:
        method.restore(record.method)
        trace.restore(record.totals, record.trace, record.figures)
        self._say("resumed", f"at round {method.k:,} on {counted(cluster.n, 'worker')}")
        for change in self._changes:
            self._say("changed", change)
        exchanged = any(change.startswith(ANOTHER_ALLOCATOR) for change in self._changes)
        same = same_workers(record.identities, cluster.identities)
        if same:
            cluster.restore(record.cluster)
            cluster.ledger.stats.restore(record.workers)
        else:
            self._move(record, method, cluster, trace)
        allocator = _allocator_of(method)
        if allocator is not None and same and not exchanged:
            allocator.restore(record.allocator)
        elif allocator is not None:
            self._inherit(allocator, match_prior([*record.prior, record.source], cluster.identities, True))

    def _move(self, record: Record, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Go on with other workers: those that are gone are dropped."""
        if getattr(method, "owns_data", False) and len(record.identities) != cluster.n:
            raise ValueError(
                f"each worker owns its part of the data, and there were {len(record.identities)} workers; "
                f"now there are {cluster.n}"
            )
        rows = kept_workers(record.identities, cluster.identities)
        cluster.ledger.take_over(record.workers, rows)
        trace.lost += int(in_flight(record.cluster).sum())
        trace.earlier = trace.worker_time

    def after_round(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Save, if it is time."""
        if self._checkpoints.due(method.k):
            self._checkpoints.save(self._filled(method, cluster, trace))

    def remains(self) -> str:
        """What is left of a run that failed, and the way on."""
        if not self.resumable:
            return f"{self.path} has recorded it up to round {self._checkpoints.latest:,}"
        where = f"{self.path} holds it up to round {self._checkpoints.latest:,}"
        return f"{where}; once it is mended, go on with --out {self.path} --resume"

    def end(self, method: Method, cluster: Cluster, trace: Trace, reason: str | None, by: str) -> None:
        """Save for the last time: the state as it is, so that the run can go on, and what it came to."""
        self._record.event(time.time(), "ended", reason or f"early, by {by}")
        if reason is None:
            trace.end()
        record = self._filled(method, cluster, trace, reason)
        if reason is not None:
            if record.cluster.get("stopping", NONE).any():  # those who were stopped may take their time
                self._checkpoints.save_last(record)
            trace.settle(cluster)
            record.summary |= trace.summary()
        self._checkpoints.save_last(record)

    def _filled(self, method: Method, cluster: Cluster, trace: Trace, reason: str | None = None) -> Record:
        if not np.isfinite(method.x).all():  # what was saved before is still good
            raise diverged(method.k)
        record = self._record
        allocator = _allocator_of(method)
        record.method = {"k": np.array(method.k)} | (method.state() if self.resumable else {"x": method.x})
        record.allocator = allocator.state() if self.resumable and allocator is not None else {}
        record.cluster = cluster.state()
        record.workers = cluster.ledger.stats.state() | {"unfinished": cluster.ledger.stopped_time.copy()}
        record.totals, record.trace, record.figures = trace.totals(), trace.history(), trace.evaluations()
        record.summary = trace.summary() | {"workers": cluster.n, "saving": self._checkpoints.cost}
        record.reason = reason or ""
        return record

    def _say(self, kind: str, text: str) -> None:
        self._record.event(time.time(), kind, text)
        if kind != "started":
            self._note(f"{kind} {text}")
