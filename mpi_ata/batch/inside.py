"""What runs inside a batch job: the ranks of a run, the signals for them, and requeueing."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mpi_ata import launch
from mpi_ata.batch.bad_nodes import exclude_at_fault, until_accepted
from mpi_ata.batch.give_back import FIRST_SECONDS, LONGEST_SECONDS, spare_hosts
from mpi_ata.batch.interface import LEAD_SECONDS, SIGNAL, Allocation, QueuedJob, scheduler
from mpi_ata.batch.submission_dir import Attempt, JobCopy, SubmissionDir, write_atomically
from mpi_ata.batch.submit import array_args, check_signal, common_settings, output_args, setting_args
from mpi_ata.driver.jobs import specify_jobs
from mpi_ata.driver.plan import SUBMITTED, OutputOptions
from mpi_ata.errors import CONTINUE, RunError, UsageError, command_line, printable
from mpi_ata.job import load_job
from mpi_ata.launch.environment import CORES, RELEASED, STARTED, job_start
from mpi_ata.launch.exit_report import FAILURE_VARIABLE, REPORT_VARIABLE, read_report
from mpi_ata.launch.signals import SIGNAL_VARIABLE
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.hosts import ended_by_loss
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.progress import Progress, is_finished, member_runs, read_progress
from mpi_ata.runfile.schema import Event
from mpi_ata.runfile.store import RunFile


@dataclass(frozen=True)
class BatchJob:
    """What to run in this batch job: the options of `mpi-ata batch`."""

    jobs: tuple[Path, ...]
    output: OutputOptions
    settings: tuple[str, ...] = ()
    array: tuple[str, ...] = ()  # of one job, or of several that share the ranks: then there are more runs
    at_once: int | None = None
    submission_dir: Path | None = None  # None in a script of the user's own
    siblings: bool = False  # warm-start from finished runs of the same sweep
    requeue: bool = True
    signal: str = SIGNAL
    lead: int | None = None  # seconds before the end of the batch job; None: as measured
    args: tuple[str, ...] = ()  # of a script
    give_back: bool = False  # nodes that the run can do without

    def __post_init__(self) -> None:
        check_signal(self.signal)

    @property
    def run(self) -> Path:
        """Return the run file; where jobs share the ranks, the folder of their run files."""
        name = f"{self.jobs[0].stem}-{scheduler().inside().id or 'local'}"
        return self.output.out or RUNS / (name if self.shared else f"{name}.h5")

    @property
    def shared(self) -> bool:
        """Return whether several runs share the ranks."""
        return len(self.jobs) > 1 or bool(self.array)

    @property
    def is_script(self) -> bool:
        """Return whether this is a script, not a job file."""
        return self.jobs[0].suffix == ".py"

    @property
    def dir(self) -> SubmissionDir:
        """Return the folder of the submission."""
        return SubmissionDir(self.submission_dir or SubmissionDir.of_run(self.run).path)

    @property
    def failure_file(self) -> Path:
        """Return the file that says why the run failed."""
        return self.dir.failure_file(self.run)

    @property
    def stopped(self) -> bool:
        """Return whether `mpi-ata stop` has ended the run."""
        return self.dir.stop_file(self.run).exists()

    def prepared(self) -> "BatchJob":
        """Return what to run: in a script that mpi-ata did not write, a copy in a submission folder."""
        if self.submission_dir is not None:
            return self
        jobs, more = copy_jobs_once(self)
        ids = tuple(filter(None, [scheduler().inside().id]))
        if not self.dir.exists() or ids != self.dir.manifest().jobs:
            self.dir.clear(self.run)
            self.dir.record_jobs(ids, [self.run.absolute()], self.is_script)
        return replace(self, jobs=jobs, settings=(*self.settings, *more))

    def command(self) -> list[str]:
        """Return the command that starts the ranks."""
        launcher = scheduler().launcher() if scheduler().inside().tasks > 1 else []
        if self.is_script:
            words = [str(self.jobs[0]), *self.args, *(f"--{setting}" for setting in self.settings)]
            return [*launcher, *launch.script_command(words)] if launcher else [sys.executable, *words]
        args = ["run", *map(str, self.jobs), *output_args(self._output()), *setting_args(self.settings)]
        return [*launcher, *launch.rank_command([*args, *array_args(self.array, self.at_once)])]

    def _output(self) -> OutputOptions:
        return replace(self.output, out=self.run, resume=True, warm_start=self._warm_start())

    def environment(self) -> dict[str, str]:
        """Return what a script needs to know of its submission."""
        if not self.is_script:
            return {}
        return {SUBMITTED: json.dumps(asdict(self._output()) | {"out": self.run.absolute()}, default=str)}

    def progress(self, verified: bool = False) -> Progress:
        """Return how far the run is; a script may do several, and is finished when it says so itself."""
        found = read_progress(self.run, verified)
        if not self.is_script:
            return found
        others = self.run.parent.glob(f"{self.run.stem}.[0-9]*{self.run.suffix}")
        rounds = found.rounds + sum(read_progress(each).rounds for each in others)
        return replace(found, rounds=rounds, finished=self.dir.is_finished(self.run))

    def _warm_start(self) -> tuple[Path, ...]:
        """Return the runs to warm-start from; none for a run that is resumed, which has had its own."""
        if RunFile(self.run).exists() or self.run.is_dir():
            return ()
        sweep = self.dir.manifest().runs if self.siblings else ()
        finished = [path for path in sweep if path != self.run and is_finished(path)]
        return (*self.output.warm_start, *finished)


def copy_jobs_once(batch: BatchJob) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Copy jobs when they start for the first time; return the copies and the settings that they need."""
    copied = batch.dir.path / "copied.json"
    if not copied.exists():
        if batch.is_script:
            copy = JobCopy.of_script(batch.jobs[0], batch.dir.files)
        else:
            specs = specify_jobs(batch.jobs, batch.settings, batch.array)
            copy = JobCopy.of([load_job(spec.path, spec.settings) for spec in specs], batch.dir.files)
        copy.make()
        text = {"jobs": list(map(str, copy.jobs)), "settings": common_settings(copy.settings)}
        write_atomically(copied, json.dumps(text))
    found = json.loads(copied.read_text())
    return tuple(map(Path, found["jobs"])), tuple(found["settings"])


