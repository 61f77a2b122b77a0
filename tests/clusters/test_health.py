"""The rules by which a misbehaving worker is treated, without a cluster."""

import logging
import math

import numpy as np
import pytest

from mpi_ata.clusters import Back, FaultPolicy, Lost, TaskTimeStats
from mpi_ata.clusters.health import Health
from mpi_ata.errors import BadResultError, RunError

REISSUE = FaultPolicy(on_task_error="reissue", on_bad_result="reissue")


def known(n: int = 3, tasks: int = 400, mean: float = 2.0) -> TaskTimeStats:
    """Workers whose tasks took about `mean` seconds, the last digits apart."""
    stats, rng = TaskTimeStats(n), np.random.default_rng(1)
    for worker in range(n):
        stats.add(worker, (mean * rng.uniform(0.9, 1.1, tasks)).tolist())
    return stats


def suspended(policy: FaultPolicy = REISSUE, round: int = 5) -> Health:
    """Return a pool whose worker 1 became overdue in a round."""
    health = Health(known(), policy)
    assert health.overdue(1, 2, 60.0, round) == Lost(
        1, 2, "no result after 60 s, the deadline of its order; others do its tasks", "overdue"
    )
    return health


def probe(health: Health, round: int, seconds: float) -> Back | Lost | None:
    assert health.due(round) == [1]
    health.tried(1, round)
    return health.answered(1, seconds)


def test_a_hang_of_a_steady_worker_is_found_after_about_ten_times_its_usual_time() -> None:
    health = Health(known())
    for count in (1, 4, 16):
        # Mean, spread and the 20 / 400 for the tasks that are not yet known.
        assert 10 < health.deadline(0, count) / (2.0 * count) < 12


def test_a_deadline_is_generous_while_little_is_known_and_infinite_while_nothing_is() -> None:
    stats = TaskTimeStats(3)
    health = Health(stats)
    assert health.deadline(0, 1) == math.inf
    stats.add(0, [2.0])
    stats.add(1, [2.0] * 1000)
    few, many, none = (health.deadline(worker, 1) for worker in range(3))
    assert many == pytest.approx(20, rel=0.03)
    assert few > 10 * many
    assert none == pytest.approx(10 * few)


def test_a_deadline_widens_with_the_tail_of_the_workers_own_times() -> None:
    stats = known(2, 4000)
    before = Health(stats).deadline(1, 1)
    stats.add(0, [500.0])
    heavy, light = (Health(stats).deadline(worker, 1) for worker in range(2))
    assert heavy > 10 * 500
    assert light < 2 * before, "4000 tasks of its own count more than the tail of another"


def test_a_single_accident_widens_a_deadline_to_ten_times_itself_and_a_second_one_to_more() -> None:
    stats = known(2, 4000)
    stats.add(0, [500.0])
    once = Health(stats).deadline(0, 1)
    assert 10 * 500 < once < 11 * 500
    stats.add(0, [400.0])
    assert Health(stats).deadline(0, 1) > 5 * once, "such tasks are no accidents"


def test_the_two_longest_tasks_are_known_in_whatever_order_they_come() -> None:
    for order in ([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 1.0]):
        together, singly = TaskTimeStats(2), TaskTimeStats(2)
        together.add(1, order)
        for seconds in order:
            singly.add(1, [seconds])
            singly.fold()
        restored = TaskTimeStats(2)
        restored.restore(together.state())
        for stats in (together, singly, restored):
            stats.fold()
            assert (stats.largest.tolist(), stats.second.tolist()) == ([0.0, 3.0], [0.0, 2.0])


def test_a_deadline_contains_the_usual_overhead_of_an_order() -> None:
    stats = known()
    before = Health(stats).deadline(1, 1)
    stats.add(1, [2.0], overhead=7.0)
    stats.add(1, [2.0], overhead=11.0)
    # Of three arrivals: mean overhead 6.
    assert Health(stats).deadline(1, 1) - before == pytest.approx(10 * 6.0, rel=0.01)


def test_a_deadline_is_never_below_the_floor_and_with_0_there_is_none() -> None:
    assert Health(known(), floor=300.0).deadline(0, 1) == 300.0
    assert Health(known(), FaultPolicy(deadline=0)).deadline(0, 1) == math.inf


def test_an_overdue_worker_is_tried_after_1_2_4_rounds_and_is_back_when_it_answers_as_before() -> None:
    health = suspended(round=5)
    assert health.available.tolist() == [True, False, True]
    assert not health.everyone
    assert (health.next_trial, health.due(5)) == (6, [])
    slow = probe(health, 6, 50.0)
    assert isinstance(slow, Lost)
    assert (slow.tasks, slow.kind) == (0, "overdue")
    assert health.next_trial == 8
    assert probe(health, 8, 500.0) is None, "said once per stay"
    assert health.next_trial == 12
    assert probe(health, 12, 2.1) == Back(1, [2.1], "a task took 2.1 s, as before")
    assert health.everyone
    assert health.next_trial == math.inf


