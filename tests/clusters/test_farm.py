"""cluster.map: every item once, in order, over workers of unequal speed that are learned."""

import operator
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpi_ata
from mpi_ata import (
    Constant,
    DrawnTimes,
    Fault,
    FaultPolicy,
    ItemError,
    Quadratic,
    RunError,
    UsageError,
    VirtualCluster,
)
from mpi_ata.clusters.farm import KEPT, Items, shares
from mpi_ata.clusters.pickling import dumps


def square(value: float) -> float:
    return value * value


def failing(value: int) -> float:
    return 1 / (value - 3)


def leaving(value: int) -> float:
    sys.exit(0)


def unsendable(value: int) -> dict[str, Any]:
    return {"lock": threading.Lock()}


class Scaled:
    def __init__(self, factor: float, **others: Any) -> None:
        self.factor = factor
        self.others = others

    def __call__(self, value: float) -> float:
        return self.factor * value

    def less(self, value: float) -> float:
        return value - self.factor


def zeroed(values: Any) -> Any:
    values[:] = 0.0  # as functions do that are used to lists of their own
    return values


def farm_of(*seconds: float, **others: Any) -> VirtualCluster:
    return VirtualCluster(Items(), DrawnTimes(Constant(len(seconds), seconds)), **others)


def tasks(cluster: VirtualCluster) -> list[int]:
    found: list[int] = cluster.ledger.stats.state()["tasks"].tolist()
    return found


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(farm_of(1.0, 3.0, 7.0).map(square, range(50))) == [i * i for i in range(50)]
    assert list(farm_of(1.0).map(square, [])) == []


def test_as_they_come_results_have_their_index() -> None:
    pairs = list(farm_of(1.0, 3.0).map(square, [5.0, 6.0, 7.0], ordered=False))
    assert pairs[0] == (0, 25.0)
    assert sorted(pairs) == [(0, 25.0), (1, 36.0), (2, 49.0)]


def test_several_iterables_are_zipped_like_those_of_pythons_map() -> None:
    assert list(farm_of(1.0).map(operator.add, [1, 2, 3], iter([10, 20]))) == [11, 22]


def test_workers_finish_at_about_the_same_time_and_the_slow_do_few_items() -> None:
    cluster = farm_of(1.0, 1.0, 2.0, 10.0)
    list(cluster.map(square, range(260)))
    best = 260 / (1 + 1 + 1 / 2 + 1 / 10)  # 100
    assert cluster.now() <= best + 2, "it may end with an item of a worker of usual speed"
    assert tasks(cluster)[3] <= 10


def test_a_slow_worker_gets_no_item_that_others_would_have_done_before_it() -> None:
    cluster = farm_of(1.0, 1.0, 1.0, 9.0)
    list(cluster.map(square, range(30)))
    assert tasks(cluster)[3] == 1, "its first item shows that it is slow; a second one would end at 18"
    assert cluster.now() == 10.0


def test_speeds_are_remembered_from_call_to_call() -> None:
    cluster = farm_of(1.0, 50.0, 1.0)
    list(cluster.map(square, range(200)))
    before = cluster.now(), tasks(cluster)
    assert list(cluster.map(square, range(2))) == [0, 1]
    assert cluster.now() - before[0] == 1.0
    assert tasks(cluster)[1] == before[1][1]


def test_items_of_lost_workers_are_done_by_others() -> None:
    cluster = farm_of(1.0, 1.0, 1.0, deaths={0: 4.5, 1: 10.5})
    assert list(cluster.map(square, range(60))) == [i * i for i in range(60)]
    assert cluster.ledger.lost.sum() > 0


def test_without_workers_the_farm_ends_with_the_reason() -> None:
    cluster = farm_of(1.0, 1.0, deaths={0: 1.5, 1: 2.5})
    with pytest.raises(RunError, match=r"all 2 workers are lost: it vanished at 2\.5 s"):
        list(cluster.map(square, range(20)))


