"""Runs on real ranks that are asked to end, hang, fail or are killed, and are resumed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.launch import find_mpirun
from mpi_ata.launch.signals import signal_word
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.faults.checks import outlives_deaths
from tests.faults.scene import own_problem, record_of, written
from tests.mpi.starting import COMMAND, finished, rank_pids, ranks_of, started

SLOW = pytest.mark.slow
TIMED = pytest.mark.flaky(reruns=2)  # a stall of the machine may fail one attempt, a bug fails all
OUT = Path("run.h5")
DRAWN = 'unit = 3e-5\nreport = "drawn"'
LONG = 10**6  # rounds: more than any test waits for
EVERY = "checkpoint_rounds = 5"
COUNTED = "with open(f'calls-{task.worker}', 'ab') as file: file.write(b'.' * (task.round > 0))"


def job_of(
    method: str = "sgd ata-empirical", rounds: int = LONG, run: str = EVERY, body: str = "", workers: int = 3
) -> Path:
    """A job with drawn times of some milliseconds; with a problem of its own if `body` is given."""
    problem = {"problem": own_problem(Path.cwd(), body)} if body else {}
    return written(
        Path("job.toml").absolute(), method, rounds, workers=workers, run=run, times=DRAWN, **problem
    )


def running(job: Path, *arguments: str, launcher: str = "own") -> list[str]:
    command = [str(COMMAND), "run", str(job), "--out", str(OUT), *arguments]
    return command if launcher == "own" else [find_mpirun(), "-n", "4", *command]


def saved_rounds() -> int:
    """Return how many rounds the file has while a run is under way."""
    file = RunFile(OUT)
    return int(load_record(file)[0].method["k"]) if file.exists() else -1


def wait_for(condition: Any, process: "subprocess.Popen[str] | None" = None, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        if process is not None:
            assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@contextmanager
def under_way(command: list[str], rounds: int = 2) -> "Iterator[subprocess.Popen[str]]":
    """Start a run and wait until it has saved a few rounds."""
    with started(command) as process:
        wait_for(lambda: saved_rounds() >= rounds, process)
        yield process


def ended(process: "subprocess.Popen[str]", job: Path) -> tuple[str, str]:
    """Return what a run printed, once none of its ranks is left."""
    said = process.communicate(timeout=60)
    wait_for(lambda: not ranks_of(str(job)), seconds=20)
    return said


def interrupted(job: Path, number: signal.Signals, *arguments: str) -> Record:
    """Ask a run to end and return what it saved."""
    with under_way(running(job, *arguments)) as process:
        process.send_signal(number)
        out, err = ended(process, job)
    assert process.returncode == 85, err
    assert f"ended          early, by {signal_word(number.name)}\n" in out
    assert f"saved          {OUT}; resume it with --resume" in out
    return record_of(OUT)


def resumed(job: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Resume a run and wait for its end."""
    done = finished(running(job, "--resume", "--json", *arguments))
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert figures["finished"]
    return figures, done.stderr


@TIMED
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=SLOW), pytest.param(signal.SIGINT, marks=SLOW)],
    ids=str,
)
def test_fixed_quotas_with_drawn_times_give_the_same_result_bit_for_bit(number: signal.Signals) -> None:
    # Seed and number of workers are given only once.
    job = job_of()
    chosen = ["--set", "run.seed=8", "--workers", "4"]
    before = interrupted(job, number, *chosen)
    assert before.events[-1].text == f"early, by {signal_word(number.name)}"  # whatever is passed on
    more = ["--set", f"stop.rounds={before.summary['rounds'] + 30}"]
    figures, _ = resumed(job, *more)
    assert figures["workers"] == 4
    virtual = ["run", str(job), "--virtual", "--out", "virtual.h5", *chosen, *more]
    assert finished([str(COMMAND), *virtual]).returncode == 0
    ours, theirs = record_of(OUT), record_of(Path("virtual.h5"))
    for state in ("method", "allocator"):
        assert set(getattr(ours, state)) == set(getattr(theirs, state))
        for name, array in getattr(ours, state).items():
            np.testing.assert_array_equal(array, getattr(theirs, state)[name])
    for name in ("tasks_used", "tasks_started", "worker_time", "loss"):
        assert ours.summary[name] == theirs.summary[name]
    np.testing.assert_array_equal(ours.trace["loss"], theirs.trace["loss"])