def test_a_worker_just_below_the_deadline_is_not_yet_as_before() -> None:
    health = suspended()
    assert isinstance(probe(health, 6, 0.9 * health.deadline(1, 1)), Lost)


def test_a_probe_that_stays_out_doubles_the_pause() -> None:
    health = suspended()
    health.tried(1, 6)
    health.unanswered(1, 8)
    assert health.next_trial == 10
    health.unanswered(1, 10)
    assert health.next_trial == 14


def test_three_slow_answers_that_resemble_each_other_make_a_slower_worker() -> None:
    health = suspended()
    before = health.deadline(1, 1)
    found = [probe(health, round, seconds) for round, seconds in ((6, 50.0), (8, 70.0), (12, 60.0))]
    back = found[-1]
    assert isinstance(back, Back)
    assert back.seconds == [50.0, 70.0, 60.0]
    assert back.why == "29.9 × slower than before"
    assert health.deadline(1, 1) > 30 * before, "relearned from three tasks, so generous"
    assert health.deadlines.usual(1) > 70.0


def test_slow_answers_that_differ_do_not() -> None:
    health = suspended()
    rounds = ((6, 50.0), (8, 5000.0), (12, 60.0), (20, 70.0))
    assert not any(isinstance(probe(health, round, seconds), Back) for round, seconds in rounds)
    assert isinstance(probe(health, 36, 55.0), Back)


def test_a_worker_of_whom_nothing_was_known_is_back_with_its_first_answer() -> None:
    health = Health(TaskTimeStats(3))
    health.overdue(1, 1, 60.0, 5)
    assert isinstance(probe(health, 6, 1e6), Back)


def test_the_last_worker_is_waited_for_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    health = suspended()
    health.died(2, 0, "gone")
    with caplog.at_level(logging.WARNING):
        assert health.overdue(0, 1, 60.0, 5) is None
        assert health.overdue(0, 1, 90.0, 5) is None
    assert len(caplog.records) == 1
    assert "no other worker is left, so the run waits for it" in caplog.text
    assert health.available[0]


def test_where_workers_own_their_data_deadlines_only_warn(caplog: pytest.LogCaptureFixture) -> None:
    health = Health(known(), FaultPolicy(owned=True))
    assert health.overdue(1, 1, 60.0, 5) is None
    assert "no other worker has its data" in caplog.text
    assert health.everyone


def test_failures_end_the_run_unless_the_job_says_reissue() -> None:
    with pytest.raises(RunError, match="it broke"):
        Health(known()).failed(1, 1, RunError("it broke"), 5)
    with pytest.raises(RunError, match="NaN"):
        Health(known(), FaultPolicy(on_task_error="reissue")).failed(1, 1, BadResultError("NaN"), 5)


def test_after_max_failures_a_worker_is_excluded_for_good() -> None:
    health = Health(known(), REISSUE)
    first = health.failed(1, 1, RunError("it broke"), 5)
    assert first == Lost(1, 1, "it broke; others do its tasks", "failed")
    assert isinstance(probe(health, 6, 2.0), Back)
    second = health.failed(1, 2, BadResultError("NaN"), 9)
    assert second is not None
    assert second.kind == "bad-result"
    health.tried(1, 10)
    last = health.failed(1, 1, RunError("it broke"), 10)
    assert last is not None
    assert (last.kind, last.why) == ("excluded", "excluded from the run after 3 failure(s): it broke")
    assert health.next_trial == math.inf
    assert health.available.tolist() == [True, False, True]


def test_if_the_last_worker_fails_the_run_ends_with_its_error() -> None:
    health = suspended()
    health.died(2, 0, "gone")
    with pytest.raises(RunError, match="it broke"):
        health.failed(0, 1, RunError("it broke"), 5)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"deadline": 0.5}, r"deadline=0.5 must be at least 1, or 0 to wait forever"),
        ({"deadline": math.nan}, r"deadline=nan must be"),
        ({"on_task_error": "ignore"}, r"on_task_error='ignore' must be 'stop' or 'reissue'"),
        ({"on_bad_result": "drop"}, r"on_bad_result='drop' must be 'stop' or 'reissue'"),
        ({"max_failures": 0}, r"max_failures=0 must be at least 1"),
    ],
)
def test_invalid_policies_are_rejected(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        FaultPolicy(**keys)  # type: ignore[arg-type]
