"""Star or chain: what "auto" chooses, and why."""

import time

import pytest

from mpi_ata.clusters.exchange.choice import LEAST, TRIALS, Choice, check_exchange

FAR = ["a", "b", "c", "d"]


def measured(choice: Choice, seconds: dict[bool, float]) -> list[bool]:
    """Return which of the trial rounds used the chain; `seconds` by whether it was the chain."""
    ways = []
    for _ in range(2 * TRIALS):
        ways.append(choice.chain(FAR))
        time.sleep(0.02 + seconds[ways[-1]])
        choice.delivered(0.02, last=False)
        choice.delivered(0.01, last=True)
    return ways


@pytest.mark.parametrize("faster", [True, False])
def test_after_some_rounds_of_each_the_faster_way_is_used(faster: bool) -> None:
    choice = Choice("auto", "a", LEAST)
    ways = measured(choice, {faster: 0.0, not faster: 0.05})  # far apart, even on a busy machine
    assert ways == [True] * TRIALS + [False] * TRIALS
    assert [choice.chain(FAR) for _ in range(3)] == [faster] * 3


@pytest.mark.parametrize(
    ("size", "hosts"), [(LEAST - 1, FAR), (LEAST, ["a", "a", "a"]), (LEAST, ["a", "b"]), (LEAST, ["b"])]
)
def test_small_arrays_and_rounds_with_less_than_two_workers_elsewhere_go_by_the_star(
    size: int, hosts: list[str]
) -> None:
    assert not Choice("auto", "a", size).chain(hosts)


def test_what_the_user_asks_for_is_used() -> None:
    assert Choice("chain", "a", 10**4).chain(["a", "a"])
    assert not Choice("star", "a", 10**9).chain(FAR)


def test_unknown_ways_are_rejected() -> None:
    with pytest.raises(ValueError, match="exchange='ring' must be one of 'auto', 'star', 'chain'"):
        check_exchange("ring")
