"""Jobs on real ranks: the same numbers, the same promises, and all ranks end whatever happens."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.starting import COMMAND, ROOT, finished, mpirun, ranks_of, started

JOB = """
[problem]
name = "quadratic"
[method]
name = "sgd"
step_size = 0.4
[allocator]
name = "ata-empirical"
budget = 7
[times]
law = "linear"
scale = 1.0
unit = 1e-4
report = "drawn"
[stop]
rounds = 40
[run]
workers = 3
seed = 11
"""

OWN = """
import os, time
import numpy as np

class Own:
    x0 = np.zeros(2)

    def __init__(self):
        self.calls = 0

    def gradient(self, x, task):
        self.calls += 1
        {body}
        return np.ones(2)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture
def own(job: Path) -> Callable[..., Path]:
    """Return a job whose tasks execute the body and take the time they take."""

    def written(body: str, allocator: str = 'name = "ata-empirical"\nbudget = 4') -> Path:
        (job.parent / "own.py").write_text(OWN.format(body=body))
        text = JOB.replace('name = "quadratic"', 'file = "own.py"\nclass = "Own"')
        text = text.replace('name = "ata-empirical"\nbudget = 7', allocator)
        before, _, after = text.partition("[times]")
        job.write_text(before + after[after.index("[stop]") :])
        return job

    return written


