"""Submitting a job: it is checked, its files are copied, its script is written and given to the scheduler."""

import re
import shlex
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from mpi_ata.batch.bad_nodes import without_bad_hosts
from mpi_ata.batch.interface import LEAD_SECONDS, SIGNAL, Resources, Script, check_text, scheduler
from mpi_ata.batch.submission_dir import JobCopy, SubmissionDir, copy_file
from mpi_ata.driver.jobs import JobSpec, combinations, specify_jobs
from mpi_ata.driver.plan import OutputOptions, Plan, plan_run
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import build_parts, load_job
from mpi_ata.job.tables import split_values
from mpi_ata.launch import rank_command
from mpi_ata.layout import ranks_for, workers_in
from mpi_ata.limits import file_system
from mpi_ata.runfile.checkpoints import fresh_name
from mpi_ata.runfile.store import check_writable_path

IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some settings."""

    members: tuple[tuple[str, ...], ...]  # the settings of each
    at_once: int | None = None  # maximum runs at the same time

    @classmethod
    def of(cls, texts: Sequence[str], at_once: int | None = None, of_script: bool = False) -> "Sweep":
        """Return all combinations of values; each text is table.key=value,value,..., of a script key=..."""
        if not of_script:
            return cls(tuple(combinations(texts)), at_once)
        pairs = [check_option(text).split("=", 1) for text in texts]
        choices = [[f"{name}={value}" for value in split_values(values)] for name, values in pairs]
        return cls(tuple(product(*choices)), at_once)

    @property
    def same_problem(self) -> bool:
        """Return whether all members compute the same tasks, so that they can share worker speeds."""
        return not any(setting.startswith("problem.") for member in self.members for setting in member)


@dataclass(frozen=True)
class Submission:
    """The options of `mpi-ata submit`."""

    jobs: tuple[Path, ...]
    resources: Resources
    output: OutputOptions = field(default_factory=OutputOptions)
    settings: tuple[str, ...] = ()
    exclude_slow: tuple[Path, ...] = ()  # runs whose slow, flaky and lost hosts to avoid
    sweep: Sweep | None = None  # of runs in batch jobs of their own
    array: tuple[str, ...] = ()  # of runs that share the ranks of one batch job
    at_once: int | None = None  # of these
    chain: int | None = None  # number of batch jobs, each after the one before
    signal: str = SIGNAL
    lead: int | None = None
    give_back: bool = False  # nodes that the run can do without
    source: Path | None = None
    check: bool = True  # build the problem before submitting
    args: tuple[str, ...] = ()  # of a script

    def __post_init__(self) -> None:
        scheduler().check_resources(self.resources)
        if self.is_script:
            [check_option(setting) for setting in self.settings]
            if self.array:
                raise UsageError(
                    "--shared is for job files; of a script, each run of --array has its own ranks"
                )
        elif any(job.suffix == ".py" for job in self.jobs):
            raise UsageError("a script is submitted alone, not with job files")
        if self.chain is not None and self.sweep is not None:
            raise UsageError("--chain and --array cannot be combined: submit the members one by one")
        if self.output.resume and self.output.out is None:
            raise UsageError("--resume continues a run; name its file: --out RUN.h5 --resume")
        if self.output.accept_changes and not self.output.resume:
            raise UsageError("--accept-changes requires --resume")
        if self.give_back and (self.is_script or self.shared or self.resources.components):
            raise UsageError("--give-back is for a single job file on one kind of node: leave it out")
        check_signal(self.signal)

    @property
    def job(self) -> Path:
        """Return the job file, the first of several."""
        return self.jobs[0]

    @property
    def is_script(self) -> bool:
        """Return whether this is a script, not a job file."""
        return self.job.suffix == ".py"

    @property
    def shared(self) -> bool:
        """Return whether several runs share the ranks of one batch job."""
        return len(self.jobs) > 1 or bool(self.array)

    @property
    def specs(self) -> list[JobSpec]:
        """Return each run: its job file, its settings and its name."""
        if self.shared:
            return specify_jobs(self.jobs, self.settings, self.array)
        return [JobSpec(self.job, settings, "") for settings in self.members]

    @property
    def run(self) -> Path:
        """Return the run file, the folder of several, or what the members of a sweep are numbered after."""
        assert self.output.out is not None  # submit() chooses one
        return self.output.out

    @property
    def dir(self) -> SubmissionDir:
        """Return the folder of this submission."""
        return SubmissionDir.of_run(self.run)

    @property
    def runs(self) -> list[Path]:
        """Return the file of each run."""
        if self.sweep is None:
            return [self.run]
        return [self.run.with_stem(f"{self.run.stem}-{j}") for j in range(len(self.sweep.members))]

    @property
    def members(self) -> list[tuple[str, ...]]:
        """Return the settings of each run."""
        return [(*self.settings, *more) for more in (self.sweep.members if self.sweep else [()])]

    @property
    def script_lead(self) -> int:
        """Return the lead to write into the script: as given, or a minute, but less in a short job."""
        if self.lead is not None:
            return self.lead
        limit = scheduler().parse_duration(self.resources.time) if self.resources.time else None
        return LEAD_SECONDS if limit is None else max(1, min(LEAD_SECONDS, int(limit / 4)))


def check_option(text: str) -> str:
    """Return KEY=VALUE, which becomes the option --KEY=VALUE of a script."""
    if not re.fullmatch(r"[\w.-]+=.*", text):
        raise UsageError(f"{text!r} is not KEY=VALUE, which a script gets as --KEY=VALUE")
    return text


def check_signal(name: str) -> str:
    """Return the name of a signal; reject those that cannot ask a run to save."""
    if f"SIG{name}" not in signal.Signals.__members__ or name in ("KILL", "STOP", "TERM"):
        raise UsageError(f"--signal {name} cannot be used: name one such as USR1 or USR2")
    return name


def submit(asked: Submission, dry_run: bool = False) -> dict[str, Any]:
    """Submit a job and return what was submitted, or would be, in plain values."""
    run = (asked.output.out or fresh_name(asked.job)).absolute()
    run = run.with_suffix("") if asked.shared and asked.output.out is None else run
    asked = replace(asked, output=replace(asked.output, out=run))
    check_paths(asked)
    (check_resumable if asked.output.resume else check_not_existing)(asked)
    plans = [] if asked.is_script else plan_runs(asked)
    asked, notes = with_size(asked, plans)
    check_plans(asked, plans)
    resources, more = without_bad_hosts(asked.resources, asked.exclude_slow)
    asked = replace(asked, resources=resources)
    copy = copy_of(asked, plans)
    script = script_text(batch_script(asked, copy))
    notes += [*more, *obstacle_notes(resources), *shared_folder_notes(asked.run)]
    ids = [] if dry_run else write_and_submit(asked, copy, script)
    return describe(asked, ids, notes) | {"script": script if dry_run else str(asked.dir.script)}


def check_paths(asked: Submission) -> None:
    """Reject paths that a script cannot contain, or where nothing can be read or written."""
    for path in [asked.run, *asked.output.warm_start, asked.source or ""]:
        check_text(str(path))
    if asked.source is not None and not asked.source.is_file():
        raise UsageError(f"--source {asked.source} is not a file")
    existing = next(path for path in asked.run.parents if path.exists())
    check_writable_path(existing / asked.run.name)


def shared_folder_notes(run: Path) -> list[str]:
    """Return a note on a run file in the memory of this machine, which no other node can see."""
    folder = next(path for path in run.parents if path.exists()).resolve()
    kind = file_system(folder)
    if kind not in IN_MEMORY:
        return []
    return [
        f"{folder} is on {kind}, in the memory of this machine: submit from a folder that all nodes share"
    ]


def check_not_existing(asked: Submission) -> None:
    """Reject a submission that would overwrite a run."""
    for path in [*asked.runs, asked.dir.path]:
        if path.exists():
            raise UsageError(f"{path} exists: resume it with --resume, or choose another --out")


def check_resumable(asked: Submission) -> None:
    """Reject runs that are finished, or that another batch job is still running."""
    if all(asked.dir.is_finished(run) for run in asked.runs):
        raise UsageError(f"{asked.runs[0]} is already finished: choose another --out for a new run")
    for id in asked.dir.manifest().jobs:
        if any(job.phase != "over" for job in scheduler().jobs(id)):
            name = scheduler().NAME
            raise UsageError(f"{name} job {id} is still running {asked.run}: see mpi-ata status {id}")


def plan_runs(asked: Submission) -> list[Plan]:
    """Return the plan of each run, and check its warm start."""
    plans, specs = [], asked.specs
    runs = [asked.run / f"{spec.name}.h5" for spec in specs] if asked.shared else asked.runs
    for run, spec in zip(runs, specs, strict=True):
        output = replace(asked.output, out=run, resume=True)
        if not output.resumes():
            output.check_prior()
        plans.append(plan_run(spec.path, spec.settings, output))
    return plans


def with_size(asked: Submission, plans: Sequence[Plan]) -> tuple[Submission, list[str]]:
    """Return the submission with as many ranks as its jobs need, unless it says how many, and a note."""
    if scheduler().is_sized(asked.resources):
        return asked, []
    workers, *others = {plan.job.run.workers for plan in plans} or {None}
    if workers is None or others:
        differ = "the runs of --array differ in run.workers"
        lacks = "is a script" if asked.is_script else "has no run.workers"
        why = differ if others else f"{asked.job} {lacks}"
        raise UsageError(f"{why}: set --ntasks, the number of ranks to start, manager included")
    ranks = ranks_for(workers)
    note = f"no --ntasks given: using {ranks}, the job's run.workers plus the manager"
    return replace(asked, resources=replace(asked.resources, ntasks=ranks)), [note]


def check_plans(asked: Submission, plans: Sequence[Plan]) -> None:
    """Reject jobs that could not run; a problem that several runs in a row share is built once."""
    if not asked.check:
        return
    problem, built_from, ranks = None, "", asked.resources.ranks
    for job in [plan.job for plan in plans]:
        workers = workers_in(ranks) if ranks is not None else job.run.workers
        key = repr((job.tables["problem"], job.files.get("problem.file"), job.run.seed))
        try:
            problem = build_parts(job, workers or 1, problem if key == built_from else None).problem
        except UsageError as error:
            raise UsageError(f"{error} (to check it on the nodes only, use --no-check)") from None
        built_from = key


def obstacle_notes(resources: Resources) -> list[str]:
    """Return a note if the batch job would wait for nodes that do not exist, or are out of service."""
    why, name = scheduler().find_obstacle(resources), scheduler().NAME
    wait = "ask for less, or it waits until nodes are added or return to service"
    return [f"{name} cannot start this job on any nodes as they are now ({why}): {wait}"] if why else []


def copy_of(asked: Submission, plans: Sequence[Plan]) -> JobCopy:
    """Return where to copy the files that the runs need."""
    if asked.is_script:
        return JobCopy.of_script(asked.job, asked.dir.files, len(asked.members))
    jobs = [
        # A run that is resumed may name files in an earlier copy, which is about to be replaced.
        load_job(spec.path, spec.settings) if plan.earlier else plan.job
        for plan, spec in zip(plans, asked.specs, strict=True)
    ]
    return JobCopy.of(jobs, asked.dir.files)


def batch_script(asked: Submission, copy: JobCopy) -> Script:
    """Return what goes into the batch script."""
    paths = [tuple(common_settings(copy.settings))] if asked.shared else copy.settings
    settings = [(*own, *more) for own, more in zip(asked.members, paths, strict=True)]
    runs = zip(asked.runs, settings, strict=True)
    words = ("--", str(copy.jobs[0]), *asked.args) if asked.is_script else ()
    members = tuple(("--out", str(run), *setting_args(own), *words) for run, own in runs)
    command = tuple(rank_command(batch_args(asked, () if words else copy.jobs)))
    return Script(
        name=re.sub(r"[^\w.-]", "_", asked.job.stem, flags=re.ASCII),
        resources=asked.resources,
        workdir=Path.cwd(),
        log=asked.dir.log,
        command=command if asked.sweep else (*command, *members[0]),
        members=members if asked.sweep else (),
        at_once=asked.sweep.at_once if asked.sweep else None,
        requeue=asked.chain is None,
        signal=asked.signal,
        lead=asked.script_lead,
        source=asked.dir.source if asked.source else None,
    )


def common_settings(members: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the paths that must point to copies, for runs that share ranks: the same for all."""
    if len(set(members)) > 1:
        way_out = "name files in them relative to their job files, without --array over paths"
        raise UsageError(f"the jobs name files that cannot be copied for all of them at once: {way_out}")
    return list(members[0])


