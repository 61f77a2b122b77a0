"""Loggers write one entry per evaluation beside the run file, under one id, and never end a run."""

import csv
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpi_ata
from mpi_ata import CSVLogger, Plain, Quadratic, Sqrt, Trace, UsageError, minimize
from mpi_ata.driver.observers import COLUMNS, LOGGERS
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.job.schema import LOGS, load_job
from tests.driver.driven import driven, logged
from tests.faults.scene import QUADRATIC, own_problem, written

OUT = OutputOptions(Path("run.h5"))
RESUMED = OutputOptions(Path("run.h5"), resume=True)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def job(*names: str, rounds: int = 9, problem: str = QUADRATIC) -> Path:
    """A job of nine rounds, evaluated every three, with these loggers."""
    return written(Path("job.toml"), rounds=rounds, run=f"log = {list(names)}", problem=problem)


def rows(name: str = "run.log.csv") -> list[dict[str, str]]:
    return list(csv.DictReader(Path(name).read_text().splitlines()))


def stopped(round: int, *names: str) -> None:
    """Stop a run after this round, by a signal."""

    def look(trace: Trace) -> None:
        if trace.round == round:
            signal.raise_signal(signal.SIGTERM)

    driven(job(*names), look=look, output=OUT)


def test_every_name_of_a_job_is_a_logger_and_others_are_rejected_with_the_valid_ones() -> None:
    assert tuple(LOGGERS) == LOGS
    with pytest.raises(UsageError, match=r"unknown name 'cvs'; valid names: csv, .* did you mean csv\?"):
        load_job(job("cvs"))


def test_a_csv_file_has_a_row_for_each_evaluation_with_the_numbers_of_the_run() -> None:
    outcome = driven(job("csv"), output=OUT)
    assert [row["round"] for row in rows()] == ["0", "3", "6", "9"]
    assert tuple(rows()[0]) == COLUMNS
    history, last = mpi_ata.load("run.h5").history, rows()[-1]
    assert [float(row["loss"]) for row in rows()] == history["loss"].tolist()
    assert [float(row["worker_time"]) for row in rows()] == history["worker_time"].tolist()
    assert float(last["clock"]) == outcome.trace.clock
    assert last["billed"] == "", "nobody is billed for a simulation"


def test_metrics_of_the_problem_are_columns_whenever_they_appear() -> None:
    class Measured(Quadratic):
        def evaluate(self, x: mpi_ata.Array) -> dict[str, float]:
            self.calls = getattr(self, "calls", 0) + 1
            return {"calls": self.calls, "round": 7.0} | ({"late": 1.0} if self.calls > 2 else {})

    minimize(Measured(5), 4, update=Plain(0.4), rounds=30, times=Sqrt(3), out="a.h5", observers=[CSVLogger()])
    found = rows("a.log.csv")
    assert [row["calls"] for row in found] == ["1.0", "2.0", "3.0", "4.0"]
    assert [row["late"] for row in found] == ["", "", "1.0", "1.0"]
    assert {row["evaluation.round"] for row in found} == {"7.0"}


def test_a_resumed_run_continues_its_log_and_replaces_what_it_repeats() -> None:
    stopped(5, "csv")
    assert [row["round"] for row in rows()] == ["0", "3", "5"], "where it stopped it is evaluated too"
    with Path("run.log.csv").open("a") as target:
        target.write("6,1,1,1,1,,1,1\n")  # as if it had been killed after its last save
    driven(job("csv"), output=RESUMED)
    assert [row["round"] for row in rows()] == ["0", "3", "5", "6", "9"]
    history = mpi_ata.load("run.h5").history
    losses = dict(zip(history["round"].tolist(), history["loss"].tolist(), strict=True))
    assert [float(row["loss"]) for row in rows()[-2:]] == [losses[6], losses[9]]


def test_a_new_run_does_not_continue_the_log_of_an_old_one_and_one_without_a_file_has_none() -> None:
    driven(job("csv"))
    assert not list(Path().glob("*.csv"))
    driven(job("csv"), output=OUT)
    Path("run.h5").unlink()
    driven(job("csv", rounds=3), output=OUT)
    assert [row["round"] for row in rows()] == ["0", "3"]


def test_a_failing_logger_never_ends_a_run() -> None:
    Path("run.log.csv").mkdir()
    with logged() as texts:
        assert driven(job("csv"), output=OUT).reason == "9 rounds"
    assert ["CSVLogger failed and is left out: IsADirectoryError" in text for text in texts] == [True]


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with logged() as texts:
        assert driven(job("wandb"), output=OUT).reason == "9 rounds"
    assert "needs wandb, which is not installed; use pip install 'mpi-ata[wandb]'" in texts[0]


def test_a_run_that_fails_leaves_the_log_of_its_rounds() -> None:
    problem = own_problem(Path(), "if task.round == 5: raise ValueError('broken')")
    with pytest.raises(mpi_ata.RunError, match="broken"):
        driven(job("csv", problem=problem), output=OUT)
    assert [row["round"] for row in rows()] == ["0", "3"]


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of an event file: length, checksum, data, checksum."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_tensorboard_gets_the_losses_by_round_and_drops_what_a_resumed_run_repeats() -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    stopped(5, "tensorboard")
    driven(job("tensorboard"), output=RESUMED)
    files = sorted(Path("run.tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    events = [Event.FromString(record) for path in files for record in records(path)]
    values = [(event.step, value) for event in events for value in event.summary.value]
    losses = {step: value.simple_value for step, value in values if value.tag == "loss"}
    history = mpi_ata.load("run.h5").history
    assert sorted(losses) == [0, 3, 5, 6, 9]
    for round, loss in zip(history["round"].tolist(), history["loss"].tolist(), strict=True):
        assert losses[round] == pytest.approx(loss, rel=1e-6), "event files hold 32 bits"
    starts = [event.step for event in events if event.session_log.status == SessionLog.START]
    assert starts[-1] == 6, "TensorBoard drops earlier events from this round on"


def test_wandb_is_offline_and_has_one_id_for_both_parts_of_a_run() -> None:
    pytest.importorskip("wandb")
    stopped(5, "wandb")
    driven(job("wandb"), output=RESUMED)
    run = mpi_ata.load("run.h5").summary["run"]
    parts = list(Path("wandb").glob("offline-run-*"))
    assert {part.name.split("-")[3] for part in parts} == {run}  # a second one of the same second ends in -1
    written_down = [file.read_bytes() for part in parts for file in part.glob("*.wandb")]
    assert written_down
    assert all(b"worker_time" in data for data in written_down)


def test_mlflow_has_one_run_for_both_parts_with_all_losses() -> None:
    mlflow = pytest.importorskip("mlflow")
    stopped(5, "mlflow")
    driven(job("mlflow"), output=RESUMED)
    client = mlflow.MlflowClient(Path("mlruns").absolute().as_uri())
    experiment = client.get_experiment_by_name("mpi_ata")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["mpi_ata_run"] == mpi_ata.load("run.h5").summary["run"]
    assert run.info.status == "FINISHED"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert sorted(steps) == [0, 3, 5, 6, 9]
