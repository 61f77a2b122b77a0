"""The table [faults] of a job: strict and optional."""

from pathlib import Path

import pytest

from mpi_ata import FaultPolicy
from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts, load_job
from mpi_ata.job.build import fault_policy
from tests.faults.scene import written


def job_with(folder: Path, faults: str, method: str = "sgd ata-empirical") -> Path:
    path = written(folder / "job.toml", method)
    path.write_text(f"{path.read_text()}\n[faults]\n{faults}\n")
    return path


def test_every_key_can_be_set_and_has_a_default(tmp_path: Path) -> None:
    assert load_job(written(tmp_path / "job.toml", "sgd uta")).faults == FaultPolicy(10.0, "stop", "stop", 3)
    keys = "deadline = 4\non_task_error = 'reissue'\non_bad_result = 'reissue'\nmax_failures = 1"
    assert load_job(job_with(tmp_path, keys)).faults == FaultPolicy(4.0, "reissue", "reissue", 1)
    assert load_job(job_with(tmp_path, keys), ["faults.deadline=0"]).faults.deadline == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("deadlin = 3", "unknown key 'deadlin' in .faults.; valid keys: deadline, on_task_error"),
        ("owned = true", "unknown key 'owned' in .faults."),
        ("deadline = '1'", "deadline = '1' in .faults. must be a number"),
        ("deadline = inf", "deadline = inf in .faults. must be finite"),
        ("deadline = -1", "deadline=-1.0 must be at least 1, or 0 to wait forever"),
        ("on_task_error = 'retry'", "on_task_error='retry' must be 'stop' or 'reissue'"),
        ("max_failures = 1.5", "max_failures = 1.5 in .faults. must be a whole number"),
    ],
)
def test_what_is_not_valid_is_rejected_in_one_sentence(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        load_job(job_with(tmp_path, line))


@pytest.mark.parametrize("key", ["on_task_error", "on_bad_result"])
def test_nothing_is_reissued_where_workers_own_their_data(tmp_path: Path, key: str) -> None:
    job = load_job(job_with(tmp_path, f"{key} = 'reissue'", "malenia"))
    with pytest.raises(UsageError, match="each worker owns its data"):
        build_parts(job)


def test_owners_are_only_warned_about(tmp_path: Path) -> None:
    job = load_job(written(tmp_path / "job.toml", "malenia"))
    assert fault_policy(job, build_parts(job).method) == FaultPolicy(owned=True)
