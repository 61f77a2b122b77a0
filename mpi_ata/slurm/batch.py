"""What a batch script asks for: which run, from which copy, and whether Slurm is to start it again."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.job import load_job
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.progress import read_progress
from mpi_ata.runfile.store import RunFile
from mpi_ata.slurm import commands
from mpi_ata.slurm.commands import SlurmJob
from mpi_ata.slurm.copies import Copies
from mpi_ata.slurm.launcher import launcher
from mpi_ata.slurm.script import signal_name
from mpi_ata.slurm.submission_dir import SUFFIX, SubmissionDir, replace_text


@dataclass(frozen=True)
class Batch:
    """What is to be run in this Slurm job."""

    job: Path
    run: Path
    kept: SubmissionDir
    settings: tuple[str, ...] = ()
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    siblings: bool = False  # whether finished runs of the same sweep are to be learned from
    requeue: bool = True
    signal: str = "USR1"
    lead: int | None = None  # seconds before the end of the Slurm job; None: from what was measured

    def __post_init__(self) -> None:
        signal_name(self.signal)

    def command(self) -> list[str]:
        """What starts the ranks."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        words = ["run", str(self.job), "--out", str(self.run), "--resume", *settings, *self.learning()]
        several = (launch.slurm_tasks() or 1) > 1
        return [*(launcher() if several else ()), *launch.rank_command(words)]

    def learning(self) -> list[str]:
        """Whom to learn speeds from; a run that goes on has done so already."""
        if RunFile(self.run).exists():
            return []
        sweep = self.kept.submitted().runs if self.siblings else ()
        finished = [path for path in sweep if path != self.run and read_progress(path).finished]
        return warm_start_args([*self.warm_start, *finished], self.prior_weight, self.any_problem)


def warm_start_args(paths: Sequence[Path], weight: float, any_problem: bool) -> list[str]:
    """The options of `mpi-ata run` for a warm start, if there is anything to start from."""
    words = [word for path in paths for word in ("--warm-start", str(path))]
    words += ["--prior-weight", f"{weight:g}"] if weight < 1 else []
    words += ["--any-problem"] if any_problem else []
    return words if paths else []


def prepared(
    job: Path, run: Path | None, folder: Path | None, settings: tuple[str, ...], **options: Any
) -> Batch:
    """What a batch script asks for; one that was not written by mpi-ata is served from a copy as well."""
    if run is not None and folder is not None:
        return Batch(job, run, SubmissionDir(folder), settings, **options)
    run = run or RUNS / f"{job.stem}-{commands.own_id() or 'local'}.h5"
    kept = SubmissionDir(run.with_suffix(SUFFIX))
    copied, *settings_of_copy = copied_once(job, settings, kept)
    jobs = tuple(filter(None, [commands.own_id()]))
    if not kept.manifest.is_file() or jobs != kept.submitted().jobs:
        kept.clear(run)
        kept.submit(jobs, [run.absolute()])
    return Batch(Path(copied), run, kept, (*settings, *settings_of_copy), **options)


def copied_once(job: Path, settings: tuple[str, ...], kept: SubmissionDir) -> list[str]:
    """The copy of a job file, and settings that it needs; made when the job starts for the first time."""
    note = kept.folder / "copied.json"
    if not note.exists():
        kept.folder.mkdir(parents=True, exist_ok=True)
        copies = Copies.of([load_job(job, settings)], kept.files)
        copies.make()
        replace_text(note, json.dumps([str(copies.job), *copies.settings[0]]))
    found: list[str] = json.loads(note.read_text())
    return found


def own_restarts() -> int:
    """How often Slurm had started this job again when it began."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0))


def should_requeue(batch: Batch, job: SlurmJob) -> bool:
    """Whether this Slurm job should be started again, as far as nobody has said otherwise."""
    ended_by_user = job.state in ("COMPLETING", "CANCELLED") and not job.timed_out
    return (
        batch.requeue
        and job.restarts == own_restarts()
        and not ended_by_user
        and not batch.kept.stopped(batch.run).exists()
    )


def request_requeue(job: SlurmJob, tell: Callable[[str], None]) -> bool:
    """Let Slurm start this job again."""
    complaint = commands.requeue(job.id)
    if complaint:
        tell(f"Slurm does not start it again: {complaint}; go on by hand with sbatch {job.command}")
    return not complaint
