"""Recorded times as a law: each worker's own sample, and the CSV text that it may come from."""

import re
from typing import Any

import numpy as np
import pytest

from mpi_ata.times import DrawnTimes, Recorded
from mpi_ata.times.recorded import parse_samples

SAMPLES = [np.array([1.0, 2.0, 6.0]), np.array([5.0]), np.array([0.25, 0.75])]


def test_every_worker_draws_from_its_own_sample_and_draws_all_of_it() -> None:
    rng = np.random.default_rng(0)
    law = Recorded(3, SAMPLES)
    drawn = np.array([law.draw(rng) for _ in range(300)])
    for worker, sample in enumerate(SAMPLES):
        assert set(drawn[:, worker]) == set(sample)
    # Equally often: of 300 draws each of three values gets 100, give or take 5 deviations of 8.
    assert all(abs(np.count_nonzero(drawn[:, 0] == time) - 100) < 41 for time in SAMPLES[0])


def test_the_means_are_those_of_the_samples() -> None:
    assert Recorded(3, SAMPLES).means.tolist() == [3.0, 5.0, 0.5]
    assert DrawnTimes(Recorded(3, SAMPLES), unit=2.0).means.tolist() == [6.0, 10.0, 1.0]


def test_of_more_samples_than_workers_the_first_are_used() -> None:
    assert Recorded(2, SAMPLES).means.tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("n", "samples", "message"),
    [
        (4, SAMPLES, "n=4 must be from 1 to 3, the number of recorded workers"),
        (0, SAMPLES, "n=0 must be from 1 to 3"),
        (2, [SAMPLES[0], np.zeros(0)], "worker 1 has no recorded time; record a run in which every worker"),
        (1, [np.array([1.0, 0.0])], "the recorded times of worker 0 must be above 0 seconds and finite"),
        (1, [np.array([np.inf])], "the recorded times of worker 0 must be above 0 seconds and finite"),
    ],
)
def test_what_cannot_be_drawn_from_is_rejected(n: int, samples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorded(n, samples)


def test_a_table_is_read_in_any_order_of_lines() -> None:
    found = parse_samples("worker,seconds\n1,5\n0,1.0\n\n0, 2e0\n2,0.25\n")
    assert [sample.tolist() for sample in found] == [[1.0, 2.0], [5.0], [0.25]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' must be the header worker,seconds"),
        ("seconds,worker\n1,0", "line 1: 'seconds,worker' must be the header worker,seconds"),
        ("0,1.5\n", "line 1: '0,1.5' must be the header worker,seconds"),
        ("worker,seconds\n", "there is no time of worker 0; workers are counted from 0 without gaps"),
        ("worker,seconds\n0,1\n2,1\n", "there is no time of worker 1"),
        ("worker,seconds\n1,1\n", "there is no time of worker 0"),
        ("worker,seconds\n0,1\n0,x\n", "line 3: '0,x' must be a worker, counted from 0, and seconds above 0"),
        ("worker,seconds\n0,0\n", "line 2: '0,0' must be a worker"),
        ("worker,seconds\n0,nan\n", "line 2: '0,nan' must be a worker"),
        ("worker,seconds\n0,inf\n", "line 2: '0,inf' must be a worker"),
        ("worker,seconds\n-1,1\n", "line 2: '-1,1' must be a worker"),
        ("worker,seconds\n0,1,2\n", "line 2: '0,1,2' must be a worker"),
        ("worker,seconds\n99999999999,1\n", "there is no time of worker 0"),
    ],
)
def test_a_table_that_is_wrong_is_rejected_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_samples(text)
