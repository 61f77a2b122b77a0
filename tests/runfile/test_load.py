"""Users read run files with mpi_ata.load, of any version."""

from pathlib import Path

import numpy as np
import pytest

import mpi_ata
from mpi_ata.arrays import State
from mpi_ata.clusters import in_flight
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.runfile.load import describe
from mpi_ata.runfile.schema import from_tree, to_tree
from tests.driver.driven import driven, logged
from tests.faults.scene import own_problem, record_of, saved_again, written
from tests.runfile.test_checkpoints import record as made

OUT = Path("run.h5")


def test_a_loaded_run_has_its_point_summary_history_workers_and_events(tmp_path: Path) -> None:
    driven(written(tmp_path / "job.toml", rounds=12, workers=4), output=OutputOptions(OUT))
    run, record = mpi_ata.load("run.h5"), record_of(OUT)
    assert np.array_equal(run.x, record.method["x"])
    assert (run.summary["rounds"], run.summary["finished"]) == (12, True)
    assert run.summary["worker_time"] == record.summary["worker_time"]
    assert run.history["round"][-1] == 12
    assert len(run.history["clock"]) == len(run.history["round"])
    assert [worker["slot"] for worker in run.workers] == [0, 1, 2, 3]
    assert list(run.workers[0])[:4] == ["host", "slot", "hardware", "ranks"]
    assert sum(worker["tasks"] for worker in run.workers) == run.summary["tasks_used"]
    assert [event["kind"] for event in run.events] == ["started", "ended"]
    assert run.job == (tmp_path / "job.toml").read_text()
    assert run.settings == []
    assert repr(run).startswith("<SavedRun: 12 rounds, finished; it has x, summary, history, ")
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


def test_an_event_remembers_the_host_that_its_worker_ran_on_then() -> None:
    saved = made()
    saved.event(1.0, "started", "on 1 worker")
    assert "host" not in to_tree(saved)[1]["events"]
    saved.event(2.0, "lost", "killed", worker=0)
    saved.identities = (saved.identities[0]._replace(host="elsewhere"),)
    read = from_tree(*to_tree(saved))
    assert [event.host for event in read.events] == ["", "here"]
    hosts = [(row["host"], row["verdict"]) for row in describe(read)["hosts"]]
    assert hosts == [("here", "lost"), ("elsewhere", "")]


@pytest.mark.parametrize(
    ("cluster", "method", "expected"),
    [
        ({"stopping": [0, 1, 0, 0]}, {"born": [4, -1, -1, 0]}, [1, 1, 0, 1]),
        ({"stopping": [0, 1]}, {}, [0, 1]),
        ({"stopping": [0, 1], "running": [1, 0]}, {"born": [3, 3]}, [1, 1]),
        ({"stopping": [0, 0], "running": [0, 0]}, {"born": [3, 3]}, [0, 0]),
        ({"stopping": [0, 1]}, {"born": [5]}, [0, 1]),
        ({"left": [0, 2]}, {"born": [3, 3]}, [0, 1]),
        ({}, {}, []),
    ],
    ids=["0.1.0 on ranks", "no born", "on ranks", "moved", "born of one's own", "virtual", "nothing"],
)
def test_orders_in_flight_are_found_in_files_of_any_version(
    cluster: dict[str, list[int]], method: dict[str, list[int]], expected: list[int]
) -> None:
    saved = made()
    saved.cluster = {name: np.array(values) for name, values in cluster.items()}
    saved.method |= {name: np.array(values) for name, values in method.items()}
    read: State = from_tree(*to_tree(saved)).cluster
    assert in_flight(read).tolist() == expected
    assert in_flight(read).dtype == np.int64
