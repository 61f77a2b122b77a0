"""The loss shown in the end is that of the last round, also where a run was stopped between evaluations."""

import re
from pathlib import Path

import numpy as np
import pytest

from mpi_ata import Quadratic
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.runfile.load import describe, load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.summaries import closing_table

JOB = """
[problem]
file = "mine.py"
class = "Mine"
[method]
name = "sgd"
step_size = 0.1
[allocator]
name = "uta"
budget = 4
[times]
law = "constant"
[stop]
rounds = 20
[run]
workers = 2
evaluate_every = 10
"""
PROBLEM = """
import os, signal, time
from pathlib import Path
from mpi_ata import Quadratic
class Mine(Quadratic):
    def __init__(self):
        super().__init__(5)
    def gradients(self, x, tasks):
        if tasks[0].round == 5 and not Path("stopped").exists():
            Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().gradients(x, tasks)
    def evaluate(self, x):
        return {"first": x[0]}
"""


def stopped(loss: str = "", *settings: str) -> Outcome:
    """Run the job, which is sent a signal in round 5."""
    Path("mine.py").write_text(PROBLEM + loss)
    Path("job.toml").write_text(JOB)
    return execute(resolve(Path("job.toml"), settings, OutputOptions(Path("run.h5"))))


def test_a_run_that_a_signal_stops_is_evaluated_where_it_stops() -> None:
    outcome = stopped()
    assert (outcome.reason, outcome.trace.round) == (None, 5)
    loss = Quadratic(5).loss(outcome.x)
    assert outcome.summary()["loss"] == loss
    assert outcome.summary()["evaluation"] == {"first": outcome.x[0]}
    assert f"loss           {loss:.8g}\n" in closing_table(outcome)
    shown = describe(load_record(RunFile(Path("run.h5")))[0])
    assert (shown["loss"], shown["evaluation"]) == (loss, {"first": outcome.x[0]})


def test_a_run_that_was_stopped_and_resumed_has_the_same_history_as_one_that_was_not() -> None:
    stopped()
    resumed = execute(resolve(Path("job.toml"), (), OutputOptions(Path("run.h5"), resume=True)))
    whole = execute(resolve(Path("job.toml"), (), OutputOptions(Path("whole.h5"))))
    np.testing.assert_array_equal(resumed.trace.history()["loss"], whole.trace.history()["loss"])
    assert resumed.summary()["loss"] == whole.summary()["loss"]


def test_a_last_evaluation_that_takes_too_long_is_given_up_and_the_run_is_saved() -> None:
    slow = """
    def loss(self, x):
        if Path("stopped").exists():
            time.sleep(60)
        return super().loss(x)
"""
    outcome = stopped(slow, "run.grace=0.3")
    assert (outcome.saved, outcome.resumable) == (5, True)
    assert re.search(r"loss +\S+, before the last rounds\n", closing_table(outcome))


@pytest.mark.parametrize("limit", ["rounds=13", "clock=13"])
def test_a_run_that_reaches_a_limit_between_two_evaluations_is_evaluated_there(limit: str) -> None:
    Path("stopped").touch()
    outcome = stopped("", f"stop.{limit}")
    assert outcome.reason
    assert outcome.summary()["loss"] == Quadratic(5).loss(outcome.x)


def test_a_finished_run_that_is_resumed_with_changes_shows_its_loss_as_that_of_its_last_round() -> None:
    Path("stopped").touch()
    stopped()
    again = OutputOptions(Path("run.h5"), resume=True)
    outcome = execute(resolve(Path("job.toml"), ("method.step_size=0.2",), again))
    assert outcome.reason == "20 rounds"
    assert "before the last rounds" not in closing_table(outcome)
