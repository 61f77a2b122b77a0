"""Several jobs on the same real ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.driver.plan import resolve
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.driver.driven import driven
from tests.faults.checks import outlives_deaths
from tests.faults.scene import own_problem, written
from tests.mpi.starting import COMMAND, finished, rank_pids, ranks_of, started

DRAWN = 'unit = 3e-5\nreport = "drawn"'
OUT = Path("runs")
EVERY = "checkpoint_rounds = 5"
SLOW = pytest.mark.slow
LONG = 10**6  # rounds: more than any test waits for


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job_of(name: str = "job", rounds: int = 60, body: str = "", times: str = DRAWN) -> Path:
    """A job with drawn times of some milliseconds; with a problem of its own if `body` is given."""
    problem = {"problem": own_problem(Path.cwd(), body)} if body else {}
    path = Path(f"{name}.toml").absolute()
    return written(path, "sgd uta", rounds, workers=3, run=EVERY, times=times, **problem)


def command(*words: str | Path) -> list[str]:
    return [str(COMMAND), "run", *map(str, words), "--out", str(OUT), "--json"]


def rows(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    """Return what was printed of the jobs, by name."""
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return sorted(found, key=lambda row: str(row["name"]))


def saved_rounds(name: str) -> int:
    file = RunFile(OUT / f"{name}.h5")
    return int(load_record(file)[0].method["k"]) if file.exists() else -1


def wait_for(condition: Any, process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_one_job_with_fixed_quotas_is_the_simulated_run_bit_for_bit() -> None:
    job = job_of()
    done = finished(command(job, "--array", "run.seed=5"))
    assert done.returncode == 0, done.stderr
    x = load_record(RunFile(OUT / "job-seed=5.h5"))[0].method["x"]
    assert np.array_equal(x, driven(job).x)


def test_jobs_share_ranks_and_each_task_is_used() -> None:
    done = finished(command(job_of(), "--array", "run.seed=1,2,3"))
    assert done.returncode == 0, done.stderr
    for row in rows(done):
        assert (row["state"], row["rounds"], row["tasks_used"]) == ("finished", 60, 60 * 7)
        assert row["tasks_wasted"] == row["tasks_lost"] == 0
    assert not ranks_of(str(Path("job.toml").absolute()))


def test_a_job_that_fails_on_a_worker_leaves_the_others_alone() -> None:
    bad = job_of("bad", body="if task.round == 5: raise ValueError('no')")
    done = finished(command(job_of("good"), bad))
    assert done.returncode == 1
    failed, good = rows(done)
    assert (good["state"], good["rounds"]) == ("finished", 60)
    assert (failed["state"], failed["rounds"]) == ("failed", 4)
    assert "ValueError: no" in failed["error"]


@SLOW
def test_a_job_whose_file_cannot_be_set_up_on_workers_leaves_the_others_alone() -> None:
    bad = job_of("bad", body="raise OSError('no data here')")
    done = finished(command(job_of("good"), bad))
    assert done.returncode == 1
    assert [row["state"] for row in rows(done)] == ["failed", "finished"]


@SLOW
def test_different_problems_are_evaluated_by_the_workers_in_their_queues() -> None:
    parts = "\n".join(
        [
            "import time",
            "import numpy as np",
            "import mpi_ata",
            "class InParts(mpi_ata.Quadratic):",
            "    evaluation_parts = 6",
            "    def setup(self, worker, n): self.worker, self.slow = worker, 1.5",
            "    def evaluate_part(self, x, part):",
            "        self.slow = time.sleep(self.slow) or 0.0  # the first time",
            "        return [float(x.sum()), float(self.worker is not None)]",
            "    def combine_parts(self, x, numbers):",
            "        table = np.reshape(numbers, (6, 2))",
            "        return {'same': float((table[:, 0] == x.sum()).all()), 'workers': table[:, 1].sum()}",
        ]
    )
    Path("parts.py").write_text(parts)
    table = 'file = "parts.py"\nclass = "InParts"\ndimension = 900'  # larger than a header
    large = written(
        Path("large.toml").absolute(), "sgd uta", 30, workers=3, run=EVERY, times=DRAWN, problem=table
    )
    done = finished(command(job_of("small"), large))
    assert done.returncode == 0, done.stderr
    assert "overdue" not in done.stderr  # who evaluates for one job is not late with the other's orders
    evaluation = rows(done)[0]["evaluation"]
    assert evaluation == {"same": 1.0, "workers": 6.0}


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=SLOW), signal.SIGKILL])
def test_jobs_that_are_interrupted_lose_at_most_one_interval_and_are_resumed(number: signal.Signals) -> None:
    job = job_of(rounds=LONG)
    names = ["job-seed=1", "job-seed=2"]
    with started(command(job, "--array", "run.seed=1,2")) as process:
        wait_for(lambda: min(map(saved_rounds, names)) >= 10, process)
        if number == signal.SIGKILL:
            for pid in [process.pid, *ranks_of(str(job))]:
                os.kill(pid, number)
        else:
            process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (85 if number == signal.SIGTERM else -9)
    before = list(map(saved_rounds, names))
    assert min(before) >= 10
    limit = max(before) + 20
    done = finished(
        command(job, "--array", "run.seed=1,2", "--resume", "--set", f"stop.rounds={limit}"), seconds=90
    )
    assert done.returncode == 0, done.stderr
    assert [row["rounds"] for row in rows(done)] == [limit, limit]
    again = finished(command(job, "--array", "run.seed=1,2", "--resume", "--set", f"stop.rounds={limit}"))
    assert [row["rounds"] for row in rows(again)] == [limit, limit]


@SLOW
@pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one dies")
def test_a_dead_worker_is_lost_for_each_job_and_all_are_finished() -> None:
    job = job_of(rounds=300)
    with started(command(job, "--array", "run.seed=1,2")) as process:
        wait_for(lambda: min(saved_rounds("job-seed=1"), saved_rounds("job-seed=2")) >= 10, process)
        os.kill(rank_pids(str(job))[2], signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert [row["rounds"] for row in found] == [300, 300]
    assert sum(row["tasks_lost"] for row in found) <= 1  # a worker is at one task at a time
    for row in found:
        used = row["tasks_used"]
        assert used == 300 * 7
        assert row["tasks_started"] == used + row["tasks_wasted"] + row["tasks_lost"]


@pytest.mark.every_mpi
@pytest.mark.slow
@pytest.mark.parametrize("dimension", [10, pytest.param(1000, marks=SLOW)])  # in a header, and behind it
@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=SLOW)])
def test_idle_workers_do_spare_tasks_and_rounds_use_their_budget(dimension: int, dies: bool) -> None:
    if dies and not outlives_deaths():
        pytest.skip("this MPI ends all ranks when one dies")
    kill = "if task.worker == 2 and task.round == 20: os.kill(os.getpid(), signal.SIGKILL)" if dies else ""
    job = job_of(body=f"{kill}\nreturn x * 0 + 1", times="unit = 1e-4")
    source = Path("own.py")
    source.write_text(source.read_text().replace("(10,", f"({dimension},"))
    settings = [
        "allocator.name=ata-auto",
        "allocator.spares=idle",
        "method.update=plain",
        "method.step_size=0.5",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    done = finished(command(job, "--array", "run.seed=1,2", *words), seconds=90)
    assert done.returncode == 0, done.stderr
    found = rows(done)
    for row in found:
        assert row["tasks_used"] == 60 * 7
        assert row["tasks_started"] == 60 * 7 + row["tasks_wasted"] + row["tasks_lost"]
        x = load_record(RunFile(Path(row["out"])))[0].method["x"]
        assert x == pytest.approx(np.asarray(resolve(job).parts().problem.x0) - 30.0)
    assert sum(row["tasks_wasted"] for row in found) > 0
    assert sum(row["tasks_lost"] for row in found) <= dies


@SLOW
def test_orders_behind_a_worker_that_hangs_are_done_by_others() -> None:
    body = "import time\nif task.worker == 1 and task.round == 10: time.sleep(3600)"
    hanging, good = job_of("hanging", body=body), job_of("good", rounds=200)
    done = finished(command(hanging, good), seconds=90)
    assert [(row["state"], row["rounds"]) for row in rows(done)] == [("finished", 200), ("finished", 60)]


def test_a_script_runs_jobs_on_its_own_ranks() -> None:
    Path("sweep.py").write_text(
        "\n".join(
            [
                "import mpi_ata",
                "jobs = [",
                "    dict(name=f'step-{step}', problem=mpi_ata.Quadratic(20), budget=6, rounds=30,",
                "         update=mpi_ata.Plain(step), times=mpi_ata.Sqrt(3, scale=0.001))",
                "    for step in (0.1, 0.4)",
                "]",
                "results = mpi_ata.run_jobs(jobs, workers=3, out='runs')",
                "print([(r.summary['name'], r.summary['rounds'], r.path.name) for r in results or ()])",
            ]
        )
    )
    done = finished([sys.executable, "sweep.py"])
    assert done.returncode == 0, done.stderr
    assert "[('step-0.1', 30, 'step-0.1.h5'), ('step-0.4', 30, 'step-0.4.h5')]" in done.stdout
