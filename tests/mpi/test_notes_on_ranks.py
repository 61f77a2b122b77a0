"""What a run on real ranks says about its tasks, once: sleeping, drawing globally, too short, failing."""

import re
from pathlib import Path

import pytest

from tests.cli.commands import JOB, use_own_problem
from tests.mpi.starting import COMMAND, finished

SLEEPS = "Note: tasks sleep as long as [times] says; without it, they run at their real speed\n"
DRAWS = "Note: tasks draw from random or np.random: results will not repeat; draw from task.rng instead\n"
TIMES = '[times]\nlaw = "sqrt"\n'


def run_on_ranks(body: str, *arguments: str) -> tuple[int, str]:
    """Run tasks on two workers, without [times]; return the exit code and what was written to stderr."""
    job = Path("job.toml").absolute()
    use_own_problem(str(job), body)
    job.write_text(job.read_text().replace(TIMES, ""))
    done = finished([str(COMMAND), "run", str(job), "--workers", "2", *arguments])
    return done.returncode, done.stderr


def test_a_job_whose_tasks_sleep_says_so_once() -> None:
    Path("job.toml").write_text(JOB)
    options = ["--workers", "2", "--set", "times.unit=1e-5", "--allocators", "uta,gta"]
    done = finished([str(COMMAND), "compare", "job.toml", *options])
    assert (done.returncode, done.stderr.count(SLEEPS)) == (0, 1), done.stderr


@pytest.mark.parametrize(
    ("draw", "warnings"), [("np.random", 1), ("__import__('random')", 1), ("task.rng", 0)]
)
def test_tasks_that_draw_from_what_all_share_are_warned_of_once(draw: str, warnings: int) -> None:
    code, err = run_on_ranks(f"return 0 * x + {draw}.random()")
    assert (code, err.count(DRAWS), SLEEPS in err) == (0, warnings, False), err


def test_where_the_exchange_dominates_it_is_said_with_a_way_out() -> None:
    code, err = run_on_ranks("return x", "--set", "stop.rounds=300")
    assert code == 0, err
    assert err.count("Note: exchanging an order took ") == 1
    assert "ms: let each task do more, or use a larger budget\n" in err


FEW = ("--set", "stop.rounds=110", "--set", "allocator.budget=4")  # more rounds than a warning waits for


def test_where_tasks_take_their_time_nothing_is_said_about_the_exchange() -> None:
    code, err = run_on_ranks("__import__('time').sleep(0.01); return x", *FEW)
    assert (code, "exchanging" in err) == (0, False), err


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return x * np.nan", "): round 1: a result contains NaN; check gradient()"),
        ("__import__('sys').exit()", "failed: mine.py:5 calls sys.exit(); raise an exception"),
        ("return x * 1j", "returned an array of complex128 of shape (3,); gradient(x, task) must return"),
    ],
)
def test_mistakes_in_a_task_are_told_in_one_sentence(body: str, sentence: str) -> None:
    code, err = run_on_ranks(body)
    assert code == 1
    assert re.search(r"Error: (the warm-up task of )?worker \d \(host ", err)
    assert sentence in err
    assert "Traceback" not in err


def test_a_setup_that_exits_on_one_worker_ends_the_run_with_a_sentence() -> None:
    setup = "def setup(self, worker, n):\n        if worker == 1: raise SystemExit"
    code, err = run_on_ranks(f"return x\n    {setup}")
    assert code == 1
    assert "setup(worker, n) of the problem failed: mine.py:7 calls sys.exit(); raise an exception" in err
