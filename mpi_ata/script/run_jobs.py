"""Several runs of a script on one set of workers: the counterpart of `mpi-ata run` with several jobs."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.sharing import Share
from mpi_ata.clusters.virtual import SharedTime, SharedVirtualCluster
from mpi_ata.driver.jobs import JobRun, JobSpec, job_run, run_jobs_on_ranks, simulate_jobs
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import OutputOptions, Plan, RunStart, resolve
from mpi_ata.errors import CONTINUE, UsageError, did_you_mean
from mpi_ata.job import Parts, load_job
from mpi_ata.job.schema import RunDescription
from mpi_ata.problems import Quadratic
from mpi_ata.runfile.load import Columns
from mpi_ata.script.entry import check_arguments, end_process, entry_point
from mpi_ata.script.minimize import Request, Result, result_of, saved_result
from mpi_ata.script.ranks import Prepared, is_worker, joined, start_ranks

SHARED = ("workers", "out", "resume", "progress")  # arguments that all jobs have in common
AnyJob = Mapping[str, Any] | str | Path


@entry_point
def run_jobs(
    jobs: Sequence[AnyJob],
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    at_once: int | None = None,
    progress: bool = True,
) -> list[Result] | None:
    """Run several jobs on the same workers, and return their results in order; None on workers.

    A job is a job file, or a dict of the arguments of minimize(), which may have a `name`; `workers`,
    `resume` and `progress` are given here.  Each has a run file of its own in the folder `out`.  A job that
    fails leaves the others alone: its `summary["error"]` says why.  At most `at_once` run at the same time;
    by default, as many as keep the workers busy.
    """
    check_arguments(workers=workers, out=out, progress=progress)
    if not jobs or isinstance(jobs, str | Path | Mapping):
        raise UsageError("jobs must be a list of job files, or of dicts of the arguments of minimize()")
    runs: list[JobRun] = []

    def prepare() -> Prepared:
        output = OutputOptions(None if out is None else Path(out), resume, in_python=True)
        runs[:] = [_prepared(number, job, workers, output) for number, job in enumerate(jobs)]
        digests = {f"job {number}": run.start.job.digest.hex() for number, run in enumerate(runs)}
        return Prepared(Quadratic(1), None, RunStart(RunDescription.of_tables({"jobs": digests}, {})))

    joined("run_jobs", prepare)
    start_ranks(workers)
    execute = run_jobs_on_ranks if launch.under_launcher() else simulate_jobs
    with _drawn(runs, progress) as observer:
        stop_request = execute(runs, at_once, observer)
    if stop_request is None:
        return None
    if stop_request:
        stop_request.exit_code = CONTINUE if out is not None else 1
        end_process(stop_request)
    return [_result(run) for run in runs]


def _prepared(number: int, job: AnyJob, workers: int | None, output: OutputOptions) -> JobRun:
    """Return one of the jobs, checked; only the manager looks at run files."""
    if isinstance(job, Mapping):
        return _from_arguments(number, dict(job), workers, output)
    path = Path(job)
    settings = () if workers is None else (f"run.workers={workers}",)
    spec = JobSpec(path, settings, f"{number}-{path.stem}")
    own = _named(output, spec.name)
    if own.out is None or is_worker():
        return job_run(spec, Plan(load_job(path, settings)))
    return job_run(spec, resolve(path, settings, own))


def _named(output: OutputOptions, name: str) -> OutputOptions:
    """Return the options of one of the jobs, whose run file is in the folder of all."""
    if output.out is None:
        return output
    if not is_worker():
        output.out.mkdir(parents=True, exist_ok=True)
    return replace(output, out=output.out / f"{name}.h5")


def _from_arguments(number: int, given: dict[str, Any], workers: int | None, output: OutputOptions) -> JobRun:
    name = str(given.pop("name", number))
    known = [*Request.__dataclass_fields__, "name"]
    for word in given:
        if word in SHARED:
            raise UsageError(f"job {name}: {word} is an argument of run_jobs(), the same for all jobs")
        if word not in known:
            raise UsageError(f"job {name}: minimize() has no argument {word!r}{did_you_mean(word, known)}")
    own = _named(output, name)
    try:
        request = Request(**given, workers=workers, out=own.out, resume=output.resume)
    except TypeError as error:
        raise UsageError(f"job {name}: {error}") from None
    prepared = request.prepare()
    start, problem, times = prepared.start, prepared.problem, prepared.times
    parts, seed = Parts(problem, times, prepared.method), start.job.run.seed

    def build(n: int) -> tuple[Parts, ClusterSettings]:
        agreed = seed, False, start.job.digest, request.faults, "star"
        return parts, ClusterSettings(problem, times, *agreed)

    def simulate(time: SharedTime, share: Share) -> tuple[Parts, SharedVirtualCluster]:
        assert times is not None
        return parts, SharedVirtualCluster(problem, times, seed, policy=request.faults).share(time, share)

    return JobRun(name, start, build, simulate, request.observers)


@contextmanager
def _drawn(runs: Sequence[JobRun], wanted: bool) -> Iterator[Observer | None]:
    """Yield what shows the progress of the jobs, if that is wanted."""
    if not wanted or is_worker():
        yield None
        return
    from mpi_ata.view.live import Display, JobsProgress  # only the manager needs it

    line = Display(sys.stderr)
    try:
        yield JobsProgress(line, runs)
    finally:
        line.clear()


def _result(run: JobRun) -> Result:
    """Return the result of a job, as far as it came."""
    if run.outcome is not None:
        found = result_of(run.outcome)
    elif run.start.finished and run.start.file is not None:
        found = saved_result(run.start.file.path)
    else:
        path = None if run.start.file is None else run.start.file.path
        found = Result(None, {}, Columns(run.trace.history()), Columns({}), path)  # type: ignore[arg-type]
    return replace(found, summary=run.summary())