def array_args(array: Iterable[str], at_once: int | None) -> list[str]:
    """Return the options of `mpi-ata run` for runs that share ranks."""
    arrays = [argument for text in array for argument in ("--array", text)]
    return [*arrays, *(["--at-once", str(at_once)] if at_once is not None else [])]


def batch_args(asked: Submission, jobs: Sequence[Path]) -> list[str]:
    """Return the arguments of mpi-ata that all runs share."""
    earlier = tuple(path.absolute() for path in asked.output.warm_start)
    shared = replace(asked.output, out=None, resume=False, warm_start=earlier)
    args = ["batch", *map(str, jobs), "--submission-dir", str(asked.dir.path), *output_args(shared)]
    args += array_args(asked.array, asked.at_once)
    args += ["--signal", asked.signal] if asked.signal != SIGNAL else []
    args += ["--lead", str(asked.lead)] if asked.lead is not None else []
    args += ["--give-back"] if asked.give_back else []
    args += ["--no-requeue"] if asked.chain is not None else []
    return args + (["--siblings"] if asked.sweep is not None and asked.sweep.same_problem else [])


def setting_args(settings: Iterable[str]) -> list[str]:
    """Return the options of `mpi-ata run` for settings."""
    return [argument for setting in settings for argument in ("--set", setting)]


