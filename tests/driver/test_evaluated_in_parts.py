"""Mistakes in a problem that is evaluated in parts are reported in one sentence."""

import numpy as np
import pytest

from mpi_ata import Array, Quadratic, RunError
from mpi_ata.clusters.computations import evaluated_part
from mpi_ata.driver.evaluation import evaluate_in_parts


class InParts(Quadratic):
    """Combines its parts in the way that is asked for."""

    evaluation_parts = 3

    def __init__(self, answer: object) -> None:
        super().__init__(4)
        self._answer = answer

    def evaluate_part(self, x: Array, part: int) -> list[float]:
        return [float(x[part])]

    def combine_parts(self, x: Array, numbers: list[float]) -> object:
        if self._answer is None:
            return {"loss": sum(numbers) / self.evaluation_parts}
        return self._answer if self._answer else numbers[self.evaluation_parts]


class OneProcess:
    """Evaluates all parts in this process."""

    def __init__(self, problem: InParts) -> None:
        self._problem = problem

    def evaluate(self, x: Array, parts: range) -> list[float]:
        return [value for part in parts for value in evaluated_part(self._problem, x, part)]


def evaluated(answer: object) -> dict[str, float]:
    problem = InParts(answer)
    return evaluate_in_parts(problem, np.arange(4.0), OneProcess(problem))


def test_parts_are_combined() -> None:
    assert evaluated(None) == {"loss": 1.0}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5, r"combine_parts\(x, numbers\) of the problem returned 5 of type int; it must return a dict"),
        ({"a": "b"}, r"the entry 'a' of what combine_parts\(x, numbers\) returned is 'b' of type str; it"),
    ],
)
def test_what_cannot_be_recorded_is_reported_in_one_sentence(answer: object, message: str) -> None:
    with pytest.raises(RunError, match=message) as error:
        evaluated(answer)
    assert "\n" not in str(error.value)


def test_an_error_in_combining_shows_the_users_lines_and_no_others() -> None:
    with pytest.raises(RunError) as error:
        evaluated(0)
    first, *_, last = str(error.value).splitlines()
    assert first == "combine_parts(x, numbers) of the problem failed:"
    assert last == "IndexError: list index out of range"
    assert str(error.value).count("File ") == 1
