"""What `recursive_allocation` promises, against brute force and a plain heap."""

import heapq
import math
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import Array, IntArray

# Whole numbers make ties, between equal scores and between multiples of unequal ones.
some = st.lists(st.integers(1, 6).map(float) | st.floats(0.01, 100.0), min_size=1, max_size=4)
extreme = st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=4)


def products(quota: Sequence[int] | IntArray, scores: Sequence[float] | Array) -> list[float]:
    # 0 times infinity is meant to be 0.
    return [a * s if a else 0.0 for a, s in zip(np.asarray(quota).tolist(), scores, strict=True)]


def loss_and_maxima(quota: Sequence[int] | IntArray, scores: Sequence[float] | Array) -> tuple[float, int]:
    times = products(quota, scores)
    return max(times), times.count(max(times))


def all_allocations(n: int, budget: int) -> Iterator[tuple[int, ...]]:
    if n == 1:
        yield (budget,)
        return
    for first in range(budget + 1):
        for rest in all_allocations(n - 1, budget - first):
            yield (first, *rest)


def best_by_brute_force(scores: Sequence[float], budget: int) -> tuple[float, int]:
    """The least loss, and the least number of maxima among the allocations that have it."""
    return min(loss_and_maxima(quota, scores) for quota in all_allocations(len(scores), budget))


def by_heap(scores: Array, budget: int) -> IntArray:
    quota = np.zeros(len(scores), np.int64)
    heap = [(s, i) for i, s in enumerate(scores.tolist())]
    heapq.heapify(heap)
    for _ in range(budget):
        _, i = heap[0]
        quota[i] += 1
        heapq.heapreplace(heap, ((int(quota[i]) + 1) * float(scores[i]), i))
    return quota


def random_scores(kind: str, n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        return 0.5 + rng.random(n)
    if kind == "tied":
        return rng.integers(1, 9, n).astype(np.float64)
    return np.exp(rng.normal(0.0, 10.0, n))


@given(some | extreme, st.integers(1, 6))
@example([1e300, 1e-300, 1e300], 6)
@example([1e300, 1e300], 6)
@example([1e-300, 2e-300], 6)
@example([5e-324, 1.0], 6)
def test_no_allocation_has_a_smaller_loss_or_as_small_a_loss_with_fewer_maxima(
    scores: list[float], budget: int
) -> None:
    given = np.array(scores)
    given.flags.writeable = False
    quota = recursive_allocation(given, budget)
    assert quota.dtype == np.int64
    assert quota.sum() == budget
    assert quota.min() >= 0
    assert loss_and_maxima(quota, scores) == best_by_brute_force(scores, budget)
    drawn = recursive_allocation(scores, budget, np.random.default_rng(1))
    assert drawn.tolist() == quota.tolist(), "positive scores leave nothing to chance"


@settings(max_examples=60)
@given(
    st.sampled_from(["uniform", "tied", "wide"]),
    st.integers(1, 2000),
    st.integers(1, 5000),
    st.integers(0, 2**32),
)
def test_large_allocations_are_as_good_as_those_of_a_heap(kind: str, n: int, budget: int, seed: int) -> None:
    scores = random_scores(kind, n, seed)
    quota = recursive_allocation(scores, budget)
    assert quota.sum() == budget
    assert loss_and_maxima(quota, scores) == loss_and_maxima(by_heap(scores, budget), scores)


@pytest.mark.parametrize("kind", ["uniform", "tied", "wide"])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_with_a_budget_of_a_million_no_task_should_move(kind: str, n: int) -> None:
    scores = random_scores(kind, n, seed=n)
    quota = recursive_allocation(scores, 10**6)
    assert quota.sum() == 10**6
    # Lemma 1 of the paper for all i and j at once; it also proves the quota optimal.
    assert (quota * scores).max() <= ((quota + 1) * scores).min()


@given(some, st.integers(0, 3), st.integers(1, 50), st.randoms())
def test_a_worker_with_an_infinite_score_gets_nothing(
    finite: list[float], infinite: int, budget: int, random: Random
) -> None:
    scores = finite + [math.inf] * infinite
    random.shuffle(scores)
    quota = recursive_allocation(scores, budget)
    assert not quota[np.isinf(scores)].any()
    assert loss_and_maxima(quota, scores) == loss_and_maxima(recursive_allocation(finite, budget), finite)


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1.0, math.inf]), min_size=1, max_size=12).filter(
        lambda scores: 0.0 in scores
    ),
    st.integers(1, 40),
    st.none() | st.integers(0, 2**32),
)
def test_exactly_the_workers_of_score_zero_share_the_budget_uniformly(
    scores: list[float], budget: int, seed: int | None
) -> None:
    rng = None if seed is None else np.random.default_rng(seed)
    quota = recursive_allocation(scores, budget, rng)
    zero = np.array(scores) == 0.0
    assert quota.sum() == budget
    assert not quota[~zero].any()
    assert quota[zero].max() - quota[zero].min() <= 1


@pytest.mark.parametrize("budget", [2, 8])
def test_every_worker_of_score_zero_is_drawn_equally_often(budget: int) -> None:
    scores = [0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    draws = 4000
    total = sum(recursive_allocation(scores, budget, np.random.default_rng(seed)) for seed in range(draws))
    share, rest = divmod(budget, 5)
    often = np.asarray(total)[[0, 2, 3, 5, 6]] / draws - share
    # Five standard errors of a frequency: a true one fails less than once in a million times.
    tolerance = 5 * math.sqrt(rest / 5 * (1 - rest / 5) / draws)
    assert often == pytest.approx(rest / 5, abs=tolerance)


@pytest.mark.parametrize(
    ("scores", "budget", "quota"),
    [
        ([0.0, 1.0, 0.0, 0.0], 5, [2, 0, 2, 1]),
        ([0.0, 1.0, 0.0, 0.0], 2, [1, 0, 1, 0]),
        ([3.0] * 4, 2, [1, 1, 0, 0]),
        ([3.0] * 4, 6, [2, 2, 1, 1]),
    ],
)
def test_of_equal_workers_the_first_get_one_task_more(
    scores: list[float], budget: int, quota: list[int]
) -> None:
    assert recursive_allocation(scores, budget).tolist() == quota


@pytest.mark.parametrize(
    ("scores", "budget", "named"),
    [
        ([1.0, -2.5], 3, r"-2\.5"),
        ([1.0, math.nan], 3, "nan"),
        ([math.inf, math.inf], 3, "inf"),
        ([], 3, r"\(0,\)"),
        ([[1.0, 2.0]], 3, r"\(1, 2\)"),
        ([1.0, 2.0], 0, "budget=0"),
    ],
)
def test_invalid_scores_are_named_in_the_message(scores: object, budget: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        recursive_allocation(scores, budget)  # type: ignore[arg-type]
