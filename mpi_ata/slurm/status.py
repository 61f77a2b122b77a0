"""How far submitted runs are, and ending them for good."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.errors import UsageError
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.progress import Progress, read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.commands import SlurmJob
from mpi_ata.slurm.submission_dir import SUFFIX, SubmissionDir, all_submissions, billed

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ACTIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING")


class Submitted(NamedTuple):
    """A run that was submitted, and the Slurm jobs that are or were at it."""

    kept: SubmissionDir
    run: Path
    member: int | None  # of an array
    jobs: list[SlurmJob]

    @property
    def job(self) -> SlurmJob | None:
        """Of several Slurm jobs, the one that runs tells most, then one that waits, then the last."""
        ranked = [
            (2 if job.state in ACTIVE else 1 if job.state in WAITING else 0, j)
            for j, job in enumerate(self.jobs)
        ]
        return self.jobs[max(ranked)[1]] if ranked else None

    def id(self, job: str) -> str:
        """What Slurm calls this run's part of a Slurm job."""
        return job if self.member is None else f"{job.split('_')[0]}_{self.member}"


def status(which: str | None = None) -> list[dict[str, Any]]:
    """One row for each run of a Slurm job, of a run file, or of all that are known here."""
    return [row(found) for found in find_runs(which)]


def status_from_files(which: str | None = None) -> list[dict[str, Any]]:
    """The same without asking Slurm: of what is not finished nobody knows then whether a job is at it."""
    rows = [row(found) for found in find_runs(which, asking=False)]
    unknown = {"state": "unknown", "why": "Slurm does not answer"}
    return [each if each["state"] == "finished" else each | unknown for each in rows]


def stop(which: str) -> list[dict[str, Any]]:
    """End runs for good: those that run save and leave, those that wait are taken out of the queue."""
    ending = find_runs(which)
    for found in ending:
        if not read_progress(found.run).finished:
            found.kept.stopped(found.run).touch()  # first: whoever ends from now on is not started again
    for found in ending:
        for job in found.jobs:
            if job.state in WAITING:
                commands.cancel(found.id(job.id))
            elif job.state == "RUNNING":
                commands.signal_batch(found.id(job.id), "TERM")
    return [row(found) for found in find_runs(which)]


def find_runs(which: str | None, asking: bool = True) -> list[Submitted]:
    """The runs that are asked for; without asking Slurm, those that are noted here."""
    ask = commands.jobs if asking else partial(among, ())
    if which is None:
        queued = [job for id in commands.own_jobs() for job in ask(id)] if asking else []
        return [found for kept in everywhere(queued) for found in runs(kept, partial(among, queued))]
    noted = submissions(which) if asking or not is_id(which) else noted_here(which)
    found = [submitted for kept in noted for submitted in runs(kept, ask)]
    if which.isdigit():
        return found
    if hit := re.fullmatch(r"\d+_(\d+)", which):
        return [each for each in found if each.member == int(hit[1]) or which in each.kept.submitted().jobs]
    path = Path(which).absolute()
    return [submitted for submitted in found if path in (submitted.run, unnumbered(submitted.run))]


def among(jobs: Sequence[SlurmJob], id: str) -> list[SlurmJob]:
    """Those of some Slurm jobs that an id stands for: a single one, or all members of an array."""
    return [job for job in jobs if id in (job.id, job.id.split("_")[0])]


def everywhere(queued: Sequence[SlurmJob]) -> list[SubmissionDir]:
    """All submissions from this folder, and those from others that are queued."""
    here = all_submissions(RUNS)
    elsewhere = {job.command.parent for job in queued if job.command.parent.suffix == SUFFIX}
    return here + [
        SubmissionDir(folder) for folder in sorted(elsewhere - {kept.folder.absolute() for kept in here})
    ]


def submissions(which: str) -> list[SubmissionDir]:
    """The submissions that are meant by the id of a Slurm job or by a run file."""
    if is_id(which):
        return by_id(which)
    path = Path(which).absolute()
    for folder in (path.with_suffix(SUFFIX), unnumbered(path).with_suffix(SUFFIX)):
        if SubmissionDir(folder).manifest.is_file():
            return [SubmissionDir(folder)]
    raise UsageError(f"{which} is neither the id of a Slurm job nor a run that was submitted")


