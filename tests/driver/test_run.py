"""The loop: rounds one after another, evaluated off the clock, until a limit or the caller says enough."""

import math
import re
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import (
    ATA,
    GTA,
    OFTA,
    SGD,
    UTA,
    ATAEmpirical,
    DrawnTimes,
    Plain,
    Quadratic,
    Round,
    Sqrt,
    Stop,
    Task,
    Trace,
    VirtualCluster,
    run,
)
from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array
from mpi_ata.clusters.accounts import in_flight
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.driver.restore import begin
from mpi_ata.errors import RunError, UsageError
from tests.driver.driven import driven
from tests.faults.scene import METHODS, record_of, written

N, B, SEED = 5, 7, 3

ALLOCATORS: dict[str, Callable[[DrawnTimes], Allocator]] = {
    "ata": lambda times: ATA(N, B, alpha=2.0, seed=SEED),
    "ata-empirical": lambda times: ATAEmpirical(N, B, seed=SEED),
    "gta": lambda times: GTA(N, B),
    "ofta": lambda times: OFTA(N, B, times.means),
    "uta": lambda times: UTA(N, B, seed=SEED),
}


class Counting(Quadratic):
    """The quadratic, which counts how often it is asked for its loss."""

    evaluated = 0

    def loss(self, x: Array) -> float:
        self.evaluated += 1
        return super().loss(x)


class Silent:
    """A problem that tells no loss; worker 0 may fail in a round."""

    def __init__(self, failing_round: int = 0) -> None:
        self.x0 = np.ones(3)
        self.failing_round = failing_round

    def gradient(self, x: Array, task: Task) -> Array:
        if task.worker == 0 and task.round == self.failing_round:
            raise KeyError("the sky has fallen")
        return x


class Overflowing(Silent):
    """A problem whose gradients are numbers, but not their sum."""

    def gradient(self, x: Array, task: Task) -> Array:
        return np.full_like(x, 1e308)


def parts(problem: Any = None, allocator: str = "gta") -> tuple[Any, SGD, Any]:
    """A problem, a method and a cluster."""
    problem = problem or Counting(6, noise=0.1)
    times = DrawnTimes(Sqrt(N, 2.0), SEED)
    method = SGD(problem.x0, ALLOCATORS[allocator](times), Plain(0.5))
    return problem, method, VirtualCluster(problem, times, SEED)


def traced(problem: Any, rounds: int = 25, every: int = 10) -> tuple[Trace, SGD]:
    """The trace of so many rounds, and the method afterwards."""
    trace, (_, method, cluster) = Trace(), parts(problem)
    assert len(list(run(method, cluster, problem, Stop(rounds=rounds), every, trace))) == rounds
    return trace, method


def executed(folder: Path, *settings: str, look: Callable[[Trace], None] | None = None) -> Outcome:
    """A job of 25 rounds with some settings, executed."""
    return driven(written(folder / "job.toml", "sgd gta", rounds=25), settings, look)


def test_rounds_are_made_only_as_the_caller_asks_for_them() -> None:
    _, method, cluster = parts()
    rounds = run(method, cluster)
    assert method.k == 0
    assert [round.number for round in islice(rounds, 3)] == [1, 2, 3]
    assert method.k == 3


def test_the_caller_may_break_and_go_on_with_the_same_method() -> None:
    _, method, cluster = parts()
    for round in run(method, cluster):
        if round.number == 4:
            break
    _, straight, another = parts()
    for _ in run(straight, another, stop=Stop(rounds=9)):
        pass
    assert [round.number for round in run(method, cluster, stop=Stop(rounds=9))] == [5, 6, 7, 8, 9]
    assert method.x.tobytes() == straight.x.tobytes()


@pytest.mark.parametrize(("every", "expected"), [(10, [0, 10, 20, 25]), (99, [0, 25])])
def test_the_loss_is_evaluated_before_the_first_round_every_so_often_and_at_the_end(
    every: int, expected: list[int]
) -> None:
    problem = Counting(6, noise=0.1)
    trace, method = traced(problem, every=every)
    assert [row.round for row in trace.rows] == expected
    assert problem.evaluated == len(expected)
    assert trace.loss == trace.rows[-1].loss == Quadratic.loss(problem, method.x)
    assert trace.gap == trace.loss - problem.minimum


