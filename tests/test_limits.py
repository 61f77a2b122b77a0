"""What no machine could do is rejected in one sentence before it starts."""

from pathlib import Path

import numpy as np
import pytest

from mpi_ata.errors import RunError, UsageError, in_users_code
from mpi_ata.job import build_parts, load_job
from mpi_ata.job.build import check_simulation
from mpi_ata.limits import MAX_TASKS, check_memory, check_tasks, machine_memory
from tests.cli.commands import call
from tests.faults.scene import METHODS, written

HUGE = 10**18


def test_as_much_as_there_is_passes_and_more_does_not() -> None:
    there = machine_memory()
    assert there > 100e6
    check_memory("this", there)
    with pytest.raises(UsageError, match=r"^this needs at least [\d,.]+ GB of memory, but this machine has"):
        check_memory("this", there + 1)
    check_tasks("budget", MAX_TASKS)
    with pytest.raises(UsageError, match=r"^budget=1000000001 must be at most 1,000,000,000 tasks per round"):
        check_tasks("budget", MAX_TASKS + 1)


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("sgd ofta", f"allocator.budget={HUGE}", f"[allocator] budget={HUGE} must be at most 1,000"),
        ("ringmaster", f"method.budget={HUGE}", f"[method] budget={HUGE} must be at most 1,000"),
        ("malenia", "method.S=1e18", "[method] S=1e+18 must be at most 1,000,000,000 tasks per round"),
        ("sgd gta", "run.workers=1000000000000", "workers=1000000000000 needs at least 160,000.0 GB"),
        ("sgd gta", "problem.dimension=100000000000000", "[problem] Quadratic needs more memory than there"),
        ("sgd gta", "run.seed=0x1ffffffffffffffffffff", "seed in [run] must be a number of at most 64 bits"),
    ],
)
def test_a_job_that_cannot_be_done_exits_with_2_and_one_sentence(
    tmp_path: Path, method: str, setting: str, message: str
) -> None:
    job = written(tmp_path / "job.toml", method)
    result = call("run", str(job), "--virtual", "--set", setting)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {job}: {message}")
    assert result.stderr.count("\n") == 1
    assert not list(Path().glob("runs/*.h5")), "nothing was started"


def test_a_users_own_allocator_cannot_ask_for_more_tasks_either(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", "sgd uta")
    source = "from mpi_ata import UTA\nclass Greedy(UTA):\n    def __init__(self, n, budget):\n"
    body = f"        super().__init__(n, budget)\n        self.budget = {HUGE}\n"
    (tmp_path / "greedy.py").write_text(source + body)
    with pytest.raises(UsageError, match=rf"\[allocator\] budget={HUGE} must be at most"):
        build_parts(load_job(job, ["allocator.file=greedy.py", "allocator.class=Greedy"]))


def test_more_ranks_than_this_machine_can_hold_are_not_started(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml")
    result = call("run", str(job), "--workers", "100000000")
    assert result.exit_code == 2
    assert "100,000,001 ranks would need about 6,250,000 GB of memory" in result.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_usual_round_is_simulated(tmp_path: Path, method: str) -> None:
    parts = build_parts(load_job(written(tmp_path / "job.toml", method)))
    check_simulation(parts.method, 5)


def test_a_simulated_round_beyond_the_memory_is_rejected(tmp_path: Path) -> None:
    parts = build_parts(load_job(written(tmp_path / "job.toml", "sgd gta", workers=1)))
    assert parts.method.allocator is not None
    parts.method.allocator.budget = min(MAX_TASKS, machine_memory() // 100)
    with pytest.raises(UsageError, match=r"a simulated round of [\d,]+ tasks needs at least"):
        check_simulation(parts.method, 1)
    parts = build_parts(load_job(written(tmp_path / "job.toml", "asgd ata-empirical")))
    parts.method.x = np.broadcast_to(1.0, machine_memory() // 40)  # takes no memory itself
    with pytest.raises(UsageError, match="numbers for each of 5 workers needs at least"):
        check_simulation(parts.method, 5)


def test_a_task_that_runs_out_of_memory_is_reported_without_a_traceback() -> None:
    error = in_users_code("a task of worker 3 failed in round 2", MemoryError("Unable to allocate 7 TiB"))
    assert isinstance(error, RunError)
    sentence = "it needs more memory than there is (Unable to allocate 7 TiB)"
    assert str(error) == f"a task of worker 3 failed in round 2: {sentence}"
