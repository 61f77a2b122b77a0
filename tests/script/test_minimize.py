"""minimize() on simulated workers: a whole run from Python does what a job does."""

import inspect
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata import (
    UTA,
    Adam,
    Array,
    ATAEmpirical,
    CSVLogger,
    Observer,
    Plain,
    Quadratic,
    Result,
    Round,
    RunError,
    Sqrt,
    Stop,
    Task,
    Trace,
    UsageError,
    load,
    minimize,
)
from tests.driver.driven import logged
from tests.faults.scene import record_of

TIMES = Sqrt(4, scale=1e-3)
OUT = Path("runs/mine.h5")


def minimized(**options: Any) -> Result:
    """Minimize a quadratic on four simulated workers."""
    given: dict[str, Any] = {"budget": 8, "update": Plain(0.4), "rounds": 30, "times": TIMES} | options
    found = minimize(given.pop("problem", Quadratic(20)), **given)
    assert found is not None
    return found


def test_a_run_returns_its_point_its_summary_and_its_history() -> None:
    problem = Quadratic(20)
    result = minimized(problem=problem)
    assert result.summary["rounds"] == 30
    assert result.summary["finished"]
    assert result.summary["tasks_used"] == 30 * 8
    assert result.summary["loss"] == problem.loss(result.x)
    assert result.history["round"].tolist() == [0, 10, 20, 30]
    assert result.history["gap"][-1] < result.history["gap"][0]
    assert (result.path, list(Path().iterdir())) == (None, []), "nothing is written without out"


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    update = Adam(0.01)
    first, second = minimized(update=update, seed=3), minimized(update=update, seed=3)
    assert np.array_equal(first.x, second.x), "the update of the first run is not used up by it"
    assert not np.array_equal(first.x, minimized(update=update, seed=4).x)


def test_a_recorded_run_can_be_shown_and_loaded_with_its_settings() -> None:
    result, run, tables = minimized(out=OUT), load(OUT), record_of(OUT).job.tables
    assert result.path == OUT
    assert np.array_equal(run.x, result.x)
    assert run.history["loss"].tolist() == result.history["loss"].tolist()
    assert tables["problem"] == {"class": "Quadratic", "x0": "float64 of shape (20,)"}
    assert (tables["update"]["class"], tables["update"]["step_size"]) == ("Plain", 0.4)
    assert (tables["allocator"]["class"], tables["allocator"]["budget"]) == ("ATAAuto", 8)
    assert (tables["stop"], tables["run"]["workers"]) == ({"rounds": 30}, 4)


def test_a_run_is_resumed_with_the_same_numbers_as_one_that_was_not_interrupted() -> None:
    whole = minimized(rounds=50)
    minimized(out=OUT, rounds=20)
    resumed = minimized(out=OUT, rounds=50, resume=True)
    assert np.array_equal(resumed.x, whole.x)
    assert resumed.summary["worker_time"] == whole.summary["worker_time"]
    events = [(event["kind"], event["text"]) for event in load(OUT).events]
    assert ("changed", "stop.rounds: 20 -> 50") in events


def test_a_finished_run_is_returned_as_it_is() -> None:
    first = minimized(out=OUT)
    before = OUT.stat().st_mtime_ns
    again = minimized(out=OUT, resume=True)
    assert np.array_equal(again.x, first.x)
    assert (again.summary["rounds"], again.path) == (30, OUT)
    assert OUT.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"problem": Quadratic(21)}, "problem.x0 (float64 of shape (20,), now float64 of shape (21,))"),
        ({"seed": 1}, "run.seed (0, now 1)"),
    ],
)
def test_another_problem_or_seed_cannot_be_resumed(options: dict[str, Any], what: str) -> None:
    minimized(out=OUT)
    with pytest.raises(UsageError) as error:
        minimized(out=OUT, rounds=40, resume=True, **options)
    assert f"runs/mine.h5: differs from that run in {what}; resume" in str(error.value)


def fitted(factor: str, comment: str = "", imports: str = "sys", **options: Any) -> Result:
    """Minimize a problem in a file, which is written anew."""
    lines = f"class Mine(mpi_ata.Quadratic):{comment}\n    factor = {factor}\n"
    Path("my.py").write_text(f"import mpi_ata\nimport {imports}\n{lines}")
    return minimized(problem="my.py:Mine", out=OUT, resume=True, **options)


def test_edited_code_of_the_problem_is_resumed_on_request_and_comments_do_not_matter() -> None:
    fitted("1")
    assert fitted("1", "  # as before", rounds=31).summary["rounds"] == 31
    with pytest.raises(UsageError, match=r"code of the problem's class; .* by accept_changes=True, or"):
        fitted("2", rounds=32)
    assert fitted("2", rounds=32, accept_changes=True).summary["rounds"] == 32
    assert "factor = 2" in load(OUT).events[-2]["text"]