def is_id(which: str) -> bool:
    """Whether this is the id of a Slurm job, or of a member of an array."""
    return re.fullmatch(r"\d+(_\d+)?", which) is not None


def by_id(id: str) -> list[SubmissionDir]:
    """The submissions of a Slurm job: where its script stands, or where its id was noted."""
    for job in commands.jobs(id.split("_")[0]):
        if (kept := SubmissionDir(job.command.parent)).manifest.is_file():
            return [kept]
    found = noted_here(id)
    if not found:
        raise UsageError(f"Slurm job {id} is not one of mpi-ata's, or is forgotten by now: name its run file")
    return found


def noted_here(id: str) -> list[SubmissionDir]:
    """The submissions from this folder for which the id of a Slurm job was noted."""
    found = []
    for kept in all_submissions(RUNS):
        known = kept.submitted()
        if id.split("_")[0] in {job.split("_")[0] for job in [*known.jobs, *known.past]}:
            found.append(kept)
    return found


def runs(kept: SubmissionDir, ask: Callable[[str], list[SlurmJob]] = commands.jobs) -> Iterator[Submitted]:
    """Each run of a submission, and the Slurm jobs that are or were at it."""
    known = kept.submitted()
    started = [attempts[-1].job for run in known.runs if (attempts := kept.attempts(run))]
    by_hand = [job for job in started if job and job.split("_")[0] not in known.jobs]  # or of the past
    jobs = [job for id in dict.fromkeys([*by_hand, *known.jobs]) for job in ask(id)]
    if len(known.runs) == 1:
        yield Submitted(kept, known.runs[0], None, jobs)
        return
    for number, run in enumerate(known.runs):
        yield Submitted(kept, run, number, [job for job in jobs if number in members(job.id)])


def members(id: str) -> list[int]:
    """The members of an array that an id such as 12_3 or 12_4-7%2 stands for."""
    found: list[int] = []
    for part in id.partition("_")[2].partition("%")[0].strip("[]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def unnumbered(run: Path) -> Path:
    """What the members of a sweep are numbered after."""
    return run.with_stem(re.sub(r"-\d+$", "", run.stem))


def row(found: Submitted) -> dict[str, Any]:
    """How far a run is, in plain values."""
    kept, run, job = found.kept, found.run, found.job
    now, attempts = read_progress(run), kept.attempts(run)
    word, why = state(kept, run, job, now)
    last_sign = time.time() if word == "running" else now.saved
    ids = [job.id] if job else list(kept.submitted().jobs)
    return {
        "job": found.id(ids[-1]) if ids else None,
        "state": word,
        "why": why,
        "run": str(run),
        "rounds": now.rounds,
        "of_rounds": now.limit,
        "rate": now.rate or None,
        "expected_end": expected_end(now) if word == "running" else None,
        "starts": len(attempts),
        "nodes": job.nodes if job and word == "running" else None,
        "elapsed": now.elapsed,
        "billed_core_hours": billed(attempts, last_sign) / 3600,
        "worker_hours": now.worker_time / 3600,
    }


def state(kept: SubmissionDir, run: Path, job: SlurmJob | None, now: Progress) -> tuple[str, str]:
    """A word for how a run stands, and why."""
    if now.finished:
        return "finished", ""
    if job is not None and job.state in ACTIVE:
        return "running", "asked to stop" if kept.stopped(run).exists() else now.trouble
    if job is not None and job.state in WAITING:
        return "queued", "" if job.reason == "None" else job.reason
    if kept.failure(run).exists():
        return "failed", kept.failure(run).read_text().strip()
    if kept.stopped(run).exists():
        return "stopped", "by mpi-ata stop"
    return "unfinished", f"Slurm says {job.state}" if job else "no Slurm job is at it any more"


def expected_end(now: Progress) -> float | None:
    """When all rounds will be done at the rate so far, in seconds since 1970."""
    if now.limit is None or not now.rate or now.saved is None:
        return None
    return now.saved + (now.limit - now.rounds) / now.rate