def should_requeue(batch: BatchJob, job: QueuedJob) -> bool:
    """Return whether to requeue this batch job: not if its user ended it, or it has been requeued."""
    requeued = job.restarts != scheduler().inside().restarts
    return batch.requeue and not requeued and not job.cancelled and not batch.stopped


def note(text: str) -> None:
    """Print a line to the log of the batch job."""
    print(printable(text), file=sys.stderr, flush=True)


POLL_SECONDS = 0.2  # between two checks of the launcher and the signals
LOOK_SECONDS = 5.0  # between two looks for the stop file, on a file system that others use too
EARLIEST_SECONDS = 2.0 * LEAD_SECONDS + 30  # before the end: at the default lead, Slurm warns no earlier
SAVE_MARGIN_SECONDS = 10.0  # to end all ranks and to requeue, on top of a round and a save


def save_warning(progress: Progress, limit: float | None) -> float:
    """Return how many seconds before the end a run must be asked to save: for a round, a save and the end."""
    limit = limit or 4.0 * LEAD_SECONDS
    if not progress.rate:
        return min(LEAD_SECONDS, limit / 4)
    return min(SAVE_MARGIN_SECONDS + 3 * (1 / progress.rate + progress.saving), limit / 2)


class Watch:
    """A running launcher, and the signals that are meant for its ranks."""

    def __init__(self, batch: BatchJob, inside: Allocation) -> None:
        self._batch, self._inside = batch, inside
        self._signal = signal.Signals[f"SIG{batch.signal}"]
        self._came: set[int] = set()  # signals since the last poll
        self._forwarded = False  # whether the ranks have been asked to save
        self._began = 0.0  # when nodes were given back, and the ranks started again
        self._next_check = 0.0  # when to compare the time left with what a save needs
        self._next_look = 0.0  # when to look for the stop file
        self._latest: QueuedJob | None = None
        self._requeued = False  # whether this job has been requeued already
        self._spare: list[str] = []  # hosts to give back once the ranks have ended
        self._keep: list[str] = []  # nodes that are enough once this job is requeued
        self._look_pause = FIRST_SECONDS if batch.give_back else math.inf  # until the next look for some
        self._next_spare_look = time.monotonic() + self._look_pause
        for number in (self._signal, signal.SIGTERM):  # before anything else: they may come at any time
            signal.signal(number, lambda number, _: self._came.add(number))

    def run(self) -> int:
        """Start the ranks, wait for their end, and return the exit code of the launcher."""
        report = self._batch.dir.report_file(self._batch.run)
        report.unlink(missing_ok=True)
        environment = os.environ | {
            FAILURE_VARIABLE: str(self._batch.failure_file.absolute()),
            SIGNAL_VARIABLE: self._batch.signal,
            REPORT_VARIABLE: str(report.absolute()),
            STARTED: str(self._began or min(job_start(), self._inside.began)),
            CORES: str(scheduler().inside().cores),
            **self._batch.environment(),
        }
        launch.set_mpi_defaults(environment)
        with subprocess.Popen(self._batch.command(), env=environment) as self._child:  # noqa: S603
            try:
                code = self._wait()
            finally:
                self._child.kill()  # if it has not ended
        if not self._batch.is_script:
            return code
        starts_ranks = self._inside.tasks <= 1  # itself, and has the exit code of its manager
        reported = code if starts_ranks and code >= 0 else read_report(report).code
        if reported not in (None, 0, CONTINUE) and not self._batch.failure_file.exists():
            self._batch.failure_file.write_text(
                f"the script has ended with exit code {reported}; see the log"
            )
        return code if reported is None else reported

    def host_that_ended_ranks(self) -> str:
        """Return the host of the worker whose death made the MPI end all ranks; empty if that is not why."""
        report = read_report(self._batch.dir.report_file(self._batch.run))
        # The first to die is the cause; a signal, or the scheduler after it, may end ranks in any order.
        return report.lost[0].host if report.lost and not self._forwarded else ""

    def _wait(self) -> int:
        while True:
            try:
                return self._child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                self._poll()

    def _poll(self) -> None:
        """Ask the ranks to save and leave if a signal says so, or if little time is left."""
        came, self._came = self._came, set()
        if signal.SIGTERM in came or (came and not self._warned_too_early()) or self._stop_found():
            self._spare = []  # this job ends, or is requeued
            self._forward()
        elif not self._forwarded and time.monotonic() >= self._next_check and self._time_is_up():
            note(f"the time of this {scheduler().NAME} job is nearly up")
            self._forward()
        elif not self._forwarded and time.monotonic() >= self._next_spare_look and self._find_spare():
            note(f"the run can do without {', '.join(self._spare)}")
            self._forward()

    def _find_spare(self) -> bool:
        """Return whether the run, as last saved, can do without some nodes; look less and less often."""
        self._look_pause = min(2.0 * self._look_pause, LONGEST_SECONDS)
        self._next_spare_look = time.monotonic() + self._look_pause
        with suppress(RunError, UsageError):
            record, _ = load_record(RunFile(self._batch.run))
            spare = spare_hosts(record, launch.host_name(), self._batch.run)
            nodes = scheduler().expand_nodes(self._inside.nodes) if spare else []
            self._keep = [node for node in nodes if node not in spare]
            if self._keep and scheduler().can_shrink():
                self._spare = spare
            elif self._keep:
                self._stay("it is not allowed here")
        return bool(self._spare)

    def _stay(self, why: str) -> None:
        self._next_spare_look = math.inf
        note(
            f"{scheduler().NAME} takes no nodes back, so {len(self._keep)} must do once it is requeued: {why}"
        )

    def give_back(self) -> bool:
        """Give back the spare nodes, once, and return whether to start the ranks again on the others."""
        spare, self._spare = self._spare, []
        progress, batch = read_progress(self._batch.run, verified=True), self._batch
        over = progress.finished or batch.stopped or batch.failure_file.exists() or self._came
        if not spare or over or self._inside.id is None:
            return False
        if error := scheduler().shrink(self._inside.id, self._keep):
            self._stay(error)
        else:
            note(f"saved at round {progress.rounds:,}, gave back {', '.join(spare)}")
            os.environ[RELEASED], self._keep = ", ".join(spare), []
        self._forwarded, self._next_spare_look, self._began = False, math.inf, time.time()
        return True

    def resize(self, job: QueuedJob) -> None:
        """Let this job, which has been requeued, have fewer nodes, where they could not be given back."""
        if self._keep and (error := until_accepted(lambda: scheduler().resize(job.id, self._keep))):
            note(f"requeued on as many nodes as before: {error}")

    def _stop_found(self) -> bool:
        """Return whether `mpi-ata stop` has ended the run, whose signal does not reach a suspended job."""
        if self._forwarded or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        return self._batch.stopped

    def _forward(self) -> None:
        if not self._forwarded:
            note(f"asking the run to save and leave, by {self._batch.signal}")
        self._forwarded = True
        self._child.send_signal(self._signal)
        job = self.queued_job()
        if job is not None and job.timed_out:
            self.requeue()  # now: this process may be killed soon

    def requeue(self) -> bool:
        """Requeue this batch job, if that is wanted, once; return whether it has been requeued."""
        job = None if self._requeued else self.queued_job()
        if job is not None and should_requeue(self._batch, job):
            own = self._batch.dir.script
            script = own if own.exists() else job.script
            id, error = scheduler().requeue(job.id, script)
            self._requeued = not error
            if id not in ("", job.id):  # another batch job resumes this one
                self._batch.dir.record_jobs([id], self._batch.dir.manifest().runs)
            if error:
                again = command_line(*scheduler().submit_command(script))
                note(f"{scheduler().NAME} does not requeue this job: {error}; resume it with {again}")
        elif job is None and not self._requeued and self._batch.requeue:
            name = scheduler().NAME
            note(f"{name} cannot be asked to requeue this job: resume it with the same command")
        return self._requeued

    def _warned_too_early(self) -> bool:
        """Return whether the warning of the time limit came earlier than needed; Slurm's may by a minute."""
        job = self.queued_job()
        if job is None or job.time_left is None or job.preempted or job.phase != "running":
            return False
        self._next_check = time.monotonic()
        return self._needed(job) < job.time_left < EARLIEST_SECONDS and not self._batch.stopped

    def _time_is_up(self) -> bool:
        """Return whether the ranks must save now, and schedule the next check at half the time to spare."""
        job, spare = self.queued_job(), math.inf
        if job is not None and job.time_left is not None:
            spare = job.time_left - self._needed(job)
        self._next_check = time.monotonic() + max(1.0, min(600.0, spare / 2))
        return spare <= 0

    def _needed(self, job: QueuedJob) -> float:
        """Return how many seconds before the end the ranks must be asked to save."""
        return self._batch.lead or save_warning(read_progress(self._batch.run), job.time_limit)

    def queued_job(self) -> QueuedJob | None:
        """Return this batch job as the scheduler describes it now, or did when it last answered."""
        if self._inside.id is not None:
            with suppress(RunError, UsageError, ValueError):  # the last: it prints something unexpected
                found = scheduler().jobs(self._inside.id)
                self._latest = found[0] if found else None
        return self._latest


