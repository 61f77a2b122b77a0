"""The accounts of a cluster."""

import numpy as np
import pytest

from mpi_ata.clusters import Ledger, in_flight
from mpi_ata.clusters.accounts import FOLD


def test_worker_time_is_that_of_delivered_and_of_stopped_tasks() -> None:
    ledger = Ledger(3)
    ledger.deliver(0, [1.0, 2.0], 3.0)
    ledger.deliver(0, [4.0], 4.0, overhead=0.5)
    ledger.stop(np.array([0, 2]), np.array([1, 2]), np.array([0.25, 8.0]))
    ledger.lose(1, 1)
    assert ledger.worker_time.tolist() == [7.25, 0.0, 8.0]
    assert (ledger.stopped.tolist(), ledger.stopped_time.tolist()) == ([1, 0, 2], [0.25, 0.0, 8.0])
    assert ledger.lost.tolist() == [0, 1, 0]
    stats = ledger.stats.state()
    assert (stats["tasks"].tolist(), stats["arrivals"].tolist()) == ([3, 0, 0], [2, 0, 0])
    assert (stats["seconds"][0], stats["overhead"][0]) == (7.0, 0.5)


def test_arrivals_are_added_up_before_they_become_too_many() -> None:
    ledger = Ledger(2)
    for _ in range(FOLD + 1):
        ledger.deliver(1, [1.0], 1.0)
    assert len(ledger.stats.pending) == 1
    assert ledger.stats.state()["tasks"].tolist() == [0, FOLD + 1]


def test_changes_are_those_since_a_mark() -> None:
    ledger = Ledger(2)
    start = ledger.mark()
    assert [each.tolist() for each in ledger.changes(start)[:2]] == [[0, 0], [0, 0]]
    ledger.stop(0, 2, 1.5)
    ledger.lose(1, 1)
    first, later = ledger.changes(start), ledger.mark()
    ledger.stop(0, 1, 0.5)
    second = ledger.changes(later)
    assert ledger.changes(start).stopped.tolist() == [3, 0]
    assert (first.stopped.tolist(), first.lost.tolist(), first.stopped_time) == ([2, 0], [0, 1], 1.5)
    assert (second.stopped.tolist(), second.lost.tolist(), second.stopped_time) == ([1, 0], [0, 0], 0.5)
    assert ledger.changes(ledger.mark()).stopped_time == 0.0
    assert first.stopped.tolist() == [2, 0], "what was reported does not change"


def test_what_an_earlier_process_booked_is_no_change() -> None:
    first, second = Ledger(2), Ledger(2)
    first.stop(0, 2, 1.5)
    state = first.state()
    assert list(state) == ["worker_time", "undelivered", "undelivered_time"], "the names in a run file"
    second.restore(state)
    before = second.mark()
    second.lose(np.arange(2), np.array([0, 1]))
    changes = second.changes(before)
    assert (changes.stopped.tolist(), changes.lost.tolist(), changes.stopped_time) == ([0, 0], [0, 1], 0.0)
    assert (second.worker_time.tolist(), second.stopped.tolist()) == ([1.5, 0.0], [2, 0])
    second.stop(0, 1, 1.0)
    assert state["undelivered"].tolist() == [2, 0]


def test_a_state_of_other_workers_is_rejected_and_changes_nothing() -> None:
    ledger = Ledger(2)
    with pytest.raises(ValueError, match=r"'worker_time' of the state is float64 of shape \(3,\)"):
        ledger.restore(Ledger(3).state())
    assert ledger.worker_time.tolist() == [0.0, 0.0]


def test_time_taken_over_from_other_workers_is_no_change() -> None:
    first, second = Ledger(3), Ledger(2)
    first.deliver(2, [4.0], 4.0)
    first.stop(2, 1, 1.5)
    second.take_over(first.stats.state() | {"unfinished": first.stopped_time}, [(0, 2)])
    assert second.stopped_time.tolist() == [1.5, 0.0]
    assert second.stats.state()["tasks"].tolist() == [1, 0]
    before = second.mark()
    second.stop(1, 1, 0.5)
    assert second.changes(before).stopped_time == 0.5


def test_orders_in_flight_are_found_in_the_state_of_either_cluster() -> None:
    on_ranks = {"stopping": np.array([0, 1, 0]), "running": np.array([0, 0, 1])}
    assert in_flight(on_ranks).tolist() == [0, 1, 1]
    assert in_flight({"left": np.array([0, 5, 1])}).tolist() == [0, 1, 1]
    assert in_flight({}).tolist() == []
