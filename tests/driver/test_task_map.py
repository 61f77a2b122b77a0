"""The map of tasks in a run file: who did how many tasks by which round."""

from pathlib import Path

import numpy as np

from mpi_ata.driver.recorder import COLUMNS, ROWS_TASK_MAP, TaskMap
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.cli.commands import JOB, call


def recorded(path: str) -> Record:
    return load_record(RunFile(Path(path)))[0]


def run_job(*options: str) -> Record:
    Path("job.toml").write_text(JOB)
    assert call("run", "job.toml", "--virtual", "--out", "run.h5", *options).exit_code == 0
    return recorded("run.h5")


def test_every_round_of_a_short_run_is_in_the_map_and_adds_the_budget() -> None:
    found = run_job().task_map
    assert found["round"].tolist() == list(range(1, 51))
    assert found["tasks"].sum(axis=1).tolist() == [7 * k for k in range(1, 51)]
    assert (np.diff(found["tasks"], axis=0) >= 0).all()
    assert (np.diff(found["clock"]) > 0).all()


def test_the_map_of_a_long_run_is_bounded_and_evenly_spaced() -> None:
    task_map = TaskMap(3)
    for round in range(1, 10_000):
        if task_map.due(round):
            task_map.add(round, float(round), np.full(3, round))
    found = task_map.state()
    assert ROWS_TASK_MAP / 2 - 1 <= len(found["round"]) <= ROWS_TASK_MAP
    assert len(set(np.diff(found["round"]).tolist())) == 1
    assert found["round"][-1] > 9_800


def test_many_workers_are_added_up_in_groups_that_lose_no_task() -> None:
    n = 5 * COLUMNS + 3
    task_map = TaskMap(n)
    task_map.add(1, 1.0, np.arange(n))
    tasks = task_map.state()["tasks"]
    assert tasks.shape[1] <= COLUMNS
    assert tasks.sum() == np.arange(n).sum()


def test_a_resumed_run_continues_its_map_as_if_it_had_not_been_interrupted() -> None:
    run_job("--set", "stop.rounds=20")
    resumed = run_job("--resume", "--set", "stop.rounds=300").task_map
    assert call("run", "job.toml", "--virtual", "--out", "2.h5", "--set", "stop.rounds=300").exit_code == 0
    whole = recorded("2.h5").task_map
    assert all(np.array_equal(resumed[name], whole[name]) for name in ("round", "tasks"))


def test_a_run_resumed_on_other_workers_begins_a_new_map() -> None:
    run_job("--set", "stop.rounds=20")
    resumed = run_job("--resume", "--set", "stop.rounds=30", "--set", "run.workers=3").task_map
    assert resumed["round"].tolist() == list(range(21, 31))
