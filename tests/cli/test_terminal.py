"""The progress line on a terminal, and signals from it."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.commands import (
    ENDLESS,
    MPI_ATA,
    TIMED,
    call,
    on_terminal,
    start,
    use_own_problem,
)


@TIMED
def test_without_a_terminal_nothing_but_the_result_is_printed(job: str) -> None:
    result = start("run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=0.4")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\r" not in result.stdout


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


@TIMED
@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_a_run_at_once_and_prints_its_result(job: str, command: str, as_json: bool) -> None:
    with on_terminal(command, job, "--virtual", *ENDLESS, *["--json"] * as_json) as terminal:
        terminal.read_until("round ")
        time.sleep(0.05)  # so that it computes; a test below interrupts it while it writes
        terminal.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed = terminal.end()
    assert time.monotonic() - began < 5
    assert terminal.process.returncode == (85 if command == "run" else 1)  # only a run can be resumed
    assert "Traceback" not in terminal.shown
    if command == "compare":
        assert "Error: interrupted in ata-empirical at round " in terminal.shown
        assert terminal.shown.endswith("; not run: gta, uta\r\n")
    else:
        assert "Note: Ctrl-C: stopping after this round; press again to stop now" in terminal.shown
    if as_json:
        summary = json.loads(printed)
        summary = summary[0] if command == "compare" else summary
        assert not summary["finished"]
        assert summary["rounds"] > 0
    else:
        assert "early, by Ctrl-C" in printed or command == "compare"
        assert len(printed.splitlines()) == (10 if command == "run" else 3)


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
def test_a_closed_terminal_ends_a_run_and_prints_its_result(job: str) -> None:
    with on_terminal("run", job, "--virtual", *ENDLESS) as terminal:
        terminal.read_until("round ")
        terminal.process.send_signal(signal.SIGHUP)
        printed = terminal.end()
    assert terminal.process.returncode == 85
    assert "early, by SIGHUP" in printed


@TIMED
def test_a_run_under_nohup_outlives_its_terminal(job: str) -> None:
    command = ["nohup", str(MPI_ATA), "run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, "at elapsed 2" in out) == (0, True)
