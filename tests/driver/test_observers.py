"""Observers see a run from its start to its end; what is said on the way goes to the logger mpi_ata."""

import logging
import signal
from pathlib import Path

import pytest

from mpi_ata import (
    SGD,
    UTA,
    Cluster,
    DrawnTimes,
    Method,
    Observer,
    Plain,
    Quadratic,
    Round,
    RunError,
    Sqrt,
    Trace,
    VirtualCluster,
    run,
)
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import OutputOptions, resolve
from tests.driver.driven import driven, logged
from tests.faults.scene import own_problem, record_of, written

OUT = Path("run.h5")


class Diary(Observer):
    """Writes down what it sees."""

    def __init__(self, stop_at: int = 0) -> None:
        self.seen: list[str] = []
        self._stop_at = stop_at

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        self.seen.append(f"start at {method.k} on {cluster.n} workers")

    def on_round(self, round: Round, trace: Trace) -> None:
        assert trace.round == round.number
        self.seen.append(f"round {round.number}")
        if round.number == self._stop_at:
            signal.raise_signal(signal.SIGTERM)

    def on_end(self, trace: Trace, reason: str | None) -> None:
        self.seen.append(f"end at {trace.round}: {reason}")


def test_an_observer_sees_the_start_every_round_and_the_end(tmp_path: Path) -> None:
    diary = Diary()
    execute(resolve(written(tmp_path / "job.toml", rounds=3, workers=4)), [diary])
    assert diary.seen == ["start at 0 on 4 workers", "round 1", "round 2", "round 3", "end at 3: 3 rounds"]


def test_an_observer_sees_that_a_run_was_stopped_and_then_that_it_is_resumed(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=4, workers=4)
    first, second = Diary(stop_at=2), Diary()
    execute(resolve(job, output=OutputOptions(OUT)), [first])
    assert first.seen[-2:] == ["round 2", "end at 2: None"]
    execute(resolve(job, output=OutputOptions(OUT, resume=True)), [second])
    assert second.seen == ["start at 2 on 4 workers", "round 3", "round 4", "end at 4: 4 rounds"]


def test_what_is_said_on_the_way_goes_to_the_logger_of_the_package_and_nowhere_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logging.getLogger("mpi_ata").handlers == []
    job = written(tmp_path / "job.toml", rounds=2, workers=4)
    driven(job, output=OutputOptions(OUT))
    with logged() as texts:
        driven(job, ["stop.rounds=3"], output=OutputOptions(OUT, resume=True))
    assert texts == ["resumed at round 2 on 4 workers", "changed stop.rounds: 2 -> 3"]
    assert capsys.readouterr() == ("", "")


class Failing(Observer):
    """Fails in one of its hooks."""

    def __init__(self, hook: str) -> None:
        self.calls = 0
        setattr(self, hook, self._fail)

    def _fail(self, *_: object) -> None:
        self.calls += 1
        raise OSError("no space\nleft")


@pytest.mark.parametrize("hook", ["on_start", "on_round", "on_end"])
def test_an_observer_that_fails_is_left_out_and_the_run_ends_well_and_saved(
    tmp_path: Path, hook: str
) -> None:
    failing, diary = Failing(hook), Diary()
    plan = resolve(written(tmp_path / "job.toml", rounds=3, workers=4), output=OutputOptions(OUT))
    with logged() as texts:
        outcome = execute(plan, [failing, diary])
    assert outcome.reason == "3 rounds"
    assert texts == ["the observer Failing failed and is left out: OSError: no space left"]
    assert failing.calls == 1
    assert diary.seen[-1] == "end at 3: 3 rounds"
    assert record_of(OUT).reason == "3 rounds"


def test_an_observer_sees_the_end_of_a_run_that_fails(tmp_path: Path) -> None:
    problem = own_problem(tmp_path, "if task.round == 2: raise ValueError('broken')")
    job = written(tmp_path / "job.toml", rounds=3, problem=problem)
    diary = Diary()
    with pytest.raises(RunError, match="broken"):
        execute(resolve(job), [diary])
    assert diary.seen[-2:] == ["round 1", "end at 1: None"]


def test_an_observer_of_a_loop_of_ones_own_sees_that_it_was_left() -> None:
    problem, diary = Quadratic(dimension=3), Diary()
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(4)))
    for _ in run(SGD(problem.x0, UTA(4, 8), Plain(0.1)), cluster, observers=[diary]):
        break
    assert diary.seen == ["start at 0 on 4 workers", "round 1", "end at 1: None"]
