"""Streams of random numbers: the same key gives the same numbers, and no other key does."""

from itertools import product

import numpy as np
import pytest
from numpy.random import Generator, Philox

from mpi_ata.randomness import Purpose, Streams

LARGEST = 2**64 - 1


def test_a_stream_begins_anew_and_is_not_disturbed_by_others() -> None:
    streams = Streams(5, Purpose.TASK)
    first, second = streams.at(1, 2, 3), streams.at(4, 5, 6)
    in_turn = [(first.random(), second.random()) for _ in range(20)]
    alone = zip(streams.at(1, 2, 3).random(20), streams.at(4, 5, 6).random(20), strict=True)
    assert in_turn == list(alone)


def test_any_other_seed_purpose_round_worker_or_number_gives_other_numbers() -> None:
    # Every word takes the same few values, so that two words that were mixed up would show.
    few = (0, 1, 2)
    keys = list(product((*few, LARGEST), Purpose, few, few, few))
    drawn = [Streams(seed, purpose).at(*place).integers(0, 2**63, 8) for seed, purpose, *place in keys]
    assert len(np.unique(drawn)) == 8 * len(keys)


@pytest.mark.parametrize("seed", [0, 7, LARGEST])
@pytest.mark.parametrize("purpose", Purpose)
def test_the_numbers_are_those_of_numpys_philox_at_number_worker_round(seed: int, purpose: Purpose) -> None:
    ours = Streams(seed, purpose).at(13, 12, 11)
    counter = (13 << 192) + (12 << 128) + (11 << 64)
    theirs = Generator(Philox(key=(int(purpose) << 64) + seed, counter=counter))
    assert ours.random(100).tolist() == theirs.random(100).tolist()


def test_a_long_stream_does_not_run_into_the_next_number() -> None:
    streams = Streams(0, Purpose.TASK)
    long = set(streams.at(1, 1, 0).integers(0, 2**63, 10_000).tolist())
    for place in ((1, 1, 1), (1, 2, 0), (2, 1, 0)):
        assert long.isdisjoint(streams.at(*place).integers(0, 2**63, 10_000).tolist())


def test_the_purposes_are_told_apart_by_numbers_that_never_change() -> None:
    # A saved run is repeated from its seed: other numbers would make it another run.
    numbers = {"ALLOCATION": 1, "TIMES": 2, "TASK": 3, "CHANGES": 4, "MACHINES": 5, "EPOCHS": 6, "ITEMS": 7}
    assert {purpose.name: purpose.value for purpose in Purpose} == numbers


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_a_seed_that_does_not_fit_is_refused_by_the_value(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed={seed} "):
        Streams(seed, Purpose.TASK)