class Telling(Counting):
    """The quadratic, which tells more than its loss."""

    def evaluate(self, x: Array) -> dict[str, float]:
        assert not x.flags.writeable
        time.sleep(0.01)
        return {"norm": float(x @ x)}


def test_what_else_a_problem_tells_is_kept_with_the_rows_and_takes_no_time_on_the_clock() -> None:
    problem = Telling(6)
    trace, method = traced(problem, rounds=25)
    assert trace.evaluation == {"norm": pytest.approx(float(method.x @ method.x), rel=1e-6)}
    assert len(trace.metrics["norm"]) == len(trace.rows) == problem.evaluated
    assert trace.metrics["norm"][0] == 0.0
    assert trace.clock == traced(Quadratic(6))[0].clock
    assert trace.elapsed >= 0.04


def test_a_loss_found_while_evaluating_is_not_asked_for_again() -> None:
    class Once(Counting):
        def evaluate(self, x: Array) -> dict[str, float]:
            return {"loss": 7.0}

    problem = Once(6)
    trace, _ = traced(problem, rounds=5)
    assert (trace.loss, trace.gap, trace.evaluation) == (7.0, 7.0 - problem.minimum, {})
    assert problem.evaluated == 0


OWN = """
import numpy as np

class Own:
    minimum = -1.0
    def __init__(self):
        self.x0 = np.ones(3)
    def gradient(self, x, task):
        return x
    def evaluate(self, x):
        return {"LOSS": float(x @ x), "norm": 1.0}
"""


def own(folder: Path, name: str, *settings: str, more: str = "") -> Outcome:
    """A run of a problem that tells its loss, under this name, while it is evaluated."""
    (folder / "own.py").write_text(OWN.replace("LOSS", name) + more)
    job = written(folder / "job.toml", "sgd gta", 200, problem='file = "own.py"\nclass = "Own"')
    return driven(job, settings)


@pytest.mark.parametrize(("limit", "reason"), [("stop.loss=0.01", "loss "), ("stop.gap=1.01", "gap 1.0")])
def test_a_run_stops_at_a_loss_that_is_found_while_evaluating(
    tmp_path: Path, limit: str, reason: str
) -> None:
    assert (own(tmp_path, "loss", limit).reason or "").startswith(reason)
    with pytest.raises(UsageError, match=r"^stop.loss or stop.gap is set, but the problem has no loss; let"):
        own(tmp_path, "los", limit)
    assert own(tmp_path, "los").reason == "200 rounds"


def test_a_problem_that_tells_no_loss_runs_and_its_loss_is_not_known() -> None:
    trace, _ = traced(Silent())
    assert math.isnan(trace.loss)
    assert math.isnan(trace.gap)


def test_what_is_wanted_already_takes_no_round(tmp_path: Path) -> None:
    outcome = executed(tmp_path, "stop.gap=1.0")
    assert (outcome.trace.round, outcome.trace.started) == (0, 0)
    assert (outcome.reason or "").endswith(" < 1")


