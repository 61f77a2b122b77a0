"""The progress line on a terminal, and signals from it; streams, folders and memory that are missing."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest

from mpi_ata import cli
from mpi_ata.cli.runs import printed_notes
from mpi_ata.job.schema import RunDescription
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.live import Display
from tests.cli.commands import ENDLESS, MPI_ATA, TIMED, call, on_terminal, use_own_problem
from tests.marks import slow


def test_a_note_that_nobody_can_read_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a manager whose mpirun has died.
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as broken, click.Context(click.Command("run")):
        monkeypatch.setattr("sys.stderr", broken)
        with printed_notes(Display(broken)):
            logging.getLogger("mpi_ata").warning("worker 1 is lost")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # so that it can be closed


def test_without_a_terminal_a_line_is_written_now_and_then_each_later_than_the_last(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpi_ata.view.live.FIRST_SECONDS", 0.02)
    done = call("run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=0.7")
    lines = done.stderr.splitlines()
    assert 2 <= len(lines) <= 7  # at 0.02 (1 + 1.5 + 1.5^2 + ...) s
    assert all(
        re.match(r"round [\d,]+ of 1,000,000,000, at most .* to go, gap .*, clock ", line) for line in lines
    )
    assert "\r" not in done.stderr


@TIMED
@pytest.mark.parametrize(("command", "label"), [("run", ""), ("compare", "uta: ")])
def test_a_small_terminal_shows_one_progress_line_and_is_clean_in_the_end(
    job: str, command: str, label: str
) -> None:
    options = ["--allocators", "uta"] if command == "compare" else []
    with on_terminal(command, job, "--virtual", *options, *ENDLESS, "--set", "stop.elapsed=1.5") as terminal:
        printed = terminal.end()
    assert terminal.process.returncode == 0
    assert terminal.shown.count(f"{label}round ") >= 2
    assert " of 1,000,000,000, at most " in terminal.shown
    assert terminal.shown.endswith("\x1b[2K"), "erased"
    assert "round " not in printed


def interrupted(number: int, *arguments: str) -> tuple[int | None, str, str]:
    """Send a signal to an endless command; return its exit code, and what it showed and printed."""
    with on_terminal(*arguments, "--virtual", *ENDLESS) as terminal:
        terminal.read_until("round ")
        time.sleep(0.05)  # so that it computes
        terminal.process.send_signal(number)
        began = time.monotonic()
        printed = terminal.end()
    assert time.monotonic() - began < 5
    assert "Traceback" not in terminal.shown
    return terminal.process.returncode, terminal.shown, printed


@TIMED
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGHUP, "SIGHUP")])
def test_ctrl_c_or_a_closed_terminal_ends_a_run_at_once_and_prints_its_result(
    job: str, number: int, name: str
) -> None:
    code, shown, printed = interrupted(number, "run", job)
    assert (code, len(printed.splitlines())) == (85, 10)
    assert f"early, by {name}" in printed
    assert f"Note: {name}: stopping after this round" in shown


@TIMED
def test_ctrl_c_ends_a_comparison_and_says_what_was_not_run(job: str) -> None:
    code, shown, printed = interrupted(signal.SIGINT, "compare", job, "--json")
    assert code == 1, "only a run can be resumed"
    assert "Error: interrupted in ata-auto at round " in shown
    assert shown.endswith("; not run: ata-empirical, gta, uta\r\n")
    (summary,) = json.loads(printed)
    assert (summary["finished"], summary["rounds"] > 0) == (False, True)


@TIMED
def test_a_second_ctrl_c_stops_in_mid_round_with_what_was_saved(job: str) -> None:
    # The task never ends, so the first Ctrl-C can only be acknowledged.
    reached = Path(job).with_name("reached")
    use_own_problem(job, f"while task.round == 4: open({str(reached)!r}, 'w').close()\n        return x")
    options = ["--out", str(Path(job).with_name("run.h5")), "--set", "run.checkpoint_rounds=2"]
    with on_terminal("run", job, "--virtual", *options, "--set", "run.checkpoint_seconds=1000") as terminal:
        while not reached.exists() and terminal.process.poll() is None:
            time.sleep(0.05)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("Ctrl-C: stopping after this round; press again to stop now")
        assert terminal.process.poll() is None
        terminal.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed = terminal.end()
    assert time.monotonic() - began < 5
    assert terminal.process.returncode == 85
    assert "ended          early, by Ctrl-C\nrounds         3\n" in printed
    assert printed.endswith("run.h5, up to round 2; resume it with --resume\n")


@TIMED
def test_a_run_under_nohup_outlives_its_terminal(job: str) -> None:
    command = ["nohup", str(MPI_ATA), "run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, "at elapsed 2" in out) == (0, True)


EVIL = "\x1b]0;owned\x07\x9b2J\u202e\rx\x7f"


def forge(path: Path) -> None:
    """Write codes for terminals wherever a run file has a text."""
    record = load_record(RunFile(path))[0]
    record.run = record.failure = EVIL
    record.identities = tuple(each._replace(host=EVIL, hardware=EVIL) for each in record.identities)
    for kind in ("lost", EVIL):
        record.event(0.0, kind, f"one line{EVIL}\nand another{EVIL}", worker=1)
    name = f"name = {json.dumps('quadratic' + EVIL)}  # \u202e"
    text = record.job.text.replace('name = "quadratic"', name)
    record.job = RunDescription(text, (f"run.note={EVIL}",))
    record.metrics |= {EVIL: record.trace["clock"], f"latest.{EVIL}": np.array(1.0)}
    RunFile(path.with_name("forged.h5")).save(*to_tree(record))


@pytest.mark.parametrize(
    "words",
    [
        "show forged.h5",
        "explain forged.h5",
        "explain forged.h5 --worker 1",
        "watch forged.h5",
        "what-if forged.h5",
        "export forged.h5",
        "runs .",
        "run job.toml --virtual --resume --out forged.h5",
        "run job.toml --virtual --warm-start forged.h5",
        "submit job.toml --dry-run --ntasks 6 --warm-start forged.h5",
    ],
)
def test_codes_for_terminals_in_a_run_file_are_not_printed(job: str, words: str) -> None:
    assert call("run", job, "--virtual", "--out", "mine.h5").exit_code == 0
    forge(Path("mine.h5"))
    done = call(*words.split())
    assert done.output.strip()
    assert [letter for letter in done.output if not letter.isprintable() and letter != "\n"] == []


def test_codes_in_json_are_those_of_the_file(job: str) -> None:
    assert call("run", job, "--virtual", "--out", "mine.h5").exit_code == 0
    forge(Path("mine.h5"))
    done = call("show", "forged.h5", "--json")
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["failure"] == EVIL


def test_everything_that_commands_print_goes_through_the_function_that_escapes_codes() -> None:
    folder = Path(cli.__file__).parent
    printing = [
        path.name for path in folder.glob("*.py") if re.search(r"click\.s?echo|print\(", path.read_text())
    ]
    assert printing == ["options.py"]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *slow("<&-", ">&-", "2>&-")])
def test_closed_streams_give_no_traceback(job: str, closed: str) -> None:
    assert call("run", job, "--virtual", "--out", "runs/mine.h5").exit_code == 0
    for words, code in ((["watch", "runs/mine.h5"], 0), (["runs", "--keep", "0"], 1), (["show", "no.h5"], 2)):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", str(MPI_ATA), *words]
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


DELETED = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'


@pytest.mark.parametrize(
    "words",
    [
        ["show", "mine.h5"],
        ["watch", "mine.h5"],
        ["run", "JOB", "--virtual"],
        ["run", "JOB", "--out", "OUT"],  # no ranks are started
        ["submit", "JOB", "--ntasks", "3"],
        ["status", "mine.h5"],
    ],
)
def test_a_working_directory_that_was_deleted_is_named(job: str, words: list[str]) -> None:
    paths = {"JOB": job, "OUT": str(Path(job).with_name("mine.h5"))}
    command = ["sh", "-c", DELETED, "sh", str(MPI_ATA), *(paths.get(word, word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    sentence = "Error: the working directory was deleted; change to one that exists\n"
    assert (done.returncode, done.stderr) == (1, sentence)


LITTLE_MEMORY = """
import re, resource, sys
from mpi_ata.cli import main, results
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_AS, (1024 * used + 2**20,) * 2)
main(["show", sys.argv[1]])
"""


def test_too_little_memory_is_reported_in_one_sentence(job: str) -> None:
    assert call("run", job, "--virtual", "--out", "mine.h5").exit_code == 0
    command = [sys.executable, "-c", LITTLE_MEMORY, "mine.h5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[0][:34]) == (1, "Error: there is not enough memory;")
    assert len(done.stderr.splitlines()) == 1