MAX_STALLED = 3  # starts in a row that begin at the same round
MAX_RESTARTS = 1000  # of one batch job, by the scheduler's own count, whatever is recorded here


def run_batch(batch: BatchJob) -> int:
    """Run until the run is finished or its time is up, and return the exit code of the batch script."""
    for run in member_runs(batch.run) if batch.run.is_dir() else [batch.run]:
        RunLock(run).check()  # first: what is recorded below belongs to the run that has the lock
    try:
        batch = batch.prepared()
    except OSError as error:
        raise UsageError(f"{batch.dir.path} cannot be written: {error.strerror}; use another --out") from None
    try:
        return start(batch)
    except (RunError, UsageError) as error:
        with suppress(OSError):
            batch.failure_file.write_text(str(error))
        raise


def start(batch: BatchJob) -> int:
    """Start the ranks unless there is nothing to do, and wait for their end."""
    inside = scheduler().inside()
    watch = Watch(batch, inside)
    before = batch.progress(verified=True)
    if before.finished:
        note(f"{batch.run} is already finished, after {before.rounds:,} rounds")
        return 0
    if batch.stopped:
        note(f"{batch.run} was stopped; to resume it, submit it again with --resume")
        return CONTINUE
    check_progress(batch, before, inside)
    again = True
    while again:
        attempt = Attempt(inside.id or "", time.time(), inside.cores, before.rounds, inside.nodes)
        batch.dir.record_attempt(batch.run, attempt)
        batch.failure_file.unlink(missing_ok=True)
        code = watch.run()
        again = watch.give_back()
        if again:
            batch.dir.record_attempt(batch.run, replace(attempt, ended=time.time(), end="released"))
            inside, before = scheduler().inside(), read_progress(batch.run)
    end, exit_code = conclude(batch, watch, code, attempt.began)
    with suppress(RunError):  # if the run was requeued, its next start is rejected for the same reason
        batch.dir.record_attempt(batch.run, replace(attempt, ended=time.time(), end=end))
    return exit_code