@pytest.mark.every_mpi
@pytest.mark.slow
@TIMED
@pytest.mark.parametrize(
    ("method", "budget"),
    [
        ("sgd gta", 7),
        pytest.param("ringmaster", 6, marks=SLOW),
        pytest.param("asgd ata-empirical", 7, marks=SLOW),
    ],
)
def test_where_arrivals_decide_every_task_is_accounted_for(method: str, budget: int) -> None:
    job = job_of(method, body=COUNTED)
    before = interrupted(job, signal.SIGTERM)
    rounds = before.summary["rounds"] + 30
    figures, err = resumed(job, "--set", f"stop.rounds={rounds}")
    assert f"resumed at round {before.summary['rounds']:,} on 3 workers" in err
    assert figures["rounds"] == rounds
    assert figures["tasks_used"] == rounds * budget
    calls = sum(path.stat().st_size for path in Path.cwd().glob("calls-*"))  # one byte each
    uncertain = 3 if method == "sgd gta" else 0  # one per worker was stopped and not reported
    assert 0 <= calls - figures["tasks_started"] <= uncertain
    lost = figures["tasks_lost"]  # what each worker had under way
    assert (lost == 3) if method == "ringmaster" else (0 <= lost <= 3)
    assert figures["worker_time"] > before.summary["worker_time"]
    assert figures["billed"] == pytest.approx(4 * figures["elapsed"], rel=0.01)
    spent = record_of(OUT).workers
    told = float(spent["seconds"].sum() + spent["unfinished"].sum())
    assert told == pytest.approx(figures["worker_time"], rel=0.1)


@TIMED
@SLOW
@pytest.mark.parametrize(("before", "after"), [(4, 3), (3, 4)])
def test_with_other_workers_those_that_stayed_are_recognised(before: int, after: int) -> None:
    job = job_of(workers=before)
    earlier = interrupted(job, signal.SIGUSR1)
    rounds = earlier.summary["rounds"] + 30
    figures, err = resumed(job, "--workers", str(after), "--set", f"stop.rounds={rounds}")
    assert f"on {after} workers" in err
    assert f"Note: changed run.workers: {before} -> {after}" in err
    assert f"3 of {after} workers recognised" in err
    assert (figures["workers"], figures["tasks_used"]) == (after, rounds * 7)
    assert figures["tasks_started"] == figures["tasks_used"] + figures["tasks_lost"]
    later = record_of(OUT)
    assert (later.workers["tasks"][:3] >= earlier.workers["tasks"][:3]).all()
    assert later.workers["tasks"].shape == (after,)


@pytest.mark.every_mpi
@pytest.mark.slow
@TIMED
@pytest.mark.parametrize(
    "number",
    [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=SLOW), pytest.param(signal.SIGINT, marks=SLOW)],
    ids=str,
)
def test_under_mpirun_nothing_is_lost_but_the_last_interval(number: signal.Signals) -> None:
    # Open MPI's kills its ranks soon after SIGTERM and SIGINT, so it may end before the manager has.
    job = job_of()
    with under_way(running(job, launcher="mpirun")) as process:
        before = saved_rounds()
        process.send_signal(number)
        ended(process, job)
    assert process.returncode == 85 or (process.returncode != 0 and number != signal.SIGUSR1)
    assert load_record(RunFile(OUT))[0].summary["rounds"] >= before
    resumed(job, "--set", f"stop.rounds={saved_rounds() + 5}")


@TIMED
@pytest.mark.parametrize("launcher", ["own", pytest.param("mpirun", marks=SLOW)])
def test_a_second_resume_is_rejected_and_the_first_continues(launcher: str) -> None:
    job = job_of()
    with under_way(running(job, "--resume", launcher=launcher)) as process:
        manager, before = rank_pids(str(job))[0], saved_rounds()
        second = finished(running(job, "--resume", launcher=launcher))
        assert second.returncode != 0
        assert f"Error: run.h5: process {manager} on " in second.stderr
        assert " is running it; stop it or wait for its end" in second.stderr
        wait_for(lambda: saved_rounds() > before + 20, process)
        process.send_signal(signal.SIGUSR1)
        _, err = ended(process, job)
    assert process.returncode == 85, err
    assert not list(Path.cwd().glob("run.h5.lock*"))


HANGING = """
if task.round == 9 and task.worker == 1 and not Path("mended").exists():
    Path("hanging").touch()
    time.sleep(600)
"""


