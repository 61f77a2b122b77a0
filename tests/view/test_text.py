"""Rates, durations and large numbers, in the units a person would use."""

import pytest

from mpi_ata.view.text import duration, rate, significant


@pytest.mark.parametrize(
    ("rounds", "seconds", "text"),
    [
        (0, 3.0, "0 rounds"),
        (7, 3.0, "2.3 rounds/s"),
        (123456, 1.0, "123,456 rounds/s"),
        (2, 3.0, "1.5 s per round"),
        (1, 600.0, "10 min 00 s per round"),
    ],
)
def test_slow_rounds_are_shown_in_seconds_per_round(rounds: int, seconds: float, text: str) -> None:
    assert rate(rounds, seconds) == text


def test_durations_and_large_numbers_are_written_as_a_person_would() -> None:
    durations = {0.0: "0 s", 2.5e-5: "25 us", 0.0034: "3.4 ms", 1.5: "1.5 s", 99.96: "1 min 40 s"}
    durations |= {3600.0: "1 h 00 min", 200000.0: "2 d 07 h"}
    assert {seconds: duration(seconds) for seconds in durations} == durations
    numbers = {0.0: "0", 0.012345: "0.01235", 12.345: "12.35", 1234567.8: "1,234,568", None: "-"}
    assert {value: significant(value, 4) for value in numbers} == numbers
