"""Predictions from recorded task times: how close they are, and what they say about themselves."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.what_if import recording, what_if_table
from tests.cli.commands import JOB, call
from tests.marks import slow

UTA = ["--set", "allocator.name=uta"]


def run_job(*options: str) -> dict[str, Any]:
    """Run the job, in the place of an earlier run."""
    for path in Path().glob("run.h5*"):
        path.unlink()
    Path("job.toml").write_text(JOB)
    result = call("run", "job.toml", "--virtual", "--out", "run.h5", "--json", *options)
    assert result.exit_code == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def ask(*options: str) -> dict[str, Any]:
    result = call("what-if", "run.h5", "--json", *options)
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# The length of a round varies by about a quarter: 0.7 % of the clock of 1,200 rounds, which is chance of the
# recorded run; the prediction, a mean over replays, adds little.  3 % is more than four times that.
@pytest.mark.parametrize("allocator", ["uta", *slow("ata-empirical", "ata-auto", "ofta", "bandit")])
def test_the_prediction_for_what_really_ran_is_within_3_per_cent(allocator: str) -> None:
    options = ["--workers", "8", "--set", "allocator.budget=20", "--set", "stop.rounds=1200"]
    ran = run_job("--set", f"allocator.name={allocator}", *options)
    (row,) = ask("--allocators", "own")["predicted"]
    assert row["allocator"] == allocator
    assert row["clock"] == pytest.approx(ran["clock"], rel=0.03)
    assert row["worker_time"] == pytest.approx(ran["worker_time"], rel=0.03)
    assert row["tasks_used"] == ran["tasks_used"]


@pytest.mark.parametrize("stoppable", [*slow("true"), "false"])
def test_the_prediction_for_another_allocator_is_what_that_one_takes(stoppable: str) -> None:
    options = ["--set", "stop.rounds=1200", "--set", f"times.stoppable={stoppable}"]
    run_job(*UTA, *options)
    predicted = {row["allocator"]: row for row in ask("--allocators", "gta,ofta")["predicted"]}
    for allocator in ("ofta", "gta"):
        ran = run_job("--set", f"allocator.name={allocator}", *options)
        for name in ("clock", "worker_time"):
            assert predicted[allocator][name] == pytest.approx(ran[name], rel=0.03)
    (row,) = ask("--allocators", "own")["predicted"]  # from a greedy run, whose long tasks were stopped
    for name in ("clock", "worker_time", "tasks_wasted"):
        assert row[name] == pytest.approx(ran[name], rel=0.05)


def test_notes_of_replays_are_not_those_of_the_run_and_an_allocator_is_replayed_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    law = ["--set", "times.law=gpu-generations", "--workers", "9", "--set", "allocator.budget=9"]
    run_job(*UTA, *law, "--set", "stop.rounds=200")
    predicted = ask("--allocators", "own,ata-auto,uta")["predicted"]  # ata-auto leaves slow workers out
    assert [row["allocator"] for row in predicted] == ["uta", "ata-auto"]
    assert caplog.messages == []


@pytest.mark.slow
def test_budget_and_workers_can_be_changed() -> None:
    run_job(*UTA, "--set", "stop.rounds=200")
    (row,) = ask("--allocators", "uta", "--budget", "4", "--workers", "0-1,4")["predicted"]
    assert (row["budget"], row["workers"], row["tasks_used"]) == (4, 3, 800)
    (fastest,) = ask("--allocators", "uta", "--budget", "4", "--workers", "3")["predicted"]
    assert fastest["worker_time"] < row["worker_time"]


@pytest.mark.slow
def test_few_recorded_times_make_a_prediction_less_sure() -> None:
    run_job("--set", "stop.rounds=5", *UTA)
    few = ask("--allocators", "uta")
    run_job("--set", "stop.rounds=200", *UTA)
    many = ask("--allocators", "uta")
    few_row, many_row = few["predicted"][0], many["predicted"][0]
    assert few_row["clock_error"] / few_row["clock"] > 2 * many_row["clock_error"] / many_row["clock"]
    assert few["least_tasks"] < 10 < many["least_tasks"]


def test_a_bootstrap_varies_means_as_the_mean_of_all_tasks_does() -> None:
    run_job(*UTA, "--set", "stop.rounds=1200")
    record = load_record(RunFile(Path("run.h5")))[0]
    recorded = recording(record, Path("run.h5"))
    rng = np.random.default_rng(1)
    means = np.array([recorded.resampled(rng).means for _ in range(400)])
    expected = np.array([sample.std() for sample in recorded.samples]) / np.sqrt(recorded.tasks)
    # The standard deviation of 400 numbers is known to 3.5 %; 15 % is four times that.
    assert np.allclose(means.std(axis=0), expected, rtol=0.15)
    assert np.allclose(recorded.means, record.workers["seconds"] / record.workers["tasks"])


def test_the_table_says_how_far_to_trust_it() -> None:
    run_job("--set", "stop.rounds=4")
    text = call("what-if", "run.h5").stdout
    rows = [line.split()[0] for line in text.splitlines()[2:6]]
    assert rows == ["ata-empirical,", "ata-empirical", "gta", "uta"]
    assert "±" in text
    assert "Workers with fewer than 30 tasks may be faster or slower than they seem." in text


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answer about a run with its own allocator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("predicted"))
        run_job(*UTA)
        return ask("--allocators", "own")


@pytest.mark.parametrize(
    ("clock", "overhead_ratio", "advice"),
    [
        (1.0, 0.1, ""),
        (1.1, 0.1, "Compare predictions with each other."),
        (0.54, 0.1, "error of -46 %"),
        (1.0, 1.5, "Overhead is 1.5 times as long as the tasks themselves."),
    ],
)
def test_where_nothing_can_be_predicted_there_is_no_number(
    clock: float, overhead_ratio: float, advice: str, predicted: dict[str, Any]
) -> None:
    answer = deepcopy(predicted) | {"overhead_ratio": overhead_ratio}
    answer["clock_of_itself"] = clock * answer["recorded"]["clock"]
    text = what_if_table(answer)
    assert advice in text
    assert ("nothing can be predicted" in text) == (clock < 0.8 or overhead_ratio > 1)
    assert ("±" not in text) == ("nothing can be predicted" in text)
    assert ("with each other" in text) == (clock == 1.1)


@pytest.mark.parametrize("options", [["--allocators", "gta"], ["--allocators", "own", "--budget", "4"]])
def test_what_really_ran_is_replayed_even_if_it_was_not_asked_for(options: list[str]) -> None:
    run_job(*UTA)
    assert ask(*options)["reliable"]
    file = RunFile(Path("run.h5"))
    attributes, groups, _ = file.load()
    attributes["clock"] = 2 * attributes["clock"]
    file.save(attributes, groups)
    assert not ask(*options)["reliable"]


class Mine(mpi_ata.UTA):
    """An allocator of a script."""


def test_a_run_with_an_allocator_of_a_script_is_replayed_with_others() -> None:
    given: Any = {"rounds": 60, "times": mpi_ata.Sqrt(4), "update": mpi_ata.Plain(0.1), "progress": False}
    mpi_ata.minimize(mpi_ata.Quadratic(5), allocator=lambda n: Mine(n, 7), out="run.h5", **given)
    answer = ask("--allocators", "uta")
    assert (answer["reliable"], answer["clock_of_itself"]) == (True, None)
    assert "its allocator is code of your own" in call("what-if", "run.h5").stderr


def test_overhead_of_orders_counts_on_the_clock_but_not_as_worker_time() -> None:
    run_job(*UTA, "--set", "stop.rounds=50")
    file = RunFile(Path("run.h5"))
    attributes, groups, _ = file.load()
    before = ask("--allocators", "uta")["predicted"][0]
    groups["workers"]["overhead"] = 5.0 * groups["workers"]["arrivals"]
    file.save(attributes, groups)
    after = ask("--allocators", "uta")["predicted"][0]
    assert after["clock"] - before["clock"] == pytest.approx(50 * 5.0)
    assert after["worker_time"] == before["worker_time"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "9"], "--workers 9 must be from 1 to 5, the workers with recorded times"),
        (["--workers", "0,9"], "--workers 0,9: worker 9 has no recorded times; leave it out"),
        (["--workers", "a-b"], "--workers a-b is neither a number of workers nor a list of them"),
        (["--allocators", "gat"], "unknown name 'gat' in [allocator]; valid values: "),
    ],
)
def test_what_cannot_be_replayed_is_rejected_in_one_sentence(options: list[str], message: str) -> None:
    run_job()
    result = call("what-if", "run.h5", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_run_without_an_allocator_is_rejected() -> None:
    greedy = 'name = "ringmaster"\ndelay = 5\nbudget = 7'
    before, _, after = JOB.partition('[allocator]\nname = "ata-empirical"\nbudget = 7\neta = 1.0\n')
    Path("job.toml").write_text(before.replace('name = "sgd"', greedy) + after)
    assert call("run", "job.toml", "--virtual", "--out", "run.h5").exit_code == 0
    result = call("what-if", "run.h5", "--allocators", "uta")
    assert result.exit_code == 2
    assert "its method has no allocator to exchange" in result.stderr


@pytest.mark.parametrize("job", ["monte_carlo", *slow("asgd", "evolution", "heterogeneous_data")])
def test_rounds_of_other_methods_are_replayed_too(job: str) -> None:
    path = str(Path(mpi_ata.__file__).parent.parent / "jobs" / f"{job}.toml")
    result = call("run", path, "--virtual", "--set", "stop.rounds=100", "--out", "run.h5", "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = ask("--allocators", "own")["predicted"]
    ran = json.loads(result.stdout)
    # 100 rounds of varying length: their sum is known to about 3 %.
    assert row["clock"] == pytest.approx(ran["clock"], rel=0.1)
    assert row["tasks_used"] == ran["tasks_used"]
