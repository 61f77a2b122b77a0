"""What a batch script asks for: which run, from which copy of its job, and whether to requeue it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.job import load_job
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.progress import is_finished
from mpi_ata.runfile.store import RunFile
from mpi_ata.slurm import commands
from mpi_ata.slurm.copies import Copies
from mpi_ata.slurm.launcher import launcher
from mpi_ata.slurm.lead import SIGNAL, check_signal
from mpi_ata.slurm.slurm_job import SlurmJob
from mpi_ata.slurm.submission_dir import SubmissionDir, write_atomically

Echo = Callable[[str], None]  # prints a line to the log of the Slurm job


@dataclass(frozen=True)
class Batch:
    """What to run in this Slurm job."""

    job: Path
    run: Path
    submission_dir: SubmissionDir
    settings: tuple[str, ...] = ()
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    accept_changes: bool = False
    siblings: bool = False  # warm-start from finished runs of the same sweep
    requeue: bool = True
    signal: str = SIGNAL
    lead: int | None = None  # seconds before the end of the Slurm job; None: as measured

    def __post_init__(self) -> None:
        check_signal(self.signal)

    @property
    def failure_file(self) -> Path:
        """Return the file that says why the run failed."""
        return self.submission_dir.failure_file(self.run)

    @property
    def stopped(self) -> bool:
        """Return whether `mpi-ata stop` has ended the run."""
        return self.submission_dir.stop_file(self.run).exists()

    def command(self) -> list[str]:
        """Return the command that starts the ranks."""
        settings = [argument for setting in self.settings for argument in ("--set", setting)]
        args = ["run", str(self.job), "--out", str(self.run), "--resume", *settings, *self._warm_start()]
        args += ["--accept-changes"] if self.accept_changes else []
        several = (launch.slurm_tasks() or 1) > 1
        return [*(launcher() if several else ()), *launch.rank_command(args)]

    def _warm_start(self) -> list[str]:
        """Return the options of a warm start; none for a run that is resumed, which has had its own."""
        if RunFile(self.run).exists():
            return []
        sweep = self.submission_dir.manifest().runs if self.siblings else ()
        finished = [path for path in sweep if path != self.run and is_finished(path)]
        return warm_start_args([*self.warm_start, *finished], self.prior_weight, self.any_problem)


def warm_start_args(paths: Sequence[Path], weight: float, any_problem: bool) -> list[str]:
    """Return the options of `mpi-ata run` for a warm start; none without run files to start from."""
    args = [argument for path in paths for argument in ("--warm-start", str(path))]
    args += ["--prior-weight", f"{weight:g}"] if weight < 1 else []
    args += ["--any-problem"] if any_problem else []
    return args if paths else []


def prepare_batch(
    job: Path, run: Path | None, submission_dir: Path | None, settings: tuple[str, ...], **options: Any
) -> Batch:
    """Return what to run; a script that mpi-ata did not write gets a submission folder here."""
    if run is not None and submission_dir is not None:
        return Batch(job, run, SubmissionDir(submission_dir), settings, **options)
    run = run or RUNS / f"{job.stem}-{launch.slurm_job() or 'local'}.h5"
    own = SubmissionDir.of_run(run)
    copied, *copy_settings = copy_job_once(job, settings, own)
    jobs = tuple(filter(None, [launch.slurm_job()]))
    if not own.exists() or jobs != own.manifest().jobs:
        own.clear(run)
        own.record_jobs(jobs, [run.absolute()])
    return Batch(Path(copied), run, own, (*settings, *copy_settings), **options)


def copy_job_once(job: Path, settings: tuple[str, ...], submission_dir: SubmissionDir) -> list[str]:
    """Copy a job when it starts for the first time; return the copy and the settings that it needs."""
    copied = submission_dir.path / "copied.json"
    if not copied.exists():
        submission_dir.path.mkdir(parents=True, exist_ok=True)
        copies = Copies.of([load_job(job, settings)], submission_dir.files)
        copies.make()
        write_atomically(copied, json.dumps([str(copies.job), *copies.settings[0]]))
    found: list[str] = json.loads(copied.read_text())
    return found


def own_restarts() -> int:
    """Return how often Slurm had requeued this job when it started."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0))


def should_requeue(batch: Batch, job: SlurmJob) -> bool:
    """Return whether to requeue this Slurm job: not if the user ended it, or Slurm has requeued it."""
    ended_by_user = job.state in ("COMPLETING", "CANCELLED") and not job.timed_out
    return batch.requeue and job.restarts == own_restarts() and not ended_by_user and not batch.stopped


def request_requeue(job: SlurmJob, echo: Echo) -> bool:
    """Requeue this Slurm job, and return whether Slurm accepted that."""
    error = commands.requeue(job.id)
    if error:
        echo(f"Slurm does not requeue this job: {error}; resume it with sbatch {job.command}")
    return not error
