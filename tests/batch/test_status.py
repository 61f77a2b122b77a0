"""The status of submitted runs: whose state it is, and what is known if Slurm does not answer."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpi_ata.batch.interface import QueuedJob
from mpi_ata.batch.status import matching_jobs
from mpi_ata.batch.submission_dir import SubmissionDir
from mpi_ata.cli import main
from tests.batch.test_submit import Slurm, job, run_to_end, slurm, submit

__all__ = ["job", "slurm"]


def test_an_id_matches_one_job_or_all_members_of_an_array() -> None:
    jobs = [QueuedJob(id) for id in ("7", "12_1", "12_[2-3]")]
    assert matching_jobs(jobs, "7") == jobs[:1]
    assert matching_jobs(jobs, "12") == jobs[1:]
    assert matching_jobs(jobs, "12_1") == jobs[1:2]
    assert matching_jobs(jobs, "1") == []


SUSPENDED = (
    "JobId=7 JobState=SUSPENDED Reason=None Restarts=0 RunTime=00:01:18 NodeList=n1 Command=/b WorkDir=/"
)


def test_a_suspended_job_is_not_said_to_run(slurm: Slurm) -> None:
    record_submission("a.job", ["7"], "a.h5")
    slurm(scontrol=f"echo '{SUSPENDED}'")
    (row,) = json.loads(CliRunner().invoke(main, ["status", "7", "--json"]).stdout)
    assert (row["state"], row["why"], row["expected_end"]) == ("suspended", "", None)
    (row,) = json.loads(CliRunner().invoke(main, ["stop", "7", "--json"]).stdout)
    assert (row["state"], row["why"]) == ("suspended", "asked to stop")


def test_codes_for_terminals_in_the_reason_of_a_failure_are_not_printed(slurm: Slurm) -> None:
    record_submission("a.job", ["7"], "a.h5")
    Path("runs/a.job/a.failed").write_text("it has\x1b[2Jfailed")
    slurm(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert r"a: it has\u001b[2Jfailed" in CliRunner().invoke(main, ["status", "7"]).output


@pytest.fixture
def unreachable_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide Slurm's commands without a cluster that answers them."""
    if shutil.which("squeue") is None:
        pytest.skip("Slurm's commands are not installed")
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))


NO_ANSWER = "Error: Slurm does not answer: Unable to process configuration file; see mpi-ata doctor\n"


def status_without_slurm(*words: str) -> list[tuple[str, str, str]]:
    """Return the runs, Slurm jobs and states that are printed if Slurm does not answer."""
    result = CliRunner().invoke(main, ["status", *words, "--json"])
    assert (result.exit_code, result.stderr) == (1, NO_ANSWER)
    return [(Path(row["run"]).name, row["job"], row["state"]) for row in json.loads(result.stdout)]


def record_submission(name: str, ids: list[str], *runs: str) -> None:
    """Write the manifest of a submission."""
    Path("runs", name).mkdir(parents=True)
    SubmissionDir(Path("runs", name)).record_jobs(ids, [Path("runs", run).absolute() for run in runs])


@pytest.mark.usefixtures("unreachable_slurm")
def test_if_slurm_does_not_answer_status_does_not_claim_that_nothing_is_queued(job: Path) -> None:
    result = CliRunner().invoke(main, ["status"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", NO_ANSWER)
    assert status_without_slurm() == []
    assert status_without_slurm("7") == []


@pytest.mark.usefixtures("unreachable_slurm")
def test_if_slurm_does_not_answer_the_state_of_unfinished_runs_is_unknown(job: Path) -> None:
    record_submission("a.job", ["7", "8"], "a.h5")
    record_submission("b.job", ["9"], "b-0.h5", "b-1.h5")
    run_to_end(job, "runs/b-0.h5")
    chain, first, second = (
        ("a.h5", "8", "unknown"),
        ("b-0.h5", "9_0", "finished"),
        ("b-1.h5", "9_1", "unknown"),
    )
    assert sorted(status_without_slurm()) == [chain, first, second]
    assert status_without_slurm("7") == status_without_slurm("runs/a.h5") == [chain]
    assert status_without_slurm("9") == [first, second]
    assert status_without_slurm("9_1") == [second]
    table = CliRunner().invoke(main, ["status", "7"]).stdout
    assert "unknown" in table
    assert "no Slurm job is running it" not in table


@pytest.mark.usefixtures("unreachable_slurm")
def test_if_slurm_does_not_answer_nothing_is_submitted_or_stopped(job: Path) -> None:
    result = submit(job, "-n", 4)
    reason = "Unable to process configuration file; see mpi-ata doctor"
    assert (result.exit_code, result.output) == (1, f"Error: sbatch cannot reach Slurm: {reason}\n")
    assert list(Path().rglob("*.job")) == []
    record_submission("a.job", ["7"], "a.h5")
    for command in (["stop", "7"], ["submit", str(job), "-n", "4", "--out", "runs/a.h5", "--resume"]):
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, result.output) == (1, NO_ANSWER)


def test_a_run_that_was_never_submitted_has_no_status(job: Path) -> None:
    result = CliRunner().invoke(main, ["status", "mine.h5"])
    assert result.exit_code == 2
    assert "mine.h5 is neither the id of a Slurm job nor a run that was submitted" in result.output
    Path("mine.h5").touch()
    result = CliRunner().invoke(main, ["status", "mine.h5"])
    assert result.exit_code == 2
    assert "mine.h5 was not submitted: mpi-ata show" in result.output