def test_an_edited_file_that_the_problem_imports_from_beside_it_is_resumed_on_request() -> None:
    Path("beside.py").write_text("NUMBER = 1\n")
    fitted("beside.NUMBER", imports="beside")
    Path("beside.py").write_text("NUMBER = 2\n")
    with pytest.raises(UsageError, match=r"in the file beside.py; .* by accept_changes=True, or"):
        fitted("beside.NUMBER", imports="beside", rounds=31)


def test_a_warm_start_takes_over_what_earlier_runs_learned_of_the_same_problem() -> None:
    minimized(out=OUT)
    with logged() as notes:
        minimized(warm_start="runs/")
        minimized(warm_start=OUT, out="runs/next.h5")
    assert load("runs/next.h5").events[1]["kind"] == "warm-started"
    with logged() as others:
        minimized(problem=Quadratic(21), warm_start=["runs"])
    assert "use it anyway with any_problem=True" in others[0]
    assert not any("cold" in note for note in notes)


class Stopper(Observer):
    """Sends a signal in a certain round."""

    def __init__(self, at: int) -> None:
        self._at = at

    def on_round(self, round: Round, trace: Trace) -> None:
        if round.number == self._at:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("in_script")
def test_a_signal_ends_the_script_after_the_round_with_exit_code_85_or_1_if_nothing_is_saved() -> None:
    whole = minimized()
    for out, code, left in (
        (OUT, 85, "resume it with resume=True"),
        (None, 1, "it cannot be resumed: that needs out=..., and parts that have state() and restore(state)"),
    ):
        with pytest.raises(SystemExit) as end, logged() as notes:
            minimized(out=out, observers=[Stopper(7)])
        assert end.value.code == code
        assert notes[-1] == f"the run was stopped early, by SIGTERM; {left}"
    assert load(OUT).summary["rounds"] == 7
    assert np.array_equal(minimized(out=OUT, resume=True).x, whole.x)


class Failing(Quadratic):
    """Fails in its eleventh round."""

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        if tasks[0].round == 11:
            raise ZeroDivisionError("on purpose")
        return super().gradients(x, tasks)


class Evaluated(Quadratic):
    """Cannot be evaluated after its first rounds."""

    def evaluate(self, x: Array) -> dict[str, float]:
        if np.any(x):
            raise ZeroDivisionError("on purpose")
        return {"one": 1.0}


@pytest.mark.parametrize("problem", [Failing(20), Evaluated(20)])
def test_a_run_that_fails_has_saved_its_completed_rounds_and_records_why(problem: Quadratic) -> None:
    with pytest.raises(RunError, match="holds the run up to round 10") as error:
        minimized(problem=problem, out=OUT, checkpoint_seconds=1000)
    assert "on purpose" in str(error.value)
    assert "out='runs/mine.h5', resume=True" in str(error.value)
    run = load(OUT)
    assert (run.summary["rounds"], run.events[-1]["kind"]) == (10, "failed")
    assert "ZeroDivisionError: on purpose" in run.events[-1]["text"]


class WithoutSize:
    """An allocator that does not say for how many workers it is."""

    budget = 8

    def allocate(self, available: Array) -> Array:
        return available


