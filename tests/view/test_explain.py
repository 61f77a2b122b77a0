"""What mpi-ata explain says about workers, and whether it is true."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.explain import planned, with_mean
from mpi_ata.view.learned import learned
from tests.cli.commands import JOB, call

ALLOCATORS = ["ata-empirical", "ata-auto", "uta", "gta", "ofta", "m-sync", "bandit", "proportional"]
KEYS = {"ata": "alpha = 5.0", "ata-empirical": "eta = 0.05", "bandit": "eta = 0.05"}


def run_job(allocator: str = "ata-empirical", rounds: int = 400) -> None:
    own = f'name = "{allocator}"\nbudget = 7\n{KEYS.get(allocator, "")}'
    Path("job.toml").write_text(JOB.replace('name = "ata-empirical"\nbudget = 7\neta = 1.0', own))
    options = ["--set", f"stop.rounds={rounds}", "--workers", "12"]
    result = call("run", "job.toml", "--virtual", "--out", "run.h5", *options)
    assert result.exit_code == 0, result.stderr


def explained(*options: str) -> dict[str, Any]:
    result = call("explain", "run.h5", "--json", *options)
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_allocator_can_be_explained(allocator: str) -> None:
    run_job(allocator)
    answer = explained()
    assert answer["allocator"] == allocator
    assert [row["worker"] for row in answer["workers"]] == list(range(12))
    assert sum(row["quota"] for row in answer["workers"]) >= 7
    assert sum(row["share"] for row in answer["workers"]) == pytest.approx(1)
    text = call("explain", "run.h5", "--worker", "3").stdout
    assert text.startswith(answer["rule"])
    assert "Worker 3 on virtual has finished " in text


@pytest.mark.parametrize("allocator", ["ata", "ata-empirical", "ata-auto", "ofta", "bandit"])
def test_a_worker_gets_a_task_below_the_mean_that_is_given_and_none_above_it(allocator: str) -> None:
    run_job(allocator)
    record = load_record(RunFile(Path("run.h5")))[0]
    known, rows = learned(record), explained()["workers"]
    assert known.allocator is not None
    assert any(row["quota"] == 0 for row in rows), "with 12 workers and 7 tasks somebody is idle"
    for worker, limit in [(row["worker"], row["mean_to_be_used"]) for row in rows if row["mean_to_be_used"]]:
        changed = [with_mean(known.allocator, worker, factor * limit) for factor in (0.999, 1.001)]
        assert [planned(each, known.available)[worker] > 0 for each in changed] == [True, False]


def test_an_idle_worker_is_told_what_it_would_need_and_when_it_was_tried_last() -> None:
    run_job()
    row = next(row for row in explained()["workers"] if row["quota"] == 0)
    text = call("explain", "run.h5", "--worker", str(row["worker"])).stdout
    assert "In the next round it gets none: one would take at least " in text
    assert f"It would get a task if its estimate were at most {row['mean_to_be_used']:.3g} s, " in text
    assert row["mean_to_be_used"] < row["estimate"]
    shown = json.loads(call("show", "run.h5", "--json").stdout)["workers_table"][row["worker"]]
    assert row["mean"] == shown["mean"], "one mean everywhere; what the allocator makes of it is its estimate"
    assert "It did its last task in round " in text
    result = call("explain", "run.h5", "--worker", "12")
    assert result.exit_code == 2
    assert result.stderr == "Error: --worker 12 must be from 0 to 11: this run has 12 workers\n"


def test_the_round_of_the_last_task_is_the_one_in_the_map() -> None:
    run_job(rounds=100)
    record = load_record(RunFile(Path("run.h5")))[0]
    for row in explained()["workers"]:
        before = record.task_map["tasks"][row["tried_by"] - 2][row["worker"]]
        by = record.task_map["tasks"][row["tried_by"] - 1][row["worker"]]
        assert before < by == row["tasks"]


def test_an_allocator_of_the_users_own_is_not_executed() -> None:
    run_job()
    Path("mine.py").write_text(
        "import pathlib\nfrom mpi_ata import UTA\nclass Mine(UTA):\n"
        "    def __init__(self, n, budget):\n"
        "        super().__init__(n, budget)\n        pathlib.Path('executed').touch()\n"
    )
    own = 'file = "mine.py"\nclass = "Mine"\nbudget = 7\n'
    Path("job.toml").write_text(JOB.replace('name = "ata-empirical"\nbudget = 7\neta = 1.0\n', own))
    assert call("run", "job.toml", "--virtual", "--out", "own.h5").exit_code == 0
    Path("executed").unlink()
    result = call("explain", "own.h5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("The run file alone does not say how tasks are divided.")
    assert not Path("executed").exists()
