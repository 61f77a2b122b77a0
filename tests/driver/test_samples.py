"""Rounds on ranks are recorded as they were, and who did how many tasks by which round, in bounded space."""

from pathlib import Path

import numpy as np
import pytest

from mpi_ata.arrays import State
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.driver import recorder
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.driver.recorder import COLUMNS, ROWS_TASK_MAP, RoundSample, TaskMap
from tests.driver.driven import driven
from tests.faults.scene import record_of, written


def filled(rounds: int, tasks: int = 2) -> RoundSample:
    sample = RoundSample()
    for k in range(1, rounds + 1):
        if sample.due(k):
            sample.add(k, k / 10, [(0, [k + i / 10 for i in range(tasks)], 0.5), (3, [1.0], 0.25)])
    return sample


def test_a_round_is_kept_with_the_times_and_overheads_of_its_orders() -> None:
    columns = filled(2).state().values()
    rounds = [[1, 2], [0.1, 0.2], [2, 2]]
    orders = [[0, 3, 0, 3], [0.5, 0.25, 0.5, 0.25], [2, 1, 2, 1], [1.0, 1.1, 1.0, 2.0, 2.1, 1.0]]
    assert [column.tolist() for column in columns] == [*rounds, *orders]


def test_when_there_are_too_many_rounds_every_other_one_is_dropped() -> None:
    rounds = filled(5000).state()["round"]
    assert len(rounds) <= recorder.ROWS
    assert set(np.diff(rounds)) == {8}


def test_the_tasks_of_all_rounds_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "TASKS", 100)
    state = filled(64, tasks=9).state()
    assert len(state["seconds"]) <= 100
    assert state["round"].tolist() == [8, 16, 24, 32, 40, 48, 56, 64]
    assert len(filled(8, tasks=500).state()["round"]) == 1, "one round is always kept"


def test_a_resumed_run_continues_its_sample() -> None:
    again = RoundSample()
    again.restore(filled(1500).state())
    for name, column in filled(1500).state().items():
        assert np.array_equal(again.state()[name], column), name
    assert not again.due(1501)
    again.restore({})
    assert len(again.state()["round"]) == 750


def test_deliveries_are_logged_from_when_somebody_asks_until_they_are_taken() -> None:
    stats = TaskTimeStats(2)
    stats.add(0, [1.0])
    assert stats.take_log() is None
    stats.begin_log()
    stats.add(1, [2.0, 3.0], 0.5)
    stats.fold()
    stats.add(0, [4.0])
    assert stats.take_log() == [(1, [2.0, 3.0], 0.5), (0, [4.0], 0.0)]
    stats.add(0, [5.0])
    stats.fold()
    assert stats.take_log() is None
    stats.begin_log()
    assert stats.take_log() == []


def map_of(folder: Path, rounds: int, *settings: str, out: str = "run.h5") -> State:
    """Run a job, or resume it, and return its map."""
    output = OutputOptions(folder / out, resume=True)
    driven(written(folder / "job.toml"), [f"stop.rounds={rounds}", *settings], output=output)
    return record_of(folder / out).task_map


def test_every_round_of_a_short_run_is_in_the_map_and_adds_the_budget(tmp_path: Path) -> None:
    found = map_of(tmp_path, 50)
    assert found["round"].tolist() == list(range(1, 51))
    assert found["tasks"].sum(axis=1).tolist() == [7 * k for k in range(1, 51)]
    assert (np.diff(found["tasks"], axis=0) >= 0).all()
    assert (np.diff(found["clock"]) > 0).all()


def test_the_map_of_a_long_run_is_bounded_and_evenly_spaced() -> None:
    task_map = TaskMap(3)
    for round in range(1, 10_000):
        if task_map.due(round):
            task_map.add(round, float(round), np.full(3, round))
    found = task_map.state()
    assert ROWS_TASK_MAP / 2 - 1 <= len(found["round"]) <= ROWS_TASK_MAP
    assert len(set(np.diff(found["round"]).tolist())) == 1
    assert found["round"][-1] > 9_800


def test_many_workers_are_added_up_in_groups_that_lose_no_task() -> None:
    n = 5 * COLUMNS + 3
    task_map = TaskMap(n)
    task_map.add(1, 1.0, np.arange(n))
    tasks = task_map.state()["tasks"]
    assert tasks.shape[1] <= COLUMNS
    assert tasks.sum() == np.arange(n).sum()


@pytest.mark.slow
def test_a_resumed_run_continues_its_map_but_on_other_workers_begins_a_new_one(tmp_path: Path) -> None:
    map_of(tmp_path, 20)
    resumed, whole = map_of(tmp_path, 300), map_of(tmp_path, 300, out="whole.h5")
    assert all(np.array_equal(resumed[name], whole[name]) for name in ("round", "tasks"))
    fewer = map_of(tmp_path, 310, "run.workers=3")
    assert fewer["round"].tolist() == list(range(301, 311))
