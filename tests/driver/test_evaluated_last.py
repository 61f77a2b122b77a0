"""The loss shown in the end is that of the last round, also where a run was stopped between evaluations."""

import re
from pathlib import Path

import numpy as np
import pytest

from mpi_ata import Quadratic
from mpi_ata.driver.drive import Outcome
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
