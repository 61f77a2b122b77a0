"""What happened in a run: totals that add up, a history that stays small, and when to stop."""

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata import Constant, DrawnTimes, Quadratic, Round, Stop, Trace, VirtualCluster
from mpi_ata.driver.evaluation import Evaluation
from mpi_ata.driver.trace import Regret
from mpi_ata.errors import RunError


def counts(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def a_round(number: int, duration: float = 1.0) -> Round:
    """A round of two workers, in which each kind of task has its own count."""
    return Round(number, counts(3, 1), counts(3, 1), counts(0, 2), counts(16, 0), 0.25, duration)


def a_cluster(*worker_time: float) -> VirtualCluster:
    """Two workers, who have worked for so long."""
    cluster = VirtualCluster(Quadratic(), DrawnTimes(Constant(2)))
    cluster.ledger.worker_time[:] = worker_time
    return cluster


def trace_at(rounds: int = 1, clock: float = 1.0, loss: float = math.nan, gap: float = math.nan) -> Trace:
    """A trace that has come this far."""
    trace = Trace()
    trace.add(a_round(rounds, clock), a_cluster(0.0, 0.0).ledger)
    trace.record(Evaluation(loss, gap))
    return trace


def test_the_totals_are_the_sums_over_the_rounds() -> None:
    trace = Trace()
    trace.add(a_round(1, duration=2.0), a_cluster(2.0, 1.0).ledger)
    trace.add(a_round(2, duration=0.5), a_cluster(2.5, 1.5).ledger)
    assert (trace.round, trace.clock, trace.waste) == (2, 2.5, 0.5)
    assert (trace.used, trace.wasted, trace.lost, trace.started) == (8, 4, 32, 44)
    assert trace.worker_time == 4.0, "the cluster's figure is a total already"


def test_delays_are_counted_where_there_are_any() -> None:
    trace, cluster = Trace(), a_cluster(0.0, 0.0)
    trace.add(a_round(1), cluster.ledger)
    assert math.isnan(trace.mean_delay)
    trace.add(a_round(2)._replace(delays=counts(0, 3, 1)), cluster.ledger)
    trace.add(a_round(3)._replace(delays=counts(2)), cluster.ledger)
    trace.record()
    assert trace.rows[-1][-2:] == (1.5, 3)
    assert (trace.delays, trace.delay_sum, trace.mean_delay, trace.largest_delay) == (4, 6, 1.5, 3)


def test_a_row_holds_the_totals_and_the_loss_of_its_moment() -> None:
    trace = Trace()
    trace.record(Evaluation(3.0, 2.0))
    trace.add(a_round(1, duration=2.0), a_cluster(2.0, 1.0).ledger)
    trace.record(Evaluation(1.5, 0.5))
    trace.add(a_round(2), a_cluster(9.0, 9.0).ledger)
    first, second = (row._replace(elapsed=0.0) for row in trace.rows)
    assert first[:-3] == (0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 3.0, 2.0)
    assert second[:-3] == (1, 2.0, 0.0, 3.0, 0.25, 22, 4, 2, 16, 1.5, 0.5)
    assert (trace.loss, trace.gap) == (1.5, 0.5)


def test_the_regret_is_what_quotas_take_beyond_the_best_ones_by_the_true_means() -> None:
    trace, cluster = Trace(), a_cluster(0.0, 0.0)
    trace.track_regret(Regret(np.array([1.0, 2.5]), budget=4))  # best: 3 tasks and 1, which take max(3, 2.5)
    trace.add(a_round(1), cluster.ledger)
    assert trace.regret == 0.0
    trace.add(a_round(2)._replace(quota=counts(2, 2)), cluster.ledger)
    trace.add(a_round(3)._replace(quota=counts(4, 0)), cluster.ledger)
    trace.record()
    assert trace.rows[-1].regret == (5.0 - 3.0) + (4.0 - 3.0)
    trace.add(a_round(4)._replace(quota=counts(4, 4)), cluster.ledger)
    assert math.isnan(trace.regret), "greedy quotas do not say who does how much"


def recorded(capacity: int, records: int) -> list[int]:
    """The rounds of the rows that are left of so many, the first of which is before any round."""
    trace = Trace(capacity)
    for number in range(records):
        trace.round = number
        trace.record()
    return [row.round for row in trace.rows]


@given(st.integers(1, 9), st.integers(1, 300))
def test_however_many_are_recorded_the_rows_are_few_evenly_spaced_and_from_the_first_on(
    capacity: int, records: int
) -> None:
    rounds = recorded(capacity, records)
    assert capacity / 2 <= len(rounds) <= capacity or rounds == list(range(records))
    stride = rounds[1] if len(rounds) > 1 else records
    assert rounds == list(range(0, rounds[-1] + 1, stride))
    assert records - 1 - rounds[-1] < stride


def test_metrics_stand_beside_their_rows_and_are_nan_where_a_row_has_none() -> None:
    trace = Trace()
    trace.record(Evaluation(1.0, metrics={"accuracy": 0.25}))
    trace.record(Evaluation(2.0, metrics={"accuracy": 0.5, "norm": 3.0}))
    trace.record(Evaluation(3.0))
    assert trace.metrics["accuracy"] == pytest.approx([0.25, 0.5, math.nan], nan_ok=True)
    assert trace.metrics["norm"] == pytest.approx([math.nan, 3.0, math.nan], nan_ok=True)
    assert trace.evaluation == {}, "of the latest evaluation"


@given(st.integers(1, 9), st.integers(1, 100))
def test_further_figures_are_thinned_out_with_their_rows(capacity: int, records: int) -> None:
    trace = Trace(capacity)
    for number in range(records):
        trace.record(Evaluation(number, metrics={"same": number}))
    assert trace.metrics["same"] == [row.loss for row in trace.rows]
    assert trace.evaluation == {"same": records - 1}


def test_names_without_end_and_names_that_no_run_file_can_hold_are_refused() -> None:
    trace = Trace(capacity=1)
    with pytest.raises(RunError, match=r"returned the name 'a/b'; a name may not contain '/'"):
        trace.record(Evaluation(metrics={"a/b": 1.0}))
    with pytest.raises(RunError, match="33 names; at most 32"):
        trace.record(Evaluation(metrics={f"name {number}": 1.0 for number in range(33)}))


@pytest.mark.parametrize(
    ("stop", "before", "at", "reason"),
    [
        (Stop(rounds=5000), trace_at(rounds=4999), trace_at(rounds=5000), "5,000 rounds"),
        (Stop(clock=2.0), trace_at(clock=1.999), trace_at(clock=2.0), "clock 2 s"),
        (Stop(gap=0.1), trace_at(gap=0.1), trace_at(gap=0.099), "gap 0.099 < 0.1"),
        (Stop(loss=-1.0), trace_at(loss=-1.0), trace_at(loss=-1.5), "loss -1.5 < -1"),
    ],
)
def test_each_limit_is_reached_exactly_and_named_with_its_figure(
    stop: Stop, before: Trace, at: Trace, reason: str
) -> None:
    assert stop.reached(before) is None
    assert stop.reached(at) == reason


@pytest.mark.parametrize(
    ("reached", "reason"),
    [
        ({}, None),
        ({"rounds": 10}, "10 rounds"),
        ({"clock": 10.0}, "clock 10 s"),
        ({"gap": 0.5}, "gap 0.5 < 1"),
    ],
)
def test_whichever_limit_comes_first_ends_the_run(reached: dict[str, Any], reason: str | None) -> None:
    trace = trace_at(**{"rounds": 9, "clock": 9.0, "loss": 9.0, "gap": 9.0} | reached)
    assert Stop(rounds=10, clock=10.0, loss=1.0, gap=1.0, elapsed=1e9).reached(trace) == reason


def test_without_a_limit_a_run_never_stops_nor_does_it_at_a_loss_that_is_not_known() -> None:
    far = trace_at(rounds=10**12, clock=1e300)
    assert Stop().reached(far) is None
    assert Stop(gap=1e300, loss=1e300).reached(far) is None


@pytest.mark.parametrize("limit", ["rounds", "gap", "clock", "elapsed"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_limit_that_is_not_above_zero_is_refused(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{limit}={value} must be above 0"):
        Stop(**{limit: value})  # type: ignore[arg-type]


def test_what_workers_tell_when_they_are_let_go_is_settled_once() -> None:
    trace, cluster = Trace(), a_cluster(2.0, 1.0)
    cluster.start(counts(0, 1), np.zeros(100), 1)
    trace.add(a_round(1), cluster.ledger)
    with pytest.raises(TimeoutError):
        cluster.wait(timeout=0.5)
    before = cluster.ledger.mark()
    cluster.close()
    for mark in (before, cluster.ledger.mark()):
        trace.settle(cluster.ledger, mark)
        assert (trace.wasted, trace.waste, trace.worker_time) == (2 + 2, 0.25 + 2 * 0.5, 3.0 + 2 * 0.5)


def test_a_run_on_ranks_counts_from_the_start_of_its_job_and_resumed_ones_add_up() -> None:
    first = Trace()
    first.cores = 2
    first.begin_earlier(100.0)
    first.end_setup()
    first.wall_time.add_round(3.0, duration=1.0, decision=0.5)
    first.end()
    summary = first.summary()
    assert summary["elapsed"] == pytest.approx(100.0, abs=5)
    assert summary["billed"] == pytest.approx(2 * summary["elapsed"])
    assert summary["setup_time"] == pytest.approx(100.0, abs=5)
    assert (summary["decision_time"], summary["update_time"]) == (0.5, 1.5)
    second = Trace()
    second.cores = 1
    second.begin_earlier(50.0)
    second.restore(first.totals(), first.history(), first.evaluations())
    second.end_setup()
    assert second.elapsed == pytest.approx(summary["elapsed"] + 50.0, abs=5)
    assert second.billed == pytest.approx(summary["billed"] + 50.0, abs=5)
    assert second.setup_time == pytest.approx(150.0, abs=10)
    assert second.wall_time.update_time == 1.5


def test_the_shares_of_a_simulation_are_not_known_and_not_saved_and_older_joules_are_ignored() -> None:
    trace, second = Trace(), Trace()
    trace.end_setup()
    assert trace.summary()["setup_time"] is None
    assert "setup_time" not in trace.totals()
    second.restore(trace.totals() | {"energy": np.array(7.0)}, trace.history(), trace.evaluations())
    assert "energy" not in {*second.totals(), *second.summary()}


def test_elapsed_is_wall_time_and_so_is_its_limit() -> None:
    trace = trace_at(clock=1e9)
    assert Stop(elapsed=60.0).reached(trace) is None
    time.sleep(0.01)
    trace.record()
    assert 0.01 <= trace.rows[-1].elapsed <= trace.elapsed < 5
    assert (Stop(elapsed=0.01).reached(trace) or "").startswith("elapsed 0.0")
