"""What mpi-ata run prints, and how it fails."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import KEYS, call, start, use_own_problem


def test_run_prints_its_result_as_a_table(job: str) -> None:
    result = start("run", job, "--virtual")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [re.split(r"  +", line, maxsplit=1) for line in result.stdout.splitlines()]
    assert rows[:2] == [["ended", "at 50 rounds"], ["rounds", "50"]]
    assert ["tasks started", "350 = 350 used + 0 wasted + 0 lost"] in rows
    names = ["clock", "worker time", "waste", "tasks started", "loss", "gap", "elapsed", "saved"]
    assert [name for name, _ in rows[2:]] == names


def test_run_with_json_prints_one_object_with_the_promised_keys(job: str) -> None:
    result = start("run", job, "--virtual", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert set(summary) == KEYS
    assert (summary["rounds"], summary["workers"], summary["finished"]) == (50, 5, True)
    assert summary["tasks_started"] == summary["tasks_used"] == 350


def test_unknown_values_are_null_in_json(job: str) -> None:
    use_own_problem(job, "return x")
    summary = json.loads(call("run", job, "--virtual", "--json").stdout)
    assert (summary["loss"], summary["gap"]) == (None, None)
    names = [line.split()[0] for line in call("run", job, "--virtual").stdout.splitlines()]
    assert {"clock", "loss", "gap"} & set(names) == {"clock"}, "and left out of the table"


def test_evaluation_results_are_in_the_table_and_in_json(job: str) -> None:
    use_own_problem(
        job, "return x\n    def evaluate(self, x): return {'accuracy': 0.25, 'odd': float('nan')}"
    )
    summary = json.loads(call("run", job, "--virtual", "--json").stdout)
    assert summary["evaluation"] == {"accuracy": 0.25, "odd": None}
    lines = call("run", job, "--virtual").stdout.splitlines()
    assert [line.split() for line in lines[-4:-2]] == [["accuracy", "0.25"], ["odd", "not", "known"]]


def test_options_override_the_job_file(job: str) -> None:
    options = ["--workers", "3", "--set", "stop.rounds=4", "--set", "allocator.budget=2"]
    summary = json.loads(call("run", job, "--virtual", "--json", *options).stdout)
    assert (summary["workers"], summary["rounds"], summary["tasks_used"]) == (3, 4, 8)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--set", "problem.nois=3"], "unknown key 'nois' in [problem]; valid keys: dimension, noise"),
        (["--set", "allocator.budget=0"], "budget=0 must be at least 1"),
        (["--set", "stop.rounds=0"], "[stop] rounds=0 must be above 0"),
        (["--set", "allocator.budgt=3"], "unknown key 'budgt' in [allocator]"),
        (["--set", "budget"], "is not table.key=value"),
        (["--workers", "0"], "--workers"),
        (["--workers", "many"], "--workers"),
        (["--wrokers", "3"], "--wrokers"),
        (["another.toml"], "another.toml"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_wrong_usage_exits_with_2_and_says_why(
    job: str, command: str, arguments: list[str], fragment: str
) -> None:
    result = call(command, job, "--virtual", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert fragment in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_an_error_is_a_single_line_on_stderr() -> None:
    result = start("run", "no.toml", "--virtual")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "Error: no.toml: cannot be read: No such file or directory\n"


def test_a_run_that_fails_exits_with_1_and_says_why_and_what_was_saved(job: str) -> None:
    result = start("run", job, "--virtual", "--set", "method.step_size=1000.0", "--set", "stop.rounds=5000")
    assert (result.returncode, result.stdout) == (1, "")
    why, saved, rest = result.stderr.split("\n")
    assert why.startswith("Error: the run diverged by round ")
    assert re.fullmatch(r"no completed round could be saved, so runs/\S+\.h5 was removed", saved)
    assert not list(Path("runs").iterdir())
    assert rest == ""


def test_a_task_that_raises_exits_with_1_and_shows_only_the_users_lines(job: str) -> None:
    use_own_problem(job, "return x[7]")
    result = start("run", job, "--virtual")
    assert (result.returncode, result.stdout) == (1, "")
    assert "failed in round 1:\n" in result.stderr
    assert "return x[7]" in result.stderr
    assert result.stderr.rstrip().splitlines()[-2].startswith("IndexError: ")
    assert "mpi_ata/" not in result.stderr