def test_an_error_is_handed_back_in_its_place_while_all_others_are_computed() -> None:
    found = list(farm_of(1.0, 2.0).map(failing, range(9), on_error="return"))
    error = found.pop(3)
    assert found == [1 / (i - 3) for i in range(9) if i != 3]
    assert isinstance(error, ItemError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.index == 3


def test_after_an_error_the_cluster_can_be_used_again() -> None:
    cluster = farm_of(1.0, 2.0)
    with pytest.raises(ItemError):
        list(cluster.map(failing, range(9)))
    assert list(cluster.map(square, range(9))) == [i * i for i in range(9)]


def test_an_item_that_has_cost_two_workers_is_named_and_set_aside() -> None:
    deaths = {0: 0.5, 1: 1.5}  # both at item 0, which the first one to be idle gets again
    words = r"^item 0, 'deadly', has cost 2 workers, the last one worker 1 "
    with pytest.raises(ItemError, match=words):
        list(farm_of(1.0, 1.0, 1.0, deaths=deaths).map(str, ["deadly", 1, 2, 3]))
    cluster = farm_of(1.0, 1.0, 1.0, deaths=deaths)
    found = list(cluster.map(str, ["deadly", 1, 2, 3], on_error="return"))
    assert (str(found[0])[:7], found[1:]) == ("item 0,", ["1", "2", "3"])
    found = list(farm_of(1.0, 1.0, 1.0, deaths=deaths).map(str, ["deadly", 1, 2, 3], max_losses=3))
    assert found == ["deadly", "1", "2", "3"]
    with pytest.raises(RunError, match=r"all 2 workers are lost: .*; item 0, 'deadly', has cost 2 of them"):
        list(farm_of(1.0, 1.0, deaths=deaths).map(str, ["deadly", 1, 2, 3]))


def noisy(value: float, rng: np.random.Generator) -> float:
    return value + rng.random()


def test_with_a_seed_each_item_has_random_numbers_of_its_own_whoever_computes_it() -> None:
    alone, together = farm_of(1.0), farm_of(1.0, 3.0, 2.0)
    first = list(alone.map(noisy, range(50), seed=1))
    assert list(together.map(noisy, range(50), seed=1)) == first
    assert len({value - i for i, value in enumerate(first)}) == 50
    assert list(together.map(noisy, range(50), seed=2)) != first


@pytest.mark.parametrize(("option", "value"), [("on_error", "ignore"), ("max_losses", 0), ("seed", 0.5)])
def test_options_of_map_that_make_no_sense_are_rejected(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{option}={value!r} must be "):
        farm_of(1.0).map(square, [1], **{option: value})


def test_an_item_of_a_worker_that_hangs_is_given_to_an_idle_one_too() -> None:
    faults, policy = [Fault(2.5, 1, "hang", duration=1000.0)], FaultPolicy(deadline=0.0)
    cluster = farm_of(1.0, 1.0, faults=faults, policy=policy)
    assert list(cluster.map(square, range(20))) == [i * i for i in range(20)]
    assert cluster.now() < 40


def test_items_that_wait_for_a_worker_that_hangs_are_done_by_a_slow_one() -> None:
    faults, policy = [Fault(4.5, 0, "hang", duration=1e6)], FaultPolicy(deadline=0.0)
    cluster = farm_of(1.0, 10.0, faults=faults, policy=policy)
    assert list(cluster.map(square, range(12))) == [i * i for i in range(12)]
    assert cluster.now() < 200


@pytest.mark.parametrize(
    ("seconds", "count", "hanging"),
    [
        (0.1, 100, {2: 0.5}),
        (0.1, 100, {1: 0.5, 2: 0.5}),
        (0.1, 100, {1: 0.5, 2: 3.0}),  # while it does what the first one held
        (1e-4, 2000, {2: 0.05}),  # of an order whose results come together
    ],
)
def test_all_items_that_workers_hold_when_they_hang_are_done_by_others(
    seconds: float, count: int, hanging: dict[int, float]
) -> None:
    faults = [Fault(at, worker, "hang", duration=1e9) for worker, at in hanging.items()]
    cluster = farm_of(seconds, seconds, seconds, faults=faults, policy=FaultPolicy(deadline=0.0))
    assert list(cluster.map(square, range(count))) == [i * i for i in range(count)]
    assert cluster.now() < 30


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (failing, r"(?s)failing failed for item 3.*test_farm\.py.*ZeroDivisionError"),
        (leaving, r"leaving failed for item 0 on worker 0 .* calls sys\.exit\(0\)"),
        (
            unsendable,
            r"unsendable failed for item 0 on worker 0 .*: its result\['lock'\] \(lock\) cannot be sent",
        ),
    ],
)
def test_a_function_that_fails_or_exits_or_returns_a_wrong_type_is_named_with_its_item(
    function: Callable[[int], Any], words: str
) -> None:
    with pytest.raises(ItemError, match=words):
        list(farm_of(1.0).map(function, range(5)))