@pytest.mark.parametrize("every", [1, 10])
def test_a_run_stops_in_the_round_whose_evaluation_tells_the_wanted_gap(every: int) -> None:
    problem, method, cluster = parts()
    trace = Trace()
    rounds = list(run(method, cluster, problem, Stop(rounds=500, gap=0.05), every, trace))
    assert [row.gap < 0.05 for row in trace.rows] == [False] * (len(trace.rows) - 1) + [True]
    assert len(rounds) == trace.rows[-1].round == every * (len(trace.rows) - 1)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_task_was_used_or_wasted_or_lost_and_worker_time_is_that_of_used_ones_and_the_waste(
    allocator: str,
) -> None:
    problem, method, cluster = parts(allocator=allocator)
    times, trace, before, rounds = DrawnTimes(Sqrt(N, 2.0), SEED), Trace(), 0.0, list[Round]()
    for round in run(method, cluster, problem, Stop(rounds=25), trace=trace):
        # Who has not done its quota when the budget is met was in the middle of one more task.
        begun = np.minimum(round.used + 1, round.quota) if allocator == "gta" else round.quota
        assert round.started.tolist() == begun.tolist()
        assert round.used.sum() == B
        used = sum(sum(times.of(i, round.number, 0, round.used.item(i))) for i in range(N))
        assert trace.worker_time - before == pytest.approx(used + round.waste)
        assert (round.waste > 0) == (allocator == "gta")
        before = trace.worker_time
        rounds.append(round)
    for name in ("started", "used", "wasted", "lost"):
        assert getattr(trace, name) == sum(int(getattr(round, name).sum()) for round in rounds)
    assert trace.worker_time == pytest.approx(cluster.ledger.worker_time.sum())


def test_where_times_are_drawn_the_regret_is_known_zero_for_the_oracle_and_unknown_for_greed(
    tmp_path: Path,
) -> None:
    names = ("ofta", "uta", "gta")
    oracle, uniform, greedy = (executed(tmp_path, f"allocator.name={name}").trace.regret for name in names)
    assert oracle == 0.0 < uniform
    assert math.isnan(greedy)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_same_seed_gives_the_same_run_bit_for_bit_and_another_seed_another_one(
    tmp_path: Path, allocator: str
) -> None:
    chosen = [f"allocator.name={allocator}", *(["allocator.alpha=2.0"] if allocator == "ata" else [])]
    one, same, other = (executed(tmp_path, *chosen, f"run.seed={seed}") for seed in (3, 3, 4))
    assert one.x.tobytes() == same.x.tobytes() != other.x.tobytes()
    assert one.summary() | {"elapsed": 0} == same.summary() | {"elapsed": 0}
    assert one.summary()["clock"] != other.summary()["clock"]


def test_how_often_the_loss_is_evaluated_changes_nothing_in_the_run(tmp_path: Path) -> None:
    often, seldom = (executed(tmp_path, f"run.evaluate_every={every}") for every in (1, 25))
    assert often.x.tobytes() == seldom.x.tobytes()
    assert often.summary() | {"elapsed": 0} == seldom.summary() | {"elapsed": 0}


@pytest.mark.parametrize("step_size", [10.0, 1e300])
def test_a_run_that_diverges_fails_in_one_sentence_that_tells_the_way_out(
    tmp_path: Path, step_size: float
) -> None:
    with pytest.raises(RunError, match=r"^the run diverged by round \d+, .*; try a smaller step_size"):
        executed(tmp_path, f"method.step_size={step_size}", "stop.rounds=5000")


def test_a_point_that_is_not_finite_is_found_where_no_loss_is_told_too() -> None:
    problem, method, cluster = parts(Overflowing())
    diverged = pytest.raises(RunError, match=r"^the run diverged by round 1; try a smaller step_size")
    with diverged, np.errstate(over="ignore", invalid="ignore"):
        for _ in run(method, cluster, problem, Stop(rounds=5000), evaluate_every=1):
            pass


@pytest.mark.parametrize("allocator", ["gta", "uta"])
def test_an_exception_in_a_task_names_worker_and_round_and_shows_the_users_lines(allocator: str) -> None:
    problem, method, cluster = parts(Silent(failing_round=4), allocator)
    seen: list[Round] = []
    with pytest.raises(RunError) as caught:
        seen.extend(run(method, cluster, problem, Stop(rounds=25)))
    message = str(caught.value)
    assert message.startswith("a task of worker 0 failed in round 4:\n")
    assert message.endswith("KeyError: 'the sky has fallen'")
    assert f'File "{__file__}"' in message
    assert 'raise KeyError("the sky has fallen")' in message
    assert "mpi_ata/cluster" not in message, "our own frames are of no use to the user"
    assert len(seen) == 3


