"""Rates, durations and large numbers, in the units a person would use."""

import pytest

from mpi_ata import Stop, Trace
from mpi_ata.view.live import progress_text
from mpi_ata.view.text import duration, rate, significant


@pytest.mark.parametrize(
    ("rounds", "seconds", "text"),
    [
        (0, 3.0, "0 rounds"),
        (30, 3.0, "10 rounds/s"),
        (7, 3.0, "2.3 rounds/s"),
        (123456, 1.0, "123,456 rounds/s"),
        (2, 3.0, "1.5 s per round"),
        (1, 600.0, "10 min 00 s per round"),
    ],
)
def test_slow_rounds_are_shown_in_seconds_per_round(rounds: int, seconds: float, text: str) -> None:
    assert rate(rounds, seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.5e-5, "25 us"),
        (0.0034, "3.4 ms"),
        (1.5, "1.5 s"),
        (99.96, "1 min 40 s"),
        (3600.0, "1 h 00 min"),
        (200000.0, "2 d 07 h"),
    ],
)
def test_durations_have_the_unit_that_a_person_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_to_go_is_that_of_the_limit_which_comes_first() -> None:
    trace = Trace()
    trace.round, trace.clock = 10, 1.0
    trace.end()
    elapsed = trace.elapsed
    text = progress_text(trace.summary(), Stop(rounds=1000, clock=3.0))
    assert f"at most {duration(2 * elapsed)} to go" in text
    assert "to go" not in progress_text(trace.summary(), Stop(gap=1e-3))


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.012345, "0.01235"), (12.345, "12.35"), (1234567.8, "1,234,568")]
)
def test_large_numbers_are_written_out(value: float, text: str) -> None:
    assert significant(value, 4) == text