def output_args(output: OutputOptions) -> list[str]:
    """Return the options of `mpi-ata run` that say the same."""
    prior = [argument for path in output.warm_start for argument in ("--warm-start", str(path))]
    if prior and output.prior_weight < 1:
        prior += ["--prior-weight", str(output.prior_weight)]
    if prior and output.any_problem:
        prior.append("--any-problem")
    return [
        *(["--out", str(output.out)] if output.out else []),
        *(["--resume"] if output.resume else []),
        *prior,
        *(["--accept-changes"] if output.accept_changes else []),
    ]


SHELLCHECK = "# shellcheck disable=SC1003,SC2016  # arguments are literal"


def script_text(script: Script) -> str:
    """Return the text of a batch script."""
    lines = ["#!/bin/bash", *scheduler().directives(script), "", SHELLCHECK]
    lines.append(f"trap '' {script.signal}  # until mpi-ata handles it")
    if script.source is not None:
        lines += ["# shellcheck source=/dev/null", f". {quote(str(script.source))}"]
    if script.members:
        index = scheduler().ARRAY_INDEX
        cases = [f"  {j}) set -- {quote(*member)} ;;" for j, member in enumerate(script.members)]
        cases.append(f'  *) echo "no such member: ${index}" >&2; exit 2 ;;')
        lines += [f'case "${{{index}:?}}" in', *cases, "esac"]
    lines.append(f"exec {quote(*script.command)}" + (' "$@"' if script.members else ""))
    return "\n".join(lines) + "\n"