def test_ctrl_c_ends_a_run_early_with_what_was_reached(tmp_path: Path) -> None:
    def interrupt(trace: Trace) -> None:
        if trace.round == 7:
            raise KeyboardInterrupt

    outcome = executed(tmp_path, look=interrupt)
    assert outcome.reason is None
    assert (outcome.summary()["finished"], outcome.summary()["rounds"]) == (False, 7)
    assert outcome.x.tobytes() == executed(tmp_path, "stop.rounds=7").x.tobytes()


@pytest.mark.parametrize(
    ("missing", "fragment"),
    [('[times]\nlaw = "sqrt"\n', "needs a table [times]"), ("workers = 5\n", "number of workers not set")],
)
def test_a_job_that_cannot_be_simulated_is_refused(tmp_path: Path, missing: str, fragment: str) -> None:
    job = written(tmp_path / "job.toml")
    job.write_text(job.read_text().replace(missing, ""))
    with pytest.raises(UsageError, match=re.escape(fragment)) as caught:
        driven(job)
    assert str(caught.value).startswith(f"{job}: ")


@pytest.mark.parametrize("part", ["loss", "setup", "evaluate"])
def test_an_exception_elsewhere_in_a_users_problem_is_an_error_of_the_run_too(
    tmp_path: Path, part: str
) -> None:
    with pytest.raises(RunError, match="here"):
        own(tmp_path, "los", more=f"    def {part}(self, *_):\n        raise KeyError('here')\n")


METHOD = """
import numpy as np
from mpi_ata import Round


class Greedy:
    def __init__(self, x0, n):
        self.x, self.k, self.n = x0.copy(), 0, n

    def step(self, cluster):
        everyone, used = np.arange(self.n), np.zeros(self.n, np.int64)
        began = cluster.now()
        cluster.start(everyone, self.x, self.k + 1)
        for _ in range(2):
            used[cluster.wait().worker] += 1
        duration, spent = cluster.now() - began, cluster.stop(everyone)
        self.k += 1
        return Round(self.k, used, used, 1 - used, np.zeros_like(used), float(spent.sum()), duration)
"""


def test_tasks_that_a_method_of_ones_own_stops_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy.py").write_text(METHOD)
    monkeypatch.setitem(METHODS, "own", 'file = "greedy.py"\nclass = "Greedy"')
    summary = driven(written(tmp_path / "job.toml", "own", rounds=25)).summary()
    counts = [summary[f"tasks_{name}"] for name in ("started", "used", "wasted", "lost")]
    assert counts == [25 * 5, 25 * 2, 25 * 3, 0]
    assert 0 < summary["waste"] < summary["worker_time"]


def test_tasks_under_way_at_the_end_of_a_run_are_wasted(tmp_path: Path) -> None:
    out = OutputOptions(Path("run.h5"))
    summary = driven(written(tmp_path / "job.toml", "ringmaster", rounds=5), output=out).summary()
    record = record_of(Path("run.h5"))
    begun = int(in_flight(record.cluster).sum())
    assert begun > 0
    assert summary["tasks_wasted"] == int(record.totals["wasted"]) + begun
    assert record.summary["tasks_wasted"] == summary["tasks_wasted"]


class Losing(VirtualCluster):
    """Books a lost task when it is restored, as real ranks do for those then in flight."""

    def restore(self, state: object, workers: object = None) -> None:
        self.ledger.lose(np.array([1]), np.array([3]))


def test_tasks_lost_at_a_break_are_in_the_totals_of_the_resumed_run(tmp_path: Path) -> None:
    job, out = written(tmp_path / "job.toml", "ringmaster", rounds=5), Path("run.h5")
    driven(job, output=OutputOptions(out))
    plan, trace = resolve(job, ["stop.rounds=9"], OutputOptions(out, resume=True)), Trace()
    problem, times, method = plan.parts()
    assert times is not None
    begin(plan, method, Losing(problem, times, plan.job.run.seed), trace)
    assert trace.lost == 3
