"""What runs inside a batch job: when it is requeued, when it is given up, when it is asked to save."""

from pathlib import Path

import pytest

from mpi_ata.batch.inside import BatchJob, check_progress, save_warning, should_requeue
from mpi_ata.batch.interface import QueuedJob
from mpi_ata.batch.submission_dir import Attempt
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError
from mpi_ata.runfile.progress import Progress


def batch(folder: Path, requeue: bool = True) -> BatchJob:
    output = OutputOptions(folder / "run.h5")
    return BatchJob(Path("job.toml"), output, submission_dir=folder, requeue=requeue)


def test_a_fourth_start_at_the_same_round_is_rejected(tmp_path: Path) -> None:
    for number, rounds in enumerate([0, 40, 40, 40]):
        check_progress(batch(tmp_path), Progress(rounds=rounds), "7")
        batch(tmp_path).dir.record_attempt(tmp_path / "run.h5", Attempt("7", number, 8, rounds))
    with pytest.raises(RunError, match="3 starts in a row got no further than round 40"):
        check_progress(batch(tmp_path), Progress(rounds=40), "7")
    check_progress(batch(tmp_path), Progress(rounds=41), "7")
    check_progress(batch(tmp_path), Progress(rounds=40), "8")  # submitted again


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