@pytest.mark.parametrize(
    "function", [Scaled(3.0), Scaled(-3.0).less, partial(operator.mul, 3.0), lambda value: 3.0 * value]
)
def test_any_callable_that_pickle_can_send_is_called(function: Callable[[float], float]) -> None:
    assert list(farm_of(1.0, 2.0).map(function, range(9))) == [function(i) for i in range(9)]


def test_items_and_results_are_anything_and_arrays_are_the_functions_own() -> None:
    items = [np.ones(3), {1, 2}, Scaled(2.0)]
    found = list(farm_of(1.0).map(lambda item: item, items))
    assert (found[0].tolist(), found[1], found[2].factor) == ([1.0] * 3, {1, 2}, 2.0)
    assert next(farm_of(1.0).map(zeroed, items)).tolist() == [0.0] * 3
    assert items[0].tolist() == [1.0] * 3  # type: ignore[attr-defined]
    found[0][0] = 5.0  # and those of results the caller's


def test_a_function_is_sent_to_each_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, sent, start = farm_of(1.0, 1.0), list[int](), VirtualCluster.start

    def counted(self: VirtualCluster, workers: Any, x: Any, *others: Any) -> None:
        sent.append(len(x["function"]))
        start(self, workers, x, *others)

    monkeypatch.setattr(VirtualCluster, "start", counted)
    large = partial(np.dot, np.ones(10_000))
    for _ in range(3):
        assert list(cluster.map(large, [np.ones(10_000)] * 9)) == [10_000.0] * 9
    assert len(sent) > 6
    assert [size > 80_000 for size in sent if size] == [True] * 2


def test_a_function_that_changes_is_sent_again_and_one_that_was_forgotten_too() -> None:
    cluster, function = farm_of(1.0, 1.0), Scaled(1.0)
    for factor in range(2 * KEPT):
        function.factor = factor
        assert list(cluster.map(function, range(5))) == [factor * i for i in range(5)]
        assert list(cluster.map(square, range(5))) == [i * i for i in range(5)]
    cluster._problem._functions.clear()
    assert list(cluster.map(square, range(5))) == [i * i for i in range(5)]


def test_what_cannot_be_sent_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, lock = farm_of(1.0), threading.Lock()
    with pytest.raises(RunError, match=r"^item 1\[0\]\[2\] \(lock\) cannot be sent to other ranks"):
        list(cluster.map(square, [1, (1, 2, lock)]))
    unsendable: list[tuple[Callable[..., Any], str]] = [
        (Scaled(1.0, log=lock), r"Scaled\.others\['log'\] \(lock\)"),
        (Scaled(1.0, log=lock).less, r"Scaled\.less\.__self__\.others\['log'\] \(lock\)"),
        (partial(Scaled, log=lock), r"Scaled\.keywords\['log'\] \(lock\)"),
        (lambda value: lock, r"lock in .*<lambda> \(lock\)"),
    ]
    for function, place in unsendable:
        with pytest.raises(RunError, match=f"^{place} cannot be sent"):
            cluster.map(function, [1])
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(RunError, match=r"<lambda> \(function\) cannot be sent .*; pip install cloudpickle"):
        dumps(lambda value: value, "<lambda>")


def test_a_second_map_before_the_first_is_done_is_rejected_and_the_cluster_stays_usable() -> None:
    cluster = farm_of(1.0, 2.0)
    with pytest.raises(UsageError, match=r"one map\(\) at a time"):
        list(zip(cluster.map(square, range(9)), cluster.map(abs, range(9)), strict=True))
    assert list(cluster.map(square, [3])) == [9]


def test_a_cluster_with_a_problem_is_no_farm() -> None:
    with (
        mpi_ata.cluster(Quadratic(3), DrawnTimes(Constant(1, (1.0,)))) as cluster,
        pytest.raises(UsageError, match="a cluster without a problem"),
    ):
        cluster.map(square, [1])


def test_a_loop_that_ends_early_leaves_all_workers_idle() -> None:
    cluster = farm_of(1.0, 2.0)
    for result in cluster.map(square, range(100)):
        if result == 16:
            break
    assert cluster.idle().tolist() == [0, 1]
    assert list(cluster.map(square, [3])) == [9]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 10)), min_size=1, max_size=5), st.integers(0, 30))
def test_shares_are_those_that_end_soonest(workers: list[tuple[float, float]], count: int) -> None:
    ready, means = np.array(workers).T
    ends = sorted(r + k * m for r, m in workers for k in range(1, count + 1))
    a = shares(ready, means, count)
    assert a.sum() == count
    last = np.max(np.where(a > 0, ready + a * means, 0.0))
    assert last == pytest.approx(ends[count - 1] if count else 0.0)
