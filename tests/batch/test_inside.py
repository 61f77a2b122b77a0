"""What runs inside a batch job: when it is requeued, when it is given up, when it is asked to save."""

import subprocess
from pathlib import Path

import pytest

from mpi_ata.batch.inside import BatchJob, check_progress, save_warning, should_requeue
from mpi_ata.batch.interface import Allocation, QueuedJob
from mpi_ata.batch.submission_dir import Attempt
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError
from mpi_ata.runfile.progress import Progress
from tests.batch.test_submit import Slurm, job, slurm
from tests.cli.commands import MPI_ATA, start

__all__ = ["job", "slurm"]


def batch(folder: Path, requeue: bool = True) -> BatchJob:
    output = OutputOptions(folder / "run.h5")
    return BatchJob((Path("job.toml"),), output, submission_dir=folder, requeue=requeue)


def test_a_fourth_start_at_the_same_round_is_rejected(tmp_path: Path) -> None:
    for number, rounds in enumerate([0, 40, 40, 40]):
        check_progress(batch(tmp_path), Progress(rounds=rounds), Allocation("7"))
        batch(tmp_path).dir.record_attempt(tmp_path / "run.h5", Attempt("7", number, 8, rounds))
    with pytest.raises(RunError, match="3 starts in a row got no further than round 40"):
        check_progress(batch(tmp_path), Progress(rounds=40), Allocation("7"))
    check_progress(batch(tmp_path), Progress(rounds=41), Allocation("7"))
    check_progress(batch(tmp_path), Progress(rounds=40), Allocation("8"))  # submitted again


def test_a_slurm_job_is_not_restarted_without_end_whatever_was_recorded(tmp_path: Path) -> None:
    check_progress(batch(tmp_path), Progress(), Allocation("7", restarts=1000))
    with pytest.raises(RunError, match="this Slurm job was restarted 1,001 times, which is too often"):
        check_progress(batch(tmp_path), Progress(), Allocation("7", restarts=1001))


def test_a_start_that_cannot_be_recorded_runs_nothing_and_is_not_requeued(
    job: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(scontrol=f"touch {job.with_name('asked')}; exit 1")
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "5")):
        monkeypatch.setenv(name, value)
    Path("run.job").mkdir()
    words = ["--out", "run.h5", "--submission-dir", "run.job", "--set", "run.workers=2"]
    full = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]  # as over a quota: no file can be written
    command = [*full, str(MPI_ATA), "batch", str(job), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: run.job/run.attempts cannot be written: File too large: a run whose starts are not recorded "
        "could be requeued without end; make room or make it writable, and submit it again with --resume\n"
    )
    assert not any(Path(name).exists() for name in ("run.h5", "asked"))


def test_a_script_of_the_users_own_says_where_it_cannot_write(job: Path) -> None:
    Path("run.job").touch()
    done = start("batch", str(job), "--out", "run.h5")
    sentence = "Error: run.job cannot be written: Not a directory; use another --out\n"
    assert (done.returncode, done.stderr) == (2, sentence)


@pytest.mark.parametrize(
    ("restarts", "cancelled", "expected"),
    [(0, False, True), (1, False, False), (0, True, False)],
    ids=["interrupted", "requeued already", "cancelled"],
)
def test_only_interrupted_jobs_are_requeued(
    tmp_path: Path, restarts: int, cancelled: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    job = QueuedJob("7", restarts=restarts, cancelled=cancelled)
    assert should_requeue(batch(tmp_path), job) == expected
    assert not should_requeue(batch(tmp_path, requeue=False), job)
    batch(tmp_path).dir.stop_file(tmp_path / "run.h5").touch()
    assert not should_requeue(batch(tmp_path), job)


def test_the_lead_grows_with_the_measured_time_of_rounds_and_saves() -> None:
    measured = Progress(rounds=10, elapsed=100.0, saving=5.0)
    assert save_warning(measured, 7200.0) == 10 + 3 * (10 + 5)
    assert save_warning(measured, 60.0) == 30  # at least half of the time is for work
    assert save_warning(Progress(), 7200.0) == save_warning(Progress(), None) == 60
    assert save_warning(Progress(), 60.0) == 15
