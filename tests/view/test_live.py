"""The live view is one screenful, rewritten in place; notes stay readable above it."""

import io
import logging
import math
import re
from pathlib import Path

import click
import numpy as np
import pytest

from mpi_ata import SGD, UTA, DrawnTimes, Lost, Plain, Quadratic, Round, Sqrt, Stop, Trace, VirtualCluster
from mpi_ata.cli.start import printed_notes
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import resolve
from mpi_ata.view.live import LiveView, progress_view
from mpi_ata.view.progress import ProgressLine, part_done, time_left
from mpi_ata.view.screen import Screen, curve, has_room
from tests.cli.commands import ENDLESS, JOB, TIMED, on_terminal
from tests.faults.scene import written


class Terminal(io.StringIO):
    """A terminal on which screens are drawn; it understands the codes that they use."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what a person sees."""
        shown, row, column = [""], 0, 0
        for code, text in re.findall(r"(\x1b\[\d*[A-Z]|\n|\r)|([^\x1b\n\r]+)", self.getvalue()):
            line = shown[row]
            shown[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
            if code in ("\n", "\r"):
                row, column = row + (code == "\n"), 0
                shown += [""] * (row + 1 - len(shown))
            elif code.endswith("A"):
                row -= int(code[2:-1])
            elif code:
                shown[row] = shown[row][:column]
                del shown[row + 1 if code.endswith("J") else len(shown) :]
        return [line for line in shown if line]


@pytest.fixture(autouse=True)
def large_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    return "job.toml"


def draws_always(view: LiveView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "due", lambda: True)


def test_a_run_is_shown_with_its_totals_curve_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    plan = resolve(written(tmp_path / "job.toml", rounds=40, workers=5))
    view = LiveView("quadratic, sgd", plan.job.stop, terminal)
    draws_always(view, monkeypatch)
    execute(plan, [view])
    lines = terminal.lines()
    assert lines[0] == "quadratic, sgd on 5 workers"
    assert lines[1].startswith("round        40 of 40, 100.0 %, ")
    rows = {line.split("  ")[0]: line for line in lines}
    assert {"round", "gap", "clock", "worker time", "busiest", "slowest"} <= set(rows)
    assert rows["gap"].endswith("▁")
    assert "█" in rows["gap"]
    assert "worker 4 (virtual): 2 min 02 s per task" in rows["slowest"]


def test_each_version_takes_the_place_of_the_one_before() -> None:
    terminal = Terminal()
    screen = Screen(terminal)
    for text in ("one\ntwo\nthree", "four\nfive", "six\nseven\neight\nnine"):
        screen.show(text)
        assert terminal.lines() == text.splitlines()
    screen.clear()
    assert terminal.lines() == []


def test_a_screen_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "22")
    terminal = Terminal()
    Screen(terminal).show("\n".join(["x" * 300] * 50))
    assert terminal.lines() == ["x" * 99] * 21


def test_a_note_is_printed_above_and_the_screen_is_drawn_again_below(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    screen = Screen(terminal)
    with click.Context(click.Command("run")), printed_notes(screen):
        screen.show("one\ntwo")
        logging.getLogger("mpi_ata").warning("worker 1 is lost")
        screen.show("three\nfour")
    assert terminal.lines() == ["Note: worker 1 is lost", "three", "four"]


def test_a_launcher_that_forwards_whole_lines_forwards_every_screen() -> None:
    stream = io.StringIO()
    screen = Screen(stream, terminal=True)
    for text in ("one\ntwo", "three\nfour"):
        screen.show(text)
        assert stream.getvalue().endswith("\n")
    screen.clear()
    assert stream.getvalue().endswith("\n")


@TIMED
def test_a_run_on_a_terminal_draws_screens_and_leaves_the_terminal_clean(job: str) -> None:
    with on_terminal("run", job, "--virtual", *ENDLESS, "--set", "stop.elapsed=2", lines=30) as shown:
        printed = shown.end()
    terminal = Terminal(shown.shown.replace("\r\n", "\n"))
    assert shown.process.returncode == 0
    assert 2 <= shown.shown.count("\x1b[J") <= 9, "at most four per second"
    assert "quadratic, sgd, ata-empirical on 5 workers" in shown.shown
    assert terminal.lines() == []
    assert printed.startswith("ended          at elapsed 2")


@pytest.mark.parametrize(
    ("name", "value"), [("LINES", "12"), ("COLUMNS", "40"), ("TERM", "dumb"), ("LINES", "0")]
)
def test_a_small_a_dumb_or_an_unknown_terminal_has_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert isinstance(progress_view("title", Stop(), Terminal()), LiveView)
    monkeypatch.setenv(name, value)
    assert isinstance(progress_view("title", Stop(), Terminal()), ProgressLine)


def test_a_pipe_and_one_of_several_runs_have_one_line() -> None:
    assert not has_room(io.StringIO())
    assert not has_room(None)
    assert isinstance(progress_view("title", Stop(), Terminal(), label="uta: "), ProgressLine)


def test_a_curve_ends_with_the_latest_value_and_skips_what_is_not_known() -> None:
    assert curve([8.0, 4.0, 2.0, 1.0], 10) == "█▆▃▁"
    assert curve([1.0, math.nan, 2.0], 10) == "▁█"
    assert curve([3.0, 3.0], 10) == "▁▁"
    assert curve([1.0], 10) == ""
    many = curve([float(i) for i in range(-500, 501)], 40)
    assert (len(many), many[0], many[-1]) == (40, "▁", "█")


class Totals:
    """Totals of a run that is half done by rounds, and a quarter by elapsed time; it was set up for 4 s."""

    round, clock, elapsed, setup_time, loss, gap = 50, 3.0, 10.0, 4.0, math.nan, math.nan


def test_the_closest_limit_says_how_much_is_done() -> None:
    assert part_done(Totals(), Stop(rounds=100, elapsed=40.0)) == 0.5
    assert time_left(Totals(), Stop(rounds=100, elapsed=40.0)) == 6.0
    assert time_left(Totals(), Stop(rounds=1000, elapsed=40.0)) == 30.0
    assert time_left(Totals(), Stop(rounds=25)) == 0.0
    assert part_done(Totals(), Stop(gap=1e-3)) == 0.0
    assert time_left(Totals(), Stop(gap=1e-3)) == math.inf


def test_the_latest_losses_and_returns_of_workers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, problem = Terminal(), Quadratic(dimension=3)
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(4)))
    view = LiveView("title", Stop(rounds=10), terminal)
    draws_always(view, monkeypatch)
    view.on_start(SGD(problem.x0, UTA(4, 8), Plain(0.1)), cluster, Trace())
    none = np.zeros(4, np.int64)
    cluster.available[3] = False
    for number in range(1, 6):
        losses = (Lost(3, 1, f"it died {number} times"),)
        view.on_round(Round(number, none, none, none, none, 0.0, 0.0, losses=losses), Trace())
    lines = terminal.lines()
    assert [line.split("worker 3 ")[1] for line in lines[-3:]] == [
        f"(host virtual, slot 3): it died {number} times" for number in (3, 4, 5)
    ]
    assert lines[-3].startswith("events       round 3: ")
    assert lines[-4] == "missing      1 of 4: 3"
