"""A run that fails saves its completed rounds and the reason first; so does one that has lost too much."""

from pathlib import Path

import pytest

from mpi_ata import VirtualCluster
from mpi_ata.batch.status import SubmittedRun, state_of
from mpi_ata.batch.submission_dir import SubmissionDir
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError
from mpi_ata.launch.signals import StopRequest
from mpi_ata.runfile.load import describe
from mpi_ata.runfile.progress import read_progress
from tests.driver.driven import driven
from tests.driver.test_recorder import called
from tests.faults.scene import own_problem, record_of, written

OUT = Path("run.h5")
BROKEN = "if task.round == 7 and Path('broken').exists(): raise ValueError('no more data')"
LOSS = """
    def loss(self, x):
        self.evaluated = getattr(self, "evaluated", 0) + 1
        if self.evaluated == 3 and Path('broken').exists():
            raise ValueError('no loss today')
        return super().loss(x)
"""


def failing(folder: Path, method: str, body: str = BROKEN, run: str = "checkpoint_rounds = 1000") -> Path:
    """A job whose problem fails while there is a file `broken`."""
    Path("broken").touch()
    return written(folder / "job.toml", method, 20, problem=own_problem(folder, body), run=run)


def failed(job: Path) -> str:
    """Run a job that fails, and return the error."""
    with pytest.raises(RunError) as error:
        driven(job, output=OutputOptions(OUT))
    return str(error.value)


@pytest.mark.parametrize(
    "method", ["sgd uta", "sgd ata-empirical", "sgd gta", "asgd ata-empirical", "malenia"]
)
def test_the_completed_rounds_are_saved_with_the_reason(tmp_path: Path, method: str) -> None:
    text = failed(failing(tmp_path, method))
    assert "run.h5 holds the run up to round 6; fix this, then continue with --out run.h5 --resume" in text
    record = record_of(OUT)
    assert record.method["k"] == 6
    assert "failed in round 7" in record.failure
    assert record.failure.endswith("ValueError: no more data")
    last = record.events[-1]
    assert (last.kind, last.text, last.worker) == ("failed", record.failure, -1)


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("BaseException('odd')", "BaseException: odd"),
        ("ValueError(os.fsdecode(b'a\\xff'))", r"ValueError: a\udcff"),
    ],
)
def test_whatever_a_task_raises_is_recorded_as_its_failure(tmp_path: Path, raised: str, shown: str) -> None:
    text = failed(failing(tmp_path, "sgd uta", f"if task.round == 7: raise {raised}"))
    assert f"{shown}\nrun.h5 holds the run up to round 6" in text
    assert record_of(OUT).failure.endswith(shown)


def test_a_round_whose_evaluation_fails_is_saved_too(tmp_path: Path) -> None:
    job = failing(tmp_path, "sgd uta", "pass")
    (tmp_path / "own.py").write_text((tmp_path / "own.py").read_text() + LOSS)
    assert "loss(x) of the problem failed" in failed(job)
    record = record_of(OUT)
    assert record.method["k"] == record.summary["rounds"] == 6, "evaluated at rounds 0, 3 and 6"
    assert record.failure == "loss(x) of the problem failed: ValueError: no loss today"


@pytest.mark.parametrize("body", ["raise ValueError('no data')", "return None"])
def test_a_run_that_fails_before_its_first_completed_round_leaves_no_file(tmp_path: Path, body: str) -> None:
    text = failed(failing(tmp_path, "sgd uta", body))
    assert text.endswith("\nno completed round could be saved, so run.h5 was removed")
    assert not list(tmp_path.glob("run.h5*"))


def test_a_resumed_run_that_fails_at_once_keeps_its_file_and_one_that_is_fixed_has_not_failed(
    tmp_path: Path,
) -> None:
    job = failing(tmp_path, "sgd uta")
    failed(job)
    with pytest.raises(RunError, match="holds the run up to round 6"):
        driven(job, output=OutputOptions(OUT, resume=True))
    assert [event.kind for event in record_of(OUT).events] == ["started", "failed", "resumed", "failed"]
    Path("broken").unlink()
    driven(job, output=OutputOptions(OUT, resume=True))
    record = record_of(OUT)
    assert (record.reason, record.failure, record.summary["tasks_used"]) == ("20 rounds", "", 20 * 7)


def test_the_failure_is_shown(tmp_path: Path) -> None:
    failed(failing(tmp_path, "sgd uta"))
    failure = record_of(OUT).failure
    assert read_progress(OUT).failure == describe(record_of(OUT))["failure"] == failure
    shown = called("show", OUT).stdout
    assert f"state          failed: {failure}\n" in shown
    submitted = SubmittedRun(SubmissionDir.of_run(OUT), OUT, None, [])
    assert state_of(submitted, read_progress(OUT)) == ("failed", failure)


@pytest.mark.parametrize("method", ["malenia", "heterogeneous-data-sgd"])
def test_where_workers_own_their_data_the_rounds_before_a_loss_are_saved_and_can_be_resumed(
    tmp_path: Path, method: str
) -> None:
    job = written(tmp_path / "job.toml", method, rounds=40, run="checkpoint_rounds = 1000")
    out = tmp_path / "run.h5"
    plan, trace = resolve(job, output=OutputOptions(out)), Trace()
    problem, times, made = plan.parts()
    assert times is not None
    cluster = VirtualCluster(problem, times, plan.job.run.seed, {2: 3000.0})
    with StopRequest(1.0) as stop, pytest.raises(RunError) as error:
        Drive(plan, made, problem, cluster, trace, [], stop).outcome()
    text, rounds = str(error.value), trace.round
    assert 0 < rounds < 40
    assert "worker 2 (host virtual, slot 2) is lost (it vanished at 3000 s on the virtual clock)" in text
    assert (
        f"{out} holds the run up to round {rounds}; fix this, then continue with --out {out} --resume" in text
    )
    record = record_of(out)
    assert record.method["k"] == rounds
    assert [event.worker for event in record.events if event.kind == "lost"] == [2]
    delivered, stopped = record.workers["tasks"].sum(), record.cluster["undelivered"].sum()
    assert trace.used + trace.wasted == delivered + stopped, "what the others did in that round is wasted"
    driven(job, output=OutputOptions(out, resume=True))
    assert record_of(out).method["k"] == 40
