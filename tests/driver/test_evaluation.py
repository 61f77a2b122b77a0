"""The loss shown in the end is that of the last round, wherever a run stops; mistakes take one sentence."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpi_ata import Array, Quadratic, RunError
from mpi_ata.clusters.computations import evaluated_part
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.evaluation import evaluate_in_parts
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.runfile.load import describe
from mpi_ata.view.summaries import closing_table
from tests.driver.driven import driven
from tests.faults.scene import own_problem, record_of, written

OUT = Path("run.h5")
PROBLEM = Quadratic(10, noise=0.1)
STOPPED = """
if task.round == 5 and not Path("stopped").exists():
    Path("stopped").touch()
    os.kill(os.getpid(), signal.SIGTERM)
"""
EVALUATE = """
    def evaluate(self, x):
        return {"first": x[0]}
"""
SLOW = """
    def loss(self, x):
        if Path("stopped").exists():
            time.sleep(60)
        return super().loss(x)
"""


def stopped(*settings: str, more: str = "", out: Path = OUT, resume: bool = False) -> Outcome:
    """Run a job of 20 rounds, which is sent a signal in round 5, the first time."""
    job = written(Path("job.toml"), "sgd uta", 20, run="", problem=own_problem(Path(), STOPPED))
    Path("own.py").write_text(Path("own.py").read_text() + EVALUATE + more)
    return driven(job, ["run.evaluate_every=10", *settings], output=OutputOptions(out, resume))


def test_a_run_that_a_signal_stops_is_evaluated_where_it_stops() -> None:
    outcome = stopped()
    assert (outcome.reason, outcome.trace.round) == (None, 5)
    loss = PROBLEM.loss(outcome.x)
    assert outcome.summary()["loss"] == loss
    assert outcome.summary()["evaluation"] == {"first": outcome.x[0]}
    assert f"loss           {loss:.8g}\n" in closing_table(outcome)
    shown = describe(record_of(OUT))
    assert (shown["loss"], shown["evaluation"]) == (loss, {"first": outcome.x[0]})


def test_a_run_that_was_stopped_and_resumed_has_the_same_history_as_one_that_was_not() -> None:
    stopped()
    resumed, whole = stopped(resume=True), stopped(out=Path("whole.h5"))
    np.testing.assert_array_equal(resumed.trace.history()["loss"], whole.trace.history()["loss"])
    assert resumed.summary()["loss"] == whole.summary()["loss"]


def test_a_last_evaluation_that_takes_too_long_is_given_up_and_the_run_is_saved() -> None:
    outcome = stopped("run.grace=0.3", more=SLOW)
    assert (outcome.saved, outcome.resumable) == (5, True)
    assert re.search(r"loss +\S+, before the last rounds\n", closing_table(outcome))


@pytest.mark.parametrize("limit", ["rounds=13", "clock=60"])
def test_a_run_that_reaches_a_limit_between_two_evaluations_is_evaluated_there(limit: str) -> None:
    Path("stopped").touch()
    outcome = stopped(f"stop.{limit}")
    assert outcome.reason
    assert outcome.trace.round % 10
    assert outcome.summary()["loss"] == PROBLEM.loss(outcome.x)


def test_a_finished_run_that_is_resumed_with_changes_shows_its_loss_as_that_of_its_last_round() -> None:
    Path("stopped").touch()
    stopped()
    outcome = stopped("method.step_size=0.2", resume=True)
    assert outcome.reason == "20 rounds"
    assert "before the last rounds" not in closing_table(outcome)


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


def evaluated(answer: object) -> dict[str, float]:
    """Evaluate all parts in this process."""
    problem, x = InParts(answer), np.arange(4.0)
    values = [value for part in range(3) for value in evaluated_part(problem, x, part)]
    return evaluate_in_parts(problem, x, SimpleNamespace(evaluate=lambda x, parts: values))


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


def test_parts_are_combined_and_an_error_there_shows_the_users_lines_and_no_others() -> None:
    assert evaluated(None) == {"loss": 1.0}
    with pytest.raises(RunError) as error:
        evaluated(0)
    first, *_, last = str(error.value).splitlines()
    assert first == "combine_parts(x, numbers) of the problem failed:"
    assert last == "IndexError: list index out of range"
    assert str(error.value).count("File ") == 1