@TIMED
@pytest.mark.every_mpi
@pytest.mark.slow
def test_a_round_that_hangs_is_abandoned_after_the_grace_period() -> None:
    job = job_of("sgd uta", rounds=20, run="checkpoint_rounds = 1\ngrace = 1.0", body=HANGING)
    with started(running(job)) as process:
        wait_for(Path("hanging").exists, process)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, err = ended(process, job)
        assert 1.0 <= time.monotonic() - began < 20
    assert process.returncode in (85, 9), err  # MPICH's mpirun may report instead that it killed a rank
    assert "ended          early, by SIGTERM\nrounds         8\n" in out
    assert saved_rounds() == 8
    Path("mended").touch()
    assert resumed(job)[0]["tasks_used"] == 20 * 7


@TIMED
def test_a_task_that_fails_ends_the_run_which_saves_its_completed_rounds_and_can_be_resumed() -> None:
    body = "if task.round == 9 and not Path('mended').exists(): raise ValueError('broken')"
    job = job_of("sgd uta", rounds=20, run="checkpoint_rounds = 100", body=body)
    with started(running(job)) as process:
        _, err = ended(process, job)
    assert process.returncode == 1
    assert err.count("ValueError: broken") == 1
    record = record_of(OUT)
    assert int(record.method["k"]) == record.summary["rounds"] == 8
    assert record.failure.endswith("ValueError: broken")
    Path("mended").touch()
    summary = resumed(job)[0]
    assert (summary["rounds"], summary["tasks_used"]) == (20, 20 * 7)
    parts = [summary[f"tasks_{name}"] for name in ("used", "wasted", "lost")]
    assert summary["tasks_started"] == sum(parts)


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("BaseException('odd')", "BaseException: odd"),
        ("ValueError(os.fsdecode(b'a\\xff'))", r"ValueError: a\udcff"),
    ],
)
def test_whatever_a_task_raises_ends_the_run_with_its_text(raised: str, shown: str) -> None:
    job = job_of("sgd uta", rounds=20, body=f"if task.round == 9 and task.worker == 1: raise {raised}")
    with started(running(job)) as process:
        _, err = ended(process, job)
    assert process.returncode == 1
    assert f"{shown}\nrun.h5 holds the run up to round 8" in err
    assert record_of(OUT).failure.endswith(shown)


LOSS = """
    def loss(self, x):
        with open("evaluated", "ab") as file:
            file.write(b".")
        return super().loss(x)
"""


def victim(whom: str, process: "subprocess.Popen[str]", job: Path) -> int:
    """Return the process of a run that is to be killed."""
    return process.pid if whom == "launcher" else rank_pids(str(job))[0 if whom == "manager" else 2]


@TIMED
@SLOW
@pytest.mark.parametrize("launcher", ["own", "mpirun"])
@pytest.mark.parametrize("whom", ["manager", "worker", "launcher"])
def test_whoever_is_killed_the_file_is_intact_and_the_run_can_be_resumed(whom: str, launcher: str) -> None:
    if (whom, launcher) == ("worker", "own") and outlives_deaths():
        pytest.skip("the run continues without that worker: see test_faults_on_ranks.py")
    job = job_of(body="pass")
    own = job.with_name("own.py")
    own.write_text(own.read_text() + LOSS)
    job.write_text(job.read_text().replace("evaluate_every = 3", "evaluate_every = 1"))
    with under_way(running(job, launcher=launcher), rounds=10) as process:
        os.kill(victim(whom, process, job), signal.SIGKILL)
        ended(process, job)
    assert process.returncode not in (0, 85)
    done = len(Path("evaluated").read_bytes()) - 1  # once before the first round
    record, _ = load_record(RunFile(OUT))
    assert done - 5 <= int(record.method["k"]) <= done
    figures, _ = resumed(job, "--set", f"stop.rounds={done + 5}")
    assert figures["tasks_used"] == 7 * (done + 5)
    assert [path.name for path in Path().glob("run.h5*")] == ["run.h5"]


SLOW_DECISION = """
from mpi_ata import UTA
class Slow(UTA):
    def allocate(self, available):
        while self.k == 4:
            sum(range(1000))
        return super().allocate(available)
"""


@TIMED
def test_a_decision_that_never_ends_is_given_up_and_the_latest_save_is_left() -> None:
    job = job_of("sgd uta", run="checkpoint_rounds = 1\ngrace = 0.2")
    Path("slow.py").write_text(SLOW_DECISION)
    began = time.monotonic()
    chosen = ["--set", "allocator.file=slow.py", "--set", "allocator.class=Slow"]
    assert interrupted(job, signal.SIGTERM, *chosen).summary["rounds"] == 4
    assert time.monotonic() - began < 30
