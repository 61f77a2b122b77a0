"""Every method with every valid allocator on real ranks, all in one world to save time."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.trace import Trace
from mpi_ata.job import build_parts, load_job
from mpi_ata.script.run import run
from tests.job.test_job_methods import ASYNCHRONOUS, SENSIBLE, SURPLUS
from tests.mpi.starting import COMMAND, ROOT, finished, mpirun

JOB = f"""
[problem]
file = "{Path(__file__).with_name("counting.py")}"
class = "Counting"
[method]
name = "sgd"
step_size = 0.05
[allocator]
name = "uta"
budget = 5
[times]
law = "linear"
scale = 1.0
unit = 1e-3
report = "drawn"
[stop]
rounds = 6
[run]
workers = 3
seed = 11
"""
N, B, ROUNDS = 3, 5, 6
SUMMING = [chosen for chosen in SENSIBLE if chosen[0] != "map"]  # whose tasks are gradients
MEASURED = [("sgd", "uta"), ("sgd", "gta")]  # once more, with the times that tasks really take
SIZES = (1, 504, 505, 100_000)  # numbers in x: more than 504 do not fit with the header of a message
KEYS = {
    "malenia": ["S=4.0"],
    "ringmaster": ["delay=4", f"budget={B}"],
    "rescaled-asgd": [f"budget={B}"],
    "rennala-mvr": ["a=0.3"],
    "mindflayer": ["limit=1.1"],
    "ata": ["alpha=4.0"],
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    """Return the jobs, each a file and settings."""
    folder = tmp_path_factory.mktemp("methods")
    (folder / "job.toml").write_text(JOB)
    before, _, after = JOB.partition('[allocator]\nname = "uta"\nbudget = 5\n')
    (folder / "greedy.toml").write_text(before + after)
    jobs = []
    for number, (method, allocator) in enumerate([*SUMMING, *MEASURED]):
        settings = [f"method.name={method}", *(f"method.{key}" for key in KEYS.get(method, []))]
        if allocator:
            settings += [f"allocator.name={allocator}"]
            settings += [f"allocator.{key}" for key in KEYS.get(allocator, [])]
        if number >= len(SUMMING):
            settings += ["times.report=measured"]
        jobs.append((str(folder / ("job.toml" if allocator else "greedy.toml")), settings))
    learning = ["allocator.name=ata-empirical", "stop.rounds=3"]
    return jobs + [(str(folder / "job.toml"), [*learning, f"problem.dimension={size}"]) for size in SIZES]


@pytest.fixture(scope="module")
def stories(chosen: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """Return what the ranks printed, one entry per job and two more."""
    script = Path(__file__).with_name("methods_on_ranks.py")
    done = mpirun(N + 1, sys.executable, script, json.dumps(chosen), seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_of_them_ran(stories: list[dict[str, Any]]) -> None:
    assert len(stories) == len(SUMMING) + len(MEASURED) + len(SIZES) + 2


@pytest.mark.parametrize(
    "number",
    range(len(SUMMING) + len(MEASURED)),
    ids=["-".join(each) for each in SUMMING] + [f"{'-'.join(each)}-measured" for each in MEASURED],
)
def test_as_many_tasks_are_counted_for_each_worker_as_it_really_began(
    stories: list[dict[str, Any]], number: int
) -> None:
    story = stories[number]
    assert story["calls"] == [0, *story["started"]]
    assert sum(story["calls"]) == story["used"] + story["wasted"] + story["lost"]


def simulated(path: str, settings: list[str]) -> tuple[str, float]:
    """Return the final point of the same job on the virtual cluster, and its worker time."""
    job = load_job(Path(path), settings)
    problem, times, method = build_parts(job)
    assert times is not None
    cluster = VirtualCluster(problem, times, job.run.seed)
    trace = Trace()
    for _ in run(method, cluster, problem, job.stop, trace=trace):
        pass
    before = cluster.ledger.mark()
    cluster.close()
    trace.settle(cluster.ledger, before)
    return method.x.tobytes().hex(), trace.worker_time


@pytest.mark.parametrize("number", range(len(SUMMING)), ids=["-".join(each) for each in SUMMING])
def test_each_method_does_what_it_promises(
    chosen: list[tuple[str, list[str]]], stories: list[dict[str, Any]], number: int
) -> None:
    (method, allocator), story = SUMMING[number], stories[number]
    if method in ("sgd", "heterogeneous-data-sgd", "rennala-mvr") and allocator not in SURPLUS:
        x, worker_time = simulated(*chosen[number])
        assert story["x"] == x, "the same numbers as simulated, bit for bit"
        assert story["worker_time"] == pytest.approx(worker_time)
    if method in ("heterogeneous-data-sgd", "heterogeneous-data-asgd"):
        assert story["used"] == ROUNDS * (B + N)
    elif method in ("malenia", "ringleader"):
        assert story["used"] >= ROUNDS * {"malenia": 4, "ringleader": N}[method]
    else:
        assert story["used"] == ROUNDS * B
    assert story["lost"] == 0
    if method != "mindflayer":  # whether it stops a task depends on the times
        assert (story["wasted"] > 0) == (allocator in ("", *SURPLUS))
    most = {"asgd": B - 1, "heterogeneous-data-asgd": B + N - 1, "ringmaster": 3, "ringleader": 2 * N - 2}
    assert story["largest_delay"] <= (most | {"rescaled-asgd": ROUNDS * B}).get(method, 0)
    assert (story["largest_delay"] > 0) == (method in ASYNCHRONOUS)


@pytest.mark.parametrize("number", range(len(SIZES)), ids=map(str, SIZES))
def test_points_of_many_sizes_are_sent_unchanged(
    chosen: list[tuple[str, list[str]]], stories: list[dict[str, Any]], number: int
) -> None:
    place = len(SUMMING) + len(MEASURED) + number
    assert len(stories[place]["x"]) == SIZES[number] * 16, "two digits for each of eight bytes"
    assert stories[place]["x"] == simulated(*chosen[place])[0]


def test_tasks_are_stopped_at_their_limits(stories: list[dict[str, Any]]) -> None:
    limited = [story for (method, _), story in zip(SUMMING, stories, strict=False) if method == "mindflayer"]
    # A task of this law exceeds 1.1 times its mean with a probability of 0.3, and a run uses 30.
    assert sum(story["wasted"] for story in limited) > len(limited)


def test_no_task_is_delivered_twice(stories: list[dict[str, Any]]) -> None:
    tasks = [tuple(task) for task in stories[-2]["tasks"]]
    assert len(tasks) == 3 * 9 == len(set(tasks))
    assert {worker for _, worker, _ in tasks} <= {0, 1, 2}


def test_after_a_break_orders_in_flight_are_lost_and_accounts_continue(stories: list[dict[str, Any]]) -> None:
    story = stories[-1]
    assert story["lost"] == [[0] * N, [1] * N]
    assert (story["k"], story["s"]) == (6, 36)
    begin, middle, resumed, end = story["accounts"]
    assert begin == [0.0] * N
    assert middle == resumed
    assert sum(end) > sum(resumed) > 0


def test_each_rank_loads_its_own_data_only_and_the_numbers_are_those_of_the_simulation() -> None:
    path = str(ROOT / "jobs" / "heterogeneous_data.toml")
    chosen = [path, "--json", "--workers", "3", "--set", "stop.rounds=20", "--set", "times.report=drawn"]
    found = []
    for done in (mpirun(4, COMMAND, "run", *chosen), finished([str(COMMAND), "run", "--virtual", *chosen])):
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    real, virtual = found
    assert (real["loss"], real["tasks_used"]) == (virtual["loss"], virtual["tasks_used"])
