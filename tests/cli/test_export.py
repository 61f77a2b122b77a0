"""mpi-ata export writes parts of a run file for other programs."""

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest

import mpi_ata
from mpi_ata import Plain, Quadratic, Sqrt
from mpi_ata.runfile.schema import HistoryRow
from tests.cli.commands import call


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mpi_ata.SavedRun:
    monkeypatch.chdir(tmp_path)
    mpi_ata.minimize(Quadratic(5), 4, update=Plain(0.4), rounds=20, times=Sqrt(3), out="run.h5")
    return mpi_ata.load("run.h5")


def test_the_point_is_written_for_numpy_and_tables_as_csv(run: mpi_ata.SavedRun) -> None:
    options = ["--x", "x.npy", "-o", "history.csv", "--workers", "workers.csv"]
    assert call("export", "run.h5", *options).exit_code == 0
    assert np.array_equal(np.load("x.npy"), run.x)
    rows = list(csv.DictReader(Path("history.csv").read_text().splitlines()))
    assert tuple(rows[0]) == HistoryRow._fields
    assert [float(row["gap"]) for row in rows] == run.history["gap"].tolist()
    assert rows[0]["mean_delay"] == rows[0]["largest_delay"] == "", "what is not known is empty"
    workers = list(csv.DictReader(Path("workers.csv").read_text().splitlines()))
    assert [int(row["tasks"]) for row in workers] == [worker["tasks"] for worker in run.workers]
    assert [row["worker"] for row in workers] == ["0", "1", "2"]


def test_a_point_that_is_not_one_array_is_rejected_but_tables_are_written() -> None:
    job = str(Path(mpi_ata.__file__).parent.parent / "jobs" / "monte_carlo.toml")
    call("run", job, "--virtual", "--set", "stop.rounds=3", "--out", "pi.h5")
    result = call("export", "pi.h5", "--x", "pi.npy", "-o", "pi.csv")
    assert result.exit_code == 2
    assert "--x: x is not one array; use mpi_ata.load('pi.h5').x in Python" in result.stderr
    assert Path("pi.csv").exists()
    assert not Path("pi.npy").exists()


def test_the_history_and_the_workers_are_written_as_parquet(run: mpi_ata.SavedRun) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert call("export", "run.h5", "-o", "history.parquet", "--workers", "workers.parquet").exit_code == 0
    history = parquet.read_table("history.parquet").to_pydict()
    assert tuple(history) == HistoryRow._fields
    assert history["gap"] == run.history["gap"].tolist()
    assert history["mean_delay"] == [None] * 3, "what is not known is null"
    workers = parquet.read_table("workers.parquet").to_pylist()
    assert [row["tasks"] for row in workers] == [worker["tasks"] for worker in run.workers]
    assert {row["host"] for row in workers} == {"virtual"}


def test_without_pyarrow_a_parquet_file_is_rejected_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = call("export", "run.h5", "-o", "history.parquet")
    assert result.exit_code == 2
    assert "needs pyarrow, which is not installed; use pip install 'mpi-ata[parquet]', or" in result.output
    assert not Path("history.parquet").exists()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["-o", "history.xls"], "history.xls: the name of a table must end in .csv or .parquet"),
        (["--x", "nowhere/x.npy"], "nowhere/x.npy cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_rule(options: list[str], rule: str) -> None:
    result = call("export", "run.h5", *options)
    assert result.exit_code == 2
    assert rule in result.stderr
    assert not Path(options[1]).exists()


def test_without_options_the_history_is_printed() -> None:
    printed = call("export", "run.h5").stdout
    assert [row["round"] for row in csv.DictReader(io.StringIO(printed))] == ["0", "10", "20"]


@pytest.mark.parametrize(
    ("option", "target"), [("--x", "run.h5"), ("-o", "linked.h5"), ("--workers", "other.h5")]
)
def test_no_run_is_overwritten(option: str, target: str) -> None:
    before = Path("run.h5").read_bytes()
    Path("linked.h5").symlink_to("run.h5")
    Path("other.h5").write_bytes(before)
    done = call("export", "run.h5", option, target)
    assert done.exit_code == 2
    assert f"{target} is a run file, and is not overwritten" in done.stderr
    assert Path("run.h5").read_bytes() == Path("other.h5").read_bytes() == before
