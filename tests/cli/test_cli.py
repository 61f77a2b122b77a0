"""What a person at a terminal, and a script that reads the output, can rely on."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mpi_ata import Round, Stop, Trace, __version__
from mpi_ata.cli import main
from mpi_ata.view.progress import Line, ProgressLine

MPI_ATA = Path(sys.executable).with_name("mpi-ata")
ENDLESS = ["--set", "stop.rounds=1000000000"]
KEYS = {
    "rounds",
    "clock",
    "worker_time",
    "elapsed",
    "billed",
    "tasks_started",
    "tasks_used",
    "tasks_wasted",
    "tasks_lost",
    "waste",
    "loss",
    "gap",
    "evaluation",
    "mean_delay",
    "largest_delay",
    "workers",
    "finished",
    "out",
}
JOB = """
[problem]
name = "quadratic"
dimension = 10

[method]
name = "sgd"
step_size = 0.4

[allocator]
name = "ata-empirical"
budget = 7
eta = 1.0

[times]
law = "sqrt"

[stop]
rounds = 50

[run]
workers = 5
seed = 5
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def own_problem(job: str, body: str) -> None:
    """Let the job have a problem of the user's own, which tells no loss; `body` is that of a task."""
    lines = ["class Mine:", "    x0 = np.ones(3)", "    def gradient(self, x, task):", f"        {body}"]
    Path(job).with_name("mine.py").write_text("\n".join(["import numpy as np", *lines]))
    by_file = 'file = "mine.py"\nclass = "Mine"'
    Path(job).write_text(JOB.replace('name = "quadratic"\ndimension = 10', by_file))


def called(*arguments: str) -> Result:
    """A command, run in this process."""
    return CliRunner().invoke(main, arguments)


TIMED = pytest.mark.flaky(reruns=2)  # a stall of the machine may decide one try, a mistake decides all


