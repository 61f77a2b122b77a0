"""Users read run files with mpi_ata.load."""

from pathlib import Path

import numpy as np
import pytest

import mpi_ata
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.driver.driven import driven, logged
from tests.faults.scene import own_problem, saved_again, written

OUT = Path("run.h5")


def test_a_loaded_run_has_its_point_summary_history_workers_and_events(tmp_path: Path) -> None:
    driven(written(tmp_path / "job.toml", rounds=12, workers=4), output=OutputOptions(OUT))
    run, record = mpi_ata.load("run.h5"), load_record(RunFile(OUT))[0]
    assert np.array_equal(run.x, record.method["x"])
    assert (run.summary["rounds"], run.summary["finished"]) == (12, True)
    assert run.summary["worker_time"] == record.summary["worker_time"]
    assert run.history["round"][-1] == 12
    assert len(run.history["clock"]) == len(run.history["round"])
    assert [worker["slot"] for worker in run.workers] == [0, 1, 2, 3]
    assert sum(worker["tasks"] for worker in run.workers) == run.summary["tasks_used"]
    assert [event["kind"] for event in run.events] == ["started", "ended"]
    assert run.job == (tmp_path / "job.toml").read_text()
    assert run.settings == []
    assert repr(run).startswith("<SavedRun: 12 rounds, finished at 12 rounds; it has x, summary, history, ")
    assert len(repr(run)) < 200
    assert np.isnan(run.history["largest_delay"]).all(), "as mean_delay: nothing is delayed"


def test_a_damaged_run_is_loaded_from_the_save_before_with_a_warning(tmp_path: Path) -> None:
    driven(written(tmp_path / "job.toml", rounds=3), output=OutputOptions(OUT))
    saved_again(OUT)
    OUT.write_bytes(OUT.read_bytes()[:-1])
    with logged() as texts:
        mpi_ata.load(OUT)
    (text,) = texts
    assert text.endswith("using run.h5.previous, the save before it")


def test_what_is_no_run_file_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    own_problem(tmp_path, "")
    with pytest.raises(mpi_ata.UsageError, match=r"is not a run file of mpi_ata"):
        mpi_ata.load(next(tmp_path.glob("*.py")))
    with pytest.raises(mpi_ata.UsageError, match=r"nothing.h5: cannot be read: No such file"):
        mpi_ata.load("nothing.h5")