def check_progress(batch: BatchJob, before: Progress, inside: Allocation) -> None:
    """Reject one more start after very many, or at a round that several in a row did not get beyond."""
    if inside.restarts > MAX_RESTARTS:
        often = f"this {scheduler().NAME} job was restarted {inside.restarts:,} times"
        raise RunError(f"{often}, which is too often: see the log for why, and submit it again with --resume")
    submitted, attempts = batch.dir.manifest().jobs, batch.dir.attempts(batch.run)
    own = [each for each in attempts if each.job == inside.id or scheduler().array_id(each.job) in submitted]
    latest = own[-MAX_STALLED:]
    if len(latest) == MAX_STALLED and all(attempt.rounds == before.rounds for attempt in latest):
        stalled = f"{MAX_STALLED} starts in a row got no further than round {before.rounds:,}"
        advice = "see the log for why; if a round takes longer than the time limit, ask for more time"
        raise RunError(f"{stalled}: {advice}")


def conclude(batch: BatchJob, watch: Watch, code: int, began: float) -> tuple[str, int]:
    """Return how a start ended, for its record, and the exit code of the batch script; requeue if needed."""
    after = batch.progress(verified=True)
    if batch.is_script:
        after = replace(after, finished=code == 0, failure="")
    if after.finished and after.failure:  # of several jobs, of which none can proceed
        cancel_rest_of_chain(batch)
        return "failed", 1
    if after.finished:
        cancel_rest_of_chain(batch)
        note(f"finished after {after.rounds:,} rounds: {batch.run}")
        return "finished", 0
    if batch.failure_file.exists() and not ended_by_loss(recorded_events(batch.run), since=began):
        cancel_rest_of_chain(batch)
        return "failed", 2 if code == 2 else 1
    note(f"saved at round {after.rounds:,}, not finished (the launcher exited with {code}): {batch.run}")
    if batch.stopped:
        return "stopped", CONTINUE
    if not watch.requeue():
        return "left", CONTINUE
    if job := watch.queued_job():
        watch.resize(job)
        host = watch.host_that_ended_ranks()
        if text := exclude_at_fault(recorded_events(batch.run), host, job):
            note(text)
    return "requeued", CONTINUE


def recorded_events(run: Path) -> Sequence[Event]:
    """Return the events of a run, or of all in a folder; none if a file cannot be read."""
    if run.is_dir():
        return [event for member in member_runs(run) for event in recorded_events(member)]
    try:
        return load_record(RunFile(run))[0].events
    except UsageError:
        return ()


def cancel_rest_of_chain(batch: BatchJob) -> None:
    """Cancel the later batch jobs of a chain, which have nothing left to do."""
    own, chain = scheduler().inside().id, batch.dir.manifest().jobs
    if not batch.requeue and own in chain:
        scheduler().cancel(*chain[chain.index(own) + 1 :])
