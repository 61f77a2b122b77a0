"""Rounds on ranks are recorded as they were, in bounded space."""

import numpy as np
import pytest

from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.driver import recorder as round_sample
from mpi_ata.driver.recorder import RoundSample


def filled(rounds: int, tasks: int = 2) -> RoundSample:
    sample = RoundSample()
    for k in range(1, rounds + 1):
        if sample.due(k):
            sample.add(k, k / 10, [(0, [k + i / 10 for i in range(tasks)], 0.5), (3, [1.0], 0.25)])
    return sample


def test_a_round_is_kept_with_the_times_and_overheads_of_its_orders() -> None:
    state = filled(2).state()
    assert state["round"].tolist() == [1, 2]
    assert state["duration"].tolist() == [0.1, 0.2]
    assert state["deliveries"].tolist() == [2, 2]
    assert state["worker"].tolist() == [0, 3, 0, 3]
    assert state["tasks"].tolist() == [2, 1, 2, 1]
    assert state["overhead"].tolist() == [0.5, 0.25, 0.5, 0.25]
    assert state["seconds"].tolist() == [1.0, 1.1, 1.0, 2.0, 2.1, 1.0]


def test_when_there_are_too_many_rounds_every_other_one_is_dropped() -> None:
    rounds = filled(5000).state()["round"]
    assert len(rounds) <= round_sample.ROWS
    assert set(np.diff(rounds)) == {8}


def test_the_tasks_of_all_rounds_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_sample, "TASKS", 100)
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