def figures(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


TIMED = pytest.mark.flaky(reruns=2)  # a stall of the machine may fail one attempt, a bug fails all
SAME = ("rounds", "loss", "gap", "worker_time", "tasks_started", "tasks_used", "workers", "finished")


def compared(done: Any) -> dict[str, dict[str, Any]]:
    """Return what a comparison found that is the same wherever it runs, by allocator."""
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    return {row["allocator"]: {key: row[key] for key in SAME} for row in rows}


@pytest.mark.parametrize("workers", [1, 5])
def test_drawn_times_give_the_same_numbers_as_the_virtual_run(job: Path, workers: int) -> None:
    allocators = ["ata-empirical", "uta", "ofta", "gta"]
    chosen = [str(job), "--json", "--allocators", ",".join(allocators), "--workers", str(workers)]
    virtual = compared(finished([str(COMMAND), "compare", "--virtual", *chosen]))
    real = compared(mpirun(workers + 1, COMMAND, "compare", *chosen))
    assert list(real) == allocators
    assert real.pop("gta")["rounds"] == virtual.pop("gta")["rounds"] == 40  # who is first differs
    assert real == virtual


SHARES = ("setup_time", "clock", "decision_time", "update_time", "evaluation_time", "saving_time")


def test_the_command_starts_ranks_and_elapsed_begins_with_it_in_shares_that_add_up(
    own: Callable[..., Path],
) -> None:
    job, began = own("pass"), time.monotonic()
    file = job.parent / "own.py"
    file.write_text(f"import time\ntime.sleep(0.7)\n{file.read_text()}")
    command = [str(COMMAND), "run", str(job), "--json", "--workers", "2"]
    found = figures(finished(command))
    assert (found["workers"], found["rounds"], found["finished"]) == (2, 40, True)
    # The starter and rank 0 import the problem one after the other.
    assert 1.4 <= found["setup_time"] < found["elapsed"] <= time.monotonic() - began
    assert 0 < sum(found[name] for name in SHARES) <= found["elapsed"] + 0.01
    assert found["billed"] == pytest.approx(3 * found["elapsed"])


def test_compare_reports_only_once_that_the_number_of_workers_differs(job: Path) -> None:
    done = mpirun(3, COMMAND, "compare", job, "--allocators", "uta,ata-empirical")
    note = "Note: workers = 3 was requested, but this MPI world has 2 and the manager: using those"
    assert done.stderr.count(note) == 1


@TIMED
def test_a_slow_first_call_is_not_observed(own: Callable[..., Path]) -> None:
    # Worker 0 is fast but for its first call.  All 160 tasks on the slow worker would take 1.6 s; were the
    # first call timed, it alone would take 3 s, and worker 0 would get no tasks.
    body = "time.sleep(3.0 if task.worker == 0 and self.calls == 1 else [0.001, 0.01][task.worker])"
    allocator = 'name = "ata-empirical"\nbudget = 4\neta = 0.05'
    real = figures(mpirun(3, COMMAND, "run", own(body, allocator=allocator), "--json"))
    assert real["worker_time"] < 2.5


@TIMED
def test_a_long_task_that_polls_is_stopped_before_its_end(own: Callable[..., Path]) -> None:
    body = """end = time.time() + (20 if task.worker == 1 and task.round else 0.001)
        while time.time() < end and not task.stopped(): time.sleep(0.001)"""
    began = time.monotonic()
    real = figures(mpirun(3, COMMAND, "run", own(body, allocator='name = "gta"\nbudget = 4'), "--json"))
    assert time.monotonic() - began < 15
    assert real["tasks_wasted"] >= 10  # an order that waits for its predecessor to stop never begins


@pytest.mark.parametrize("place", ["task.round == 3", "task.round == 0"])
def test_an_exception_in_a_task_ends_the_job_with_worker_and_traceback(
    own: Callable[..., Path], place: str
) -> None:
    path = own(f"assert not (task.worker == 1 and {place}), 'of all things'")
    done = mpirun(3, COMMAND, "run", path, seconds=60)
    assert done.returncode != 0
    assert "worker 1 (host " in done.stderr
    assert "AssertionError: of all things" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert 'own.py", line' in done.stderr


@pytest.mark.parametrize("command", [["run"], ["compare", "--allocators", "uta,gta"]], ids=["run", "compare"])
def test_a_run_or_comparison_that_diverges_ends_on_all_ranks(job: Path, command: list[str]) -> None:
    done = finished([str(COMMAND), *command, str(job), "--set", "method.step_size=1e200"], seconds=60)
    assert done.returncode == 1
    assert done.stderr.count("try a smaller step_size") == 1
    assert "Warning" not in done.stderr
    assert ranks_of(str(job)) == []


@pytest.mark.parametrize("rank", [0, 2])
def test_a_file_missing_on_one_rank_ends_all_of_them(own: Callable[..., Path], rank: int) -> None:
    path = own("pass")
    source = path.with_name("own.py")
    lacking = f"from mpi_ata import launch\n        if launch.rank() == {rank}: open('/no/such/data')"
    source.write_text(source.read_text().replace("self.calls = 0", lacking))
    done = mpirun(4, COMMAND, "run", path, seconds=60)
    assert done.returncode != 0
    assert done.stderr.count("No such file or directory: '/no/such/data'") == 1
    assert "Traceback" not in done.stderr
    assert ("rank 2: " in done.stderr) == (rank == 2)


def test_a_file_in_the_folder_shadows_no_module(job: Path) -> None:
    (job.parent / "secrets.py").write_text("raise SystemExit('hidden')")
    with started([str(COMMAND), "run", job.name, "--json"], job.parent) as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["finished"], err


def test_simulation_is_for_one_process(job: Path) -> None:
    done = mpirun(2, COMMAND, "run", job, "--virtual", seconds=60)
    assert done.returncode != 0
    assert "leave out mpirun" in done.stderr


def test_ranks_with_other_files_are_rejected() -> None:
    done = mpirun(3, sys.executable, Path(__file__).with_name("other_files.py"), seconds=60)
    assert done.returncode != 0
    assert "rank 2 on " in done.stderr
    assert "use the same on all nodes" in done.stderr


@TIMED
@pytest.mark.slow
def test_the_emulated_job_is_what_simulation_predicts() -> None:
    # Ratios to greedy allocation.  Tasks of 29 ms and more, so that a shared machine, which takes a core
    # away for some milliseconds now and then, does not decide the outcome.
    chosen = ["compare", str(ROOT / "jobs" / "emulated.toml"), "--json", "--allocators", "ata-empirical,gta"]
    chosen += ["--set", "stop.rounds=40", "--set", "times.unit=1e-3"]
    virtual, real = ratios([*chosen, "--virtual"]), ratios(chosen)
    assert real == pytest.approx(virtual, rel=0.1), (virtual, real)


def ratios(arguments: list[str]) -> list[float]:
    done = finished([str(COMMAND), *arguments], seconds=120)
    assert done.returncode == 0, done.stderr
    ata, gta = json.loads(done.stdout.splitlines()[-1])
    return [ata["clock"] / gta["clock"], gta["worker_time"] / ata["worker_time"]]


CHANGES = "times.changes=[{round=11, workers=[0], factor=6.0}, {round=25, workers=0.5, factor=0.5}]"


def test_speeds_change_in_mid_run_as_they_do_in_the_virtual_run(job: Path) -> None:
    plain = [str(job), "--json", "--allocators", "ata-empirical,uta"]
    changed = [*plain, "--set", CHANGES]
    before, virtual = (
        compared(finished([str(COMMAND), "compare", "--virtual", *o])) for o in (plain, changed)
    )
    real = compared(mpirun(4, COMMAND, "compare", *changed))
    assert real == virtual
    assert all(real[name]["worker_time"] != before[name]["worker_time"] for name in real)