def quote(*arguments: str) -> str:
    """Return arguments as words of the shell."""
    return " ".join(shlex.quote(check_text(argument)) for argument in arguments)


def write_and_submit(asked: Submission, copy: JobCopy, script: str) -> list[str]:
    """Write the folder of a submission and submit its script; a failure leaves no new folder behind."""
    folder = asked.dir.path
    fresh = not folder.exists()
    try:
        write_files(asked, copy, script)
        return submit_chain(asked)
    except BaseException as error:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
        raise


def write_files(asked: Submission, copy: JobCopy, script: str) -> None:
    """Write what the runs need; of an earlier submission, only the record of its starts remains."""
    shutil.rmtree(asked.dir.files, ignore_errors=True)
    copy.make()
    if asked.source is not None:
        copy_file(asked.source, asked.dir.source)
    asked.dir.script.write_text(script)
    for run in asked.runs:
        asked.dir.clear(run)


def submit_chain(asked: Submission) -> list[str]:
    """Submit the script once, or once per batch job of a chain; cancel them all if one is not accepted."""
    ids: list[str] = []
    try:
        for _ in range(asked.chain or 1):
            ids.append(scheduler().submit(asked.dir.script, after=ids[-1] if ids else ""))
            asked.dir.record_jobs(ids, asked.runs, asked.is_script)
    except (UsageError, RunError) as error:
        scheduler().cancel(*ids)
        if isinstance(error, UsageError) or not ids:
            raise
        raise RunError(f"{error}; cancel the jobs accepted before that: {' '.join(ids)}") from None
    return ids


def describe(asked: Submission, ids: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """Return what was submitted, in plain values; the ids in the commands of a chain are not known yet."""
    jobs = [int(id) if id.isdigit() else id for id in ids]
    id, later = ids[0] if ids else "ID", (asked.chain or 1) - 1
    id = scheduler().member_id(id, 0) if asked.sweep else id
    return {
        "job": jobs[0] if jobs else None,
        "jobs": jobs,
        "ranks": asked.resources.ranks,
        "run": str(asked.runs[0]),
        "runs": [str(run) for run in asked.runs],
        "log": f"{asked.dir.log}-{id}.out",
        "commands": [scheduler().submit_command(asked.dir.script, id) for id in ["", *["ID"] * later]],
        "excluded": list(asked.resources.exclude),
        "notes": list(notes),
    }
