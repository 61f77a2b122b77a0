"""minimize() shows the progress of a run as a job does: on the manager, on stderr, unless told not to."""

import io
import logging
import sys
from contextlib import redirect_stderr
from typing import Any

import pytest

from mpi_ata import Plain, Quadratic, Sqrt, Stop, Trace, minimize
from tests.driver.driven import Watching

ERASED = "\x1b[1A\x1b[2K"  # the cursor moved up, and the line erased


class Terminal(io.StringIO):
    """A terminal that can show a screen."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def run(terminal: Terminal | None = None, **options: Any) -> None:
    """Run for half a second, with this stderr: pytest has another one in each phase of a test."""
    given: dict[str, Any] = {"stop": Stop(elapsed=0.6), "times": Sqrt(4)} | options
    with redirect_stderr(terminal or sys.stderr):
        minimize(Quadratic(20), 8, update=Plain(0.1), **given)


def test_a_terminal_shows_a_screen_and_is_left_clean_unless_that_is_switched_off(terminal: Terminal) -> None:
    run(terminal, progress=False)
    assert terminal.getvalue() == ""
    run(terminal)
    assert "Quadratic, SGD, ATAAuto on 4 workers" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASED)


def test_what_is_logged_appears_above_the_screen(terminal: Terminal) -> None:
    handler = logging.StreamHandler(terminal)
    log, said = logging.getLogger("mpi_ata"), list[int]()

    def say(trace: Trace) -> None:
        if not said and "workers" in terminal.getvalue():
            said.append(trace.round)
            log.warning("something happened")

    log.addHandler(handler)
    try:
        run(terminal, observers=[Watching(say)])
    finally:
        log.removeHandler(handler)
    before, said_it, _ = terminal.getvalue().partition("something happened\n")
    assert said_it
    assert before.endswith(ERASED)
    assert not log.filters