class NoStart:
    """A problem that does not say where to start."""

    def gradient(self, x: Array, task: Task) -> Array:
        return x


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"times": None}, "no launcher .* workers=4, .* times="),
        ({"problem": NoStart()}, "NoStart has no x0"),
        ({"rounds": None}, "rounds="),
        ({"stop": Stop(rounds=3)}, "rounds=30, .* rounds=3"),
        ({"rounds": 0}, "rounds=0 must be above 0"),
        ({"budget": None}, "budget=23"),
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"update": 0.1}, "update=0.1 is not an update"),
        ({"update": Adam}, "not an update"),
        ({"problem": Quadratic}, r"Quadratic is a class; pass an object, as in Quadratic\(\)"),
        ({"allocator": "atta"}, "allocator='atta' .* ata, "),
        ({"allocator": UTA(5, 8)}, "for 5 workers and a budget of 8, .* 4 and 8"),
        ({"allocator": UTA(4, 9)}, "for 4 workers and a budget of 9, .* 4 and 8"),
        ({"allocator": WithoutSize()}, "for no workers"),
        ({"allocator": WithoutSize}, "cannot be called with n=4: TypeError: .*; pass a function of n"),
        ({"resume": True}, "resume=True .* out='RUN.h5'"),
        ({"accept_changes": True}, "accept_changes=True requires resume=True"),
        ({"any_problem": True}, "any_problem=True requires warm_start"),
        ({"warm_start": "nowhere.h5"}, "warm_start='nowhere.h5'"),
        ({"evaluate_every": 0}, "evaluate_every=0 must be at least 1"),
        ({"workers": 3}, "times are those of 4 workers, but workers=3"),
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"workers": "4"}, "workers='4' must be a whole number"),
        ({"rounds": 2.5}, "rounds=2.5 must be a whole number"),
        ({"seed": -1}, r"seed=-1 must be from 0"),
        ({"prior_weight": "a"}, "prior_weight='a' must be a number"),
        ({"times": "sqrt"}, "times='sqrt' is not a law"),
        ({"times": Sqrt}, "not a law"),
        ({"warm_start": 5}, "warm_start=5 must be a path"),
        ({"out": 5}, "out=5 must be a path"),
        ({"stop": Stop, "rounds": None}, "must be limits"),
        ({"faults": 3}, "faults=3 must be a policy"),
        ({"observers": 5}, "observers=5 must be a list"),
        ({"observers": CSVLogger()}, "must be a list of observers"),
        ({"observers": [CSVLogger]}, "not an observer"),
        ({"progress": "no"}, "progress='no' must be True or False"),
        ({"problem": "nowhere.py:My"}, "is not FILE.py:CLASS"),
    ],
)
def test_what_cannot_be_run_is_rejected_in_one_sentence(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what) as error:
        minimized(**options)
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value), "options of the command line are arguments here"


def test_numbers_may_be_those_of_numpy() -> None:
    result = minimized(seed=np.int64(3), rounds=np.int32(5), budget=np.int64(8), grace=np.float64(2), out=OUT)
    assert np.array_equal(result.x, minimized(seed=3, rounds=5).x)


def test_limits_may_be_infinite() -> None:
    result = minimized(rounds=None, stop=Stop(rounds=5, elapsed=math.inf), grace=math.inf, out=OUT)
    assert result.summary["rounds"] == 5


def test_a_missing_argument_is_reported_for_the_function_that_was_called() -> None:
    with pytest.raises(UsageError, match=r"minimize\(\): missing a required .*argument: 'update'"):
        mpi_ata.minimize(Quadratic(dimension=3), rounds=5)  # type: ignore[call-arg]


def test_an_allocator_is_given_by_name_by_a_function_or_as_it_is() -> None:
    by_name, made = minimized(allocator="uta"), minimized(allocator=lambda n: UTA(n, 8))
    assert np.array_equal(by_name.x, made.x)
    assert np.array_equal(by_name.x, minimized(allocator=UTA(4, 8), budget=None).x)
    assert minimized(allocator="gta").summary["tasks_wasted"] > 0


def test_an_allocator_starts_afresh_in_every_run() -> None:
    allocator = ATAEmpirical(4, 8)
    first, second = minimized(allocator=allocator), minimized(allocator=allocator)
    assert first.history["worker_time"].tolist() == second.history["worker_time"].tolist()
    assert allocator.K.sum() == 0


class Regularized(Quadratic):
    """Has a parameter with a name that is not in ASCII."""

    def __init__(self, λ: float) -> None:
        super().__init__(20)
        self.λ = λ


def test_a_parameter_may_have_any_name_that_python_takes() -> None:
    minimized(problem=Regularized(0.5), out=OUT, rounds=3)
    assert record_of(OUT).job.tables["problem"]["λ"] == 0.5
    assert minimized(problem=Regularized(0.5), out=OUT, rounds=5, resume=True).summary["rounds"] == 5


def parameters(function: Any) -> dict[str, Any]:
    """The arguments of a function that have a default, each with that."""
    known = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in known if one.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("function", [mpi_ata.run, mpi_ata.cluster, mpi_ata.Balance])
def test_an_argument_that_several_functions_have_has_the_same_default_in_each(function: Any) -> None:
    ours, theirs = parameters(minimize), parameters(function)
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 4
    assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


@pytest.mark.parametrize(
    ("function", "word", "sentence"),
    [
        (minimize, "round", "minimize() has no argument 'round'; did you mean rounds?"),
        (mpi_ata.cluster, "worker", "cluster() has no argument 'worker'; did you mean workers?"),
        (mpi_ata.Balance, "warmstart", "Balance() has no argument 'warmstart'; did you mean warm_start?"),
        (mpi_ata.run, "bandwidth", "run() has no argument 'bandwidth'"),
        (minimize, "replicated", "replicated was removed; use exchange='chain'"),
    ],
)
def test_a_misspelt_argument_is_rejected_with_the_name_that_was_meant(
    function: Any, word: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        function(**{word: 4})
    assert str(caught.value).startswith(sentence)
