"""A run is shown on a terminal while it runs, elsewhere in lines, and from its file by `mpi-ata watch`."""

import io
import logging
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import mpi_ata
from mpi_ata import Plain, Quadratic, Sqrt, Stop, Trace, minimize
from mpi_ata.cli.runs import printed_notes
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.job.schema import RunDescription
from mpi_ata.runfile.load import load_named, load_record
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.schema import Record, to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.view import live
from mpi_ata.view.live import Display, RunView, progress_text, snapshot_text
from tests.cli.commands import ENDLESS, JOB, MPI_ATA, TIMED, call, on_terminal
from tests.driver.driven import driven
from tests.faults.scene import written


class Terminal(io.StringIO):
    """A terminal that keeps all that was written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def described(**tables: dict[str, Any]) -> RunDescription:
    """Return the description of a run that has no job file."""
    given = {"problem": {"name": "quadratic"}, "method": {"name": "sgd"}} | tables
    return RunDescription.of_tables(given, {})


@pytest.fixture(autouse=True)
def large_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)


def test_a_run_is_shown_with_its_totals_curve_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    view = RunView(described(stop={"rounds": 40}), terminal)
    monkeypatch.setattr(view, "due", lambda: True)
    minimize(Quadratic(5), 7, update=Plain(0.4), rounds=40, times=Sqrt(7), observers=[view], progress=False)
    shown = terminal.getvalue().rpartition("quadratic, sgd on 7 workers")[2]
    rows = {row[0]: row[1] for row in re.findall(r"│ \S*m([a-z ]+?) *\x1b\S+ *\S+m(.*?) *│", shown)}
    assert rows["round"].startswith("39 of 40, 97.5 %, "), "removed before workers are let go, who may print"
    assert {"gap", "clock", "worker time", "busiest", "slowest"} <= set(rows)
    assert rows["gap"].endswith("▁")
    assert "worker 6 (virtual): " in rows["slowest"]


def test_each_version_replaces_the_one_before_and_a_note_is_printed_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    display = Display(terminal)
    with click.Context(click.Command("run")), printed_notes(display):
        display.show("one")
        display.show("two")
        logging.getLogger("mpi_ata").warning("worker 1 is lost")
        display.show("x" * 300)
    display.clear()
    display.clear()
    text = terminal.getvalue()
    assert "one\n\r\x1b[2K\x1b[1A\x1b[2Ktwo\n" in text
    assert "\x1b[1A\x1b[2KNote: worker 1 is lost\n" in text, "erased first"
    assert f"{'x' * 79}…" in text, "cut to the terminal"
    assert text.endswith("\x1b[1A\x1b[2K")


def test_what_a_script_prints_meanwhile_is_left_above(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    display = Display(terminal)
    display.show("one")
    print("the result")
    display.show("two")
    display.clear()
    assert "one\n" in terminal.getvalue().partition("\x1b[1A\x1b[2Kthe result\n")[0], "erased first"
    assert "two\n" in terminal.getvalue().partition("the result\n")[2]
    assert sys.stdout is sys.stderr is terminal
    with redirect_stdout(io.StringIO()):
        display.show("three")
    print("the loss")  # to the terminal
    display.clear()
    monkeypatch.setattr("sys.stdout", file := io.StringIO())
    display.show("four")
    assert sys.stdout is file, "only what reaches the terminal"
    display.clear()


def test_a_script_may_print_in_threads_while_progress_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal, over = Terminal(), threading.Event()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr(live, "PRINTED_SECONDS", 0.0)
    display = Display(terminal)

    def prints() -> None:
        while not over.is_set():
            print("dots")

    thread = threading.Thread(target=prints)
    thread.start()
    try:
        for number in range(300):
            display.show(str(number))
    finally:
        over.set()
        thread.join()
        display.clear()
    assert sys.stdout is terminal


@TIMED
def test_a_run_on_a_terminal_is_drawn_and_leaves_the_terminal_clean() -> None:
    pytest.importorskip("rich")
    with on_terminal("run", "job.toml", "--virtual", *ENDLESS, "--set", "stop.elapsed=2", lines=30) as run:
        printed = run.end()
    assert run.process.returncode == 0
    assert 2 <= run.shown.count("quadratic, sgd, ata-empirical on 5 workers") <= 9, "at most four per second"
    assert run.shown.endswith("\x1b[1A\x1b[2K")
    assert printed.startswith("ended          at elapsed 2")


@pytest.mark.parametrize(
    ("variables", "room", "drawn"),
    [({}, True, True), ({"LINES": "12"}, False, True), ({"TERM": "dumb"}, False, False)],
)
def test_a_small_terminal_has_one_line_and_a_dumb_one_plain_lines(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], room: bool, drawn: bool
) -> None:
    pytest.importorskip("rich")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    display = Display(terminal)
    display.show("text")
    assert display.has_room == room
    assert ("\x1b" in terminal.getvalue()) == drawn


def test_ranks_behind_a_launcher_draw_if_it_forwards_to_a_terminal_and_rich_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich")
    assert not Display(io.StringIO()).has_room
    assert not Display(None).has_room
    monkeypatch.setenv("MPI_ATA_TERMINAL", "1")
    display = Display(forwarded := io.StringIO())
    assert display.has_room
    display.show("round 1")
    display.clear()
    assert forwarded.getvalue().endswith("\x1b[2K\x1b[1A\n"), (
        "Open MPI forwards the rest of a line after all else"
    )
    monkeypatch.setattr(live, "find_spec", lambda name: None)
    terminal = Terminal()
    Display(terminal).show("round 1")
    assert terminal.getvalue() == "round 1\n"


def test_a_curve_ends_with_the_latest_value_and_skips_what_is_not_known() -> None:
    assert live.curve([8.0, 4.0, 2.0, 1.0], 10) == "█▆▃▁"
    assert live.curve([1.0, math.nan, 2.0], 10) == "▁█"
    assert live.curve([3.0, 3.0], 10) == "▁▁"
    assert live.curve([1.0], 10) == ""
    many = live.curve([float(i) for i in range(-500, 501)], 40)
    assert (len(many), many[0], many[-1]) == (40, "▁", "█")


@pytest.mark.parametrize(
    ("stop", "done", "left", "shown"),
    [
        (Stop(rounds=100, elapsed=40.0), 0.5, 6.0, ", at most 6 s to go, "),
        (Stop(rounds=1000, elapsed=40.0), 0.25, 30.0, ", at most 30 s to go, "),
        (Stop(clock=6.0, rounds=1000), 0.5, 6.0, ", at most 6 s to go, "),
        (Stop(rounds=25), 1.0, 0.0, ", at most 0 s to go, "),
        (Stop(gap=1e-3), 0.0, math.inf, ""),
    ],
)
def test_the_closest_limit_says_how_much_is_done(stop: Stop, done: float, left: float, shown: str) -> None:
    so_far: dict[str, Any] = {"rounds": 50, "clock": 3.0, "elapsed": 10.0, "setup_time": 4.0}
    assert (live.part_done(so_far, stop), live.time_left(so_far, stop)) == (done, left)
    given = {name: value for name, value in vars(stop).items() if value is not None}
    line = progress_text(so_far, described(stop=given))
    assert shown in line
    assert ("to go" in line) == bool(shown)


def test_the_line_of_a_farm_counts_items() -> None:
    summary = {"tasks_used": 1300, "rounds": 4, "clock": 2.5}
    assert progress_text(summary, described(method={"class": "Farm"})) == "1,300 items done, clock 2.5 s"
    text = progress_text(summary | {"elapsed": 13.0}, described(method={"class": "Farm"}), asked=1_400)
    assert text == "1,300 of 1,400 items done, about 1 s to go, clock 2.5 s"


def test_the_latest_losses_and_returns_of_workers_are_shown() -> None:
    problem = Quadratic(dimension=3)
    cluster = mpi_ata.VirtualCluster(problem, mpi_ata.DrawnTimes(Sqrt(4)))
    view = RunView(described(), None)
    view.on_start(mpi_ata.SGD(problem.x0, mpi_ata.UTA(4, 8), Plain(0.1)), cluster, Trace())
    none = np.zeros(4, np.int64)
    cluster.available[3] = False
    for number in range(1, 6):
        losses = (mpi_ata.Lost(3, 1, f"it died {number} times"),)
        view.on_round(mpi_ata.Round(number, none, none, none, none, 0.0, 0.0, losses=losses), Trace())
    lines = snapshot_text(view.snapshot(Trace())).splitlines()
    assert [line.split("worker 3 ")[1] for line in lines[-3:]] == [
        f"(host virtual, slot 3): it died {number} times" for number in (3, 4, 5)
    ]
    assert lines[-3].split("  ")[0] == "events"
    assert re.fullmatch(r"missing +1 of 4: 3", lines[-4])


def test_a_finished_run_is_printed_and_watching_ends() -> None:
    minimize(Quadratic(5), 4, update=Plain(0.4), rounds=20, times=Sqrt(3), out="run.h5")
    done = call("watch", "run.h5")
    assert (done.exit_code, done.stdout) == (0, call("watch", "run.h5", "--once").stdout)
    lines = done.stdout.splitlines()
    assert lines[0] == "Quadratic, SGD, ATAAuto on 3 workers"
    assert re.fullmatch(r"state +finished at 20 rounds", lines[1])
    assert re.match(r"round +20 of 20, 100.0 %, ", lines[2])
    assert lines[-1].endswith(" ended: 20 rounds")


def unfinished() -> Path:
    """The file of a run that was stopped after its first round."""

    def stop(trace: Trace) -> None:
        signal.raise_signal(signal.SIGTERM)

    driven(written(Path("job.toml")), look=stop, output=OutputOptions(Path("early.h5")))
    return Path("early.h5")


def test_a_run_that_was_stopped_is_printed_without_a_forecast() -> None:
    done = call("watch", str(unfinished()))
    assert done.exit_code == 0
    assert "stopped early by SIGTERM; resume it with --resume, or resume=True in a script\n" in done.stdout
    assert "1 of 40, 2.5 %, " in done.stdout
    assert "to go" not in done.stdout


def test_watching_a_run_that_was_killed_ends_and_says_so() -> None:
    file = RunFile(unfinished())
    record, _ = load_record(file)
    record.event(0.0, "resumed", "at round 1 on 5 \x1b[2J workers")
    file.save(*to_tree(record))
    lock = RunLock(file.path)
    lock.acquire()
    shown = call("watch", str(file.path), "--once").stdout
    assert "running, as saved at " in shown
    assert "to go, until " in shown
    assert "\x1b" not in shown, "codes for terminals are not printed"
    assert " running " in call("runs", ".").stdout
    lock.release()
    done = call("watch", str(file.path))
    assert done.exit_code == 0
    assert "stopped without a last save; resume it with --resume, or resume=True in a script\n" in done.stdout
    assert "to go" not in done.stdout


@TIMED
def test_ctrl_c_ends_watching_and_gives_the_cursor_back() -> None:
    pytest.importorskip("rich")
    lock = RunLock(path := unfinished())
    lock.acquire()
    with on_terminal("watch", str(path), "--follow", stdout=True) as watching:
        watching.read_until("round ")
        watching.process.send_signal(signal.SIGINT)
        watching.end()
    lock.release()
    assert watching.process.returncode == 0
    assert "?25h" in watching.shown.rpartition("?25l")[2]


def test_a_run_that_ends_while_it_is_read_is_not_taken_for_a_killed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = unfinished()
    lock = RunLock(path)
    lock.acquire()

    def load(file: RunFile) -> tuple[Record, str]:
        lock.release()
        return load_named(file)

    monkeypatch.setattr(live, "load_named", load)
    assert live.saved_run(path).state == "running"
    assert live.saved_run(path).state.startswith("stopped early by SIGTERM")


def test_a_run_is_watched_while_it_runs_from_before_its_first_round_until_it_is_finished() -> None:
    limits = [*ENDLESS, "--set", "stop.elapsed=3", "--set", "run.checkpoint_seconds=1000"]
    command = [str(MPI_ATA), "run", "job.toml", "--virtual", "--out", "run.h5", *limits]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not Path("run.h5").exists():
            assert run.poll() is None
            time.sleep(0.05)
        early, done = call("watch", "run.h5", "--once"), call("watch", "run.h5")
        run.wait(60)
    assert "before the first round" in early.stdout
    assert done.exit_code == 0
    assert done.stdout.startswith("round ")
    assert "finished at elapsed 3" in done.stdout


def test_a_run_that_was_stopped_is_followed_if_asked() -> None:
    minimize(Quadratic(5), 4, update=Plain(0.4), rounds=20, times=Sqrt(3), out="done.h5")
    shutil.copy(unfinished(), "run.h5")
    stream = io.StringIO()
    later = threading.Timer(0.3, lambda: Path("done.h5").replace("run.h5"))
    later.start()
    last = live.watch(Path("run.h5"), stream, follow=True, look=0.05)
    later.join()
    assert stream.getvalue().startswith("round 1 of 40, ")
    assert "finished at 20 rounds" in last


def test_workers_that_do_nothing_any_more_are_listed() -> None:
    driven(written(Path("job.toml"), "sgd ofta", workers=40), output=OutputOptions(Path("run.h5")))
    printed = call("watch", "run.h5", "--once").stdout
    idle = re.search(r"\nidle +(\d+) of 40: .*, no task after round (\d+)\n", printed)
    assert idle is not None
    assert int(idle[1]) >= 33, "seven tasks per round keep seven workers busy at most"
    assert 30 <= int(idle[2]) <= 36, "the last tenth of 40 rounds"