def started(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command, run as users do."""
    return subprocess.run([MPI_ATA, *arguments], capture_output=True, text=True, timeout=60, check=False)


class OnTerminal:
    """A command whose stderr is a terminal, and all that was written there."""

    def __init__(self, process: "subprocess.Popen[str]", terminal: int) -> None:
        self.process = process
        self.shown = ""
        self._terminal = terminal

    def read_until(self, text: str) -> None:
        """Wait for a text to show up, or for the end of the process where it never does."""
        deadline = time.monotonic() + 60
        while text not in self.shown and time.monotonic() < deadline:
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._terminal, 4096).decode()
                except OSError:  # how Linux tells that the other side has closed
                    return
            elif self.process.poll() is not None:
                return

    def end(self) -> str:
        """Wait for the end; what was printed."""
        self.read_until("never shown")
        return self.process.communicate(timeout=60)[0]


def _as_at_a_terminal() -> None:
    """Let nothing be ignored, as it may be in what a script starts in the background, such as these tests."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def on_terminal(*arguments: str) -> Iterator[OnTerminal]:
    """Start a command whose stderr is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [MPI_ATA, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        preexec_fn=_as_at_a_terminal,
    )
    os.close(theirs)
    with process:
        try:
            yield OnTerminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def visible(shown: str) -> str:
    """The line that a terminal shows in the end, after all carriage returns."""
    line = ""
    for part in shown.split("\r"):
        line = part + line[len(part) :]
    return line.rstrip()


def test_run_prints_how_it_ended_in_one_table(job: str) -> None:
    result = started("run", job, "--virtual")
    assert (result.returncode, result.stderr) == (0, "")
    table = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert {name.strip(): text.strip() for name, text in table.items()}.items() >= {
        ("ended", "at 50 rounds"),
        ("rounds", "50"),
        ("tasks started", "350 = 350 used + 0 wasted + 0 lost"),
    }
    names = [name.strip() for name in table]
    assert names[2:] == ["clock", "worker time", "waste", "tasks started", "loss", "gap", "elapsed", "saved"]


def test_run_with_json_prints_one_object_with_the_promised_keys(job: str) -> None:
    result = started("run", job, "--virtual", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    figures = json.loads(result.stdout.splitlines()[-1])
    assert set(figures) == KEYS
    assert (figures["rounds"], figures["workers"], figures["finished"]) == (50, 5, True)
    assert figures["tasks_started"] == figures["tasks_used"] == 350


def test_what_is_not_known_is_null_in_json(job: str) -> None:
    own_problem(job, "return x")
    figures = json.loads(called("run", job, "--virtual", "--json").stdout)
    assert (figures["loss"], figures["gap"]) == (None, None)
    table = called("run", job, "--virtual").stdout
    assert table.count("not known") == 2


def test_what_a_problem_evaluates_stands_in_the_table_and_in_json(job: str) -> None:
    own_problem(job, "return x\n    def evaluate(self, x): return {'accuracy': 0.25, 'odd': float('nan')}")
    figures = json.loads(called("run", job, "--virtual", "--json").stdout)
    assert figures["evaluation"] == {"accuracy": 0.25, "odd": None}
    lines = called("run", job, "--virtual").stdout.splitlines()
    assert [line.split() for line in lines[-4:-2]] == [["accuracy", "0.25"], ["odd", "not", "known"]]


def test_compare_prints_a_row_for_each_allocator(job: str) -> None:
    result = called("compare", job, "--virtual", "--allocators", "gta, uta,ofta")
    assert result.exit_code == 0
    header, _, *rows = result.stdout.splitlines()
    assert "clock / greedy" in header
    assert [row.split()[0] for row in rows] == ["gta", "uta", "ofta"]
    assert rows[0].split()[-2:] == ["1.00", "1.00"]


def test_compare_without_greedy_has_nothing_to_put_in_proportion(job: str) -> None:
    assert "greedy" not in called("compare", job, "--virtual", "--allocators", "uta,ofta").stdout


def test_compare_with_json_prints_a_list_with_the_figures_of_each(job: str) -> None:
    result = started("compare", job, "--virtual", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    rows = json.loads(result.stdout.splitlines()[-1])
    assert [row["allocator"] for row in rows] == ["ata-empirical", "gta", "uta"]
    assert all(set(row) == KEYS | {"allocator"} for row in rows)
    assert [row["tasks_wasted"] > 0 for row in rows] == [False, True, False]


def test_compare_gives_each_allocator_the_run_it_has_alone(job: str) -> None:
    compared = json.loads(
        called("compare", job, "--virtual", "--json", "--allocators", "uta,ata-empirical").stdout
    )
    alone = json.loads(called("run", job, "--virtual", "--json").stdout)
    own = {"allocator": "ata-empirical", "elapsed": compared[1]["elapsed"], "out": None}
    assert compared[1] == alone | own


def test_compare_leaves_out_what_the_method_refuses_unless_it_is_named(job: str) -> None:
    chosen = ["compare", job, "--virtual", "--set", "method.name=asgd"]
    result = called(*chosen)
    assert [row.split()[0] for row in result.stdout.splitlines()[2:]] == ["ata-empirical", "uta"]
    assert result.stderr == "Note: gta is left out: its counterpart here is the method ringmaster\n"
    assert called(*chosen, "--allocators", "uta,gta").exit_code == 2


def test_a_gradient_that_returns_nothing_is_told_so(job: str) -> None:
    own_problem(job, "pass")
    said = called("run", job, "--virtual").stderr
    assert "Error: gradient() returned None instead of an array; is a return statement missing?" in said


def test_compare_prints_its_table_where_no_round_was_needed(job: str) -> None:
    assert called("compare", job, "--virtual", "--set", "stop.gap=1").exit_code == 0


def test_compare_refuses_an_allocator_key_that_the_jobs_own_allocator_does_not_know(job: str) -> None:
    assert called("compare", job, "--virtual", "--set", "allocator.budgt=3").exit_code == 2


@pytest.mark.parametrize("allocators", ["ata-empirical,atta", "ata-empirical,ata"])
def test_compare_refuses_an_allocator_before_it_spends_time_on_the_others(job: str, allocators: str) -> None:
    own_problem(job, "raise KeyError")
    assert called("compare", job, "--virtual", "--allocators", allocators).exit_code == 2


def test_options_override_the_job_file(job: str) -> None:
    options = ["--workers", "3", "--set", "stop.rounds=4", "--set", "allocator.budget=2"]
    figures = json.loads(called("run", job, "--virtual", "--json", *options).stdout)
    assert (figures["workers"], figures["rounds"], figures["tasks_used"]) == (3, 4, 8)


def test_the_allocator_can_be_exchanged_as_the_help_shows(job: str) -> None:
    assert "--set allocator.name=gta" in called("run", "--help").output
    assert called("run", job, "--virtual", "--set", "allocator.name=gta").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--set", "problem.nois=3"], "unknown key 'nois' in [problem]; valid keys: dimension, noise"),
        (["--set", "allocator.budget=0"], "budget=0 must be at least 1"),
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
    result = called(command, job, "--virtual", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert fragment in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{job}", "--virtual", "--set", "stop.rounds=0"], "{job}: [stop] rounds=0 must be above 0"),
        (["run", "no.toml", "--virtual"], "no.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_refusal_is_a_single_line_on_stderr(job: str, arguments: list[str], message: str) -> None:
    result = started(*(argument.format(job=job) for argument in arguments))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"Error: {message.format(job=job)}\n"


def test_a_run_that_fails_exits_with_1_and_says_why_and_what_is_left(job: str) -> None:
    result = started("run", job, "--virtual", "--set", "method.step_size=1000.0", "--set", "stop.rounds=5000")
    assert (result.returncode, result.stdout) == (1, "")
    why, left, nothing = result.stderr.split("\n")
    assert why.startswith("Error: the run diverged by round ")
    assert re.fullmatch(
        r"(runs/\S+\.h5) holds it up to round 0; after fixing it, continue with --out \1 --resume", left
    )
    assert nothing == ""


def test_a_task_that_raises_exits_with_1_and_shows_the_users_lines_alone(job: str) -> None:
    own_problem(job, "return x[7]")
    result = started("run", job, "--virtual")
    assert (result.returncode, result.stdout) == (1, "")
    assert "failed in round 1:\n" in result.stderr
    assert "return x[7]" in result.stderr
    assert result.stderr.rstrip().splitlines()[-2].startswith("IndexError: ")
    assert "mpi_ata/" not in result.stderr


@TIMED
def test_where_there_is_no_terminal_nothing_but_the_result_is_written(job: str) -> None:
    result = started("run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=0.4")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\r" not in result.stdout


@TIMED
@pytest.mark.parametrize(("command", "label"), [("run", ""), ("compare", "uta: ")])
def test_a_terminal_shows_one_line_of_progress_and_is_clean_in_the_end(
    job: str, command: str, label: str
) -> None:
    chosen = ["--allocators", "uta"] if command == "compare" else []
    with on_terminal(command, job, "--virtual", *chosen, *ENDLESS, "--set", "stop.elapsed=0.6") as terminal:
        printed = terminal.end()
    assert terminal.process.returncode == 0
    assert terminal.shown.count(f"\r{label}round ") >= 2
    assert " of 1,000,000,000, at most " in terminal.shown
    assert "\n" not in terminal.shown
    assert visible(terminal.shown) == ""
    assert terminal.shown.endswith("\r")
    assert "round " not in printed


@TIMED
def test_the_line_of_progress_fits_a_terminal_of_80_columns(job: str) -> None:
    chosen = ["--allocators", "ata-empirical", "--set", "stop.elapsed=0.6"]
    with on_terminal("compare", job, "--virtual", *chosen, *ENDLESS) as terminal:
        terminal.end()
    assert max(len(line) for line in terminal.shown.split("\r")) < 80


@TIMED
@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_a_run_at_once_with_what_was_reached(job: str, command: str, as_json: bool) -> None:
    with on_terminal(command, job, "--virtual", *ENDLESS, *["--json"] * as_json) as terminal:
        terminal.read_until("round ")
        time.sleep(0.05)  # so that it computes; the next test is about the moment of writing
        terminal.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed = terminal.end()
    assert time.monotonic() - began < 5
    assert terminal.process.returncode == (85 if command == "run" else 1)  # only a run is kept, and can go on
    assert "Traceback" not in terminal.shown
    if command == "compare":
        assert "Error: interrupted in ata-empirical at round " in terminal.shown
        assert terminal.shown.endswith("; not run: gta, uta\r\n")
    else:
        assert visible(terminal.shown) == ""
    if as_json:
        figures = json.loads(printed)
        figures = figures[0] if command == "compare" else figures
        assert not figures["finished"]
        assert figures["rounds"] > 0
    else:
        assert "early, by Ctrl-C" in printed or command == "compare"
        assert len(printed.splitlines()) == (10 if command == "run" else 3)


@TIMED
def test_a_closed_terminal_ends_a_run_with_what_was_reached(job: str) -> None:
    with on_terminal("run", job, "--virtual", *ENDLESS) as terminal:
        terminal.read_until("round ")
        terminal.process.send_signal(signal.SIGHUP)
        printed = terminal.end()
    assert terminal.process.returncode == 85
    assert "early, by SIGHUP" in printed


@TIMED
def test_who_wants_to_outlive_a_terminal_may(job: str) -> None:
    command = ["nohup", str(MPI_ATA), "run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, "at elapsed 2" in out) == (0, True)


class Interrupted(io.StringIO):
    """A terminal on which Ctrl-C is pressed just when the first line is out."""

    pressed = False

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt


def test_a_line_that_was_interrupted_while_written_is_cleared_too() -> None:
    stream = Interrupted()
    line, none = ProgressLine(Stop(), stream), np.zeros(1, np.int64)
    round = Round(0, none, none, none, none, 0.0, 0.0)
    with pytest.raises(KeyboardInterrupt):
        line.on_round(round, Trace())
    assert "round 0" in visible(stream.getvalue())
    line.clear()
    assert visible(stream.getvalue()) == ""


def test_through_a_launcher_the_line_is_made_of_whole_lines() -> None:
    # Some pass on nothing else, and what they hold back would be seen too late.
    stream = io.StringIO()
    line = Line(stream, terminal=True)
    for text in ("first", "second"):
        line.show(text)
        assert stream.getvalue().endswith(f"{text}\n")
    line.clear()
    line.clear()
    assert stream.getvalue() == "first\n\x1b[1A\r\x1b[Ksecond\n\x1b[1A\r\x1b[K\x1b[1A\n"


@pytest.mark.parametrize("command", sorted(main.commands))
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_each_command_has_examples(command: str, option: str) -> None:
    result = called(command, option)
    assert result.exit_code == 0
    _, _, examples = result.output.partition("Examples:")
    assert f"mpi-ata {command} " in " ".join(examples.split())


@pytest.mark.parametrize("command", sorted(main.commands))
def test_each_example_in_the_help_stands_on_its_own_line(command: str) -> None:
    _, _, examples = called(command, "--help").output.partition("  Examples:\n")
    assert examples.startswith(f"    mpi-ata {command} ")


def test_the_help_lists_the_commands() -> None:
    result = started("--help")
    assert result.returncode == 0
    assert all(f"\n  {command} " in result.stdout for command in main.commands)


def test_the_version_is_told() -> None:
    result = started("--version")
    assert (result.returncode, result.stdout) == (0, f"mpi-ata, version {__version__}\n")
