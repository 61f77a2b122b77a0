"""Running a short command to its end."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

TIMEOUT = 60.0  # seconds, for commands that take two on a healthy machine


class CommandResult(NamedTuple):
    """Exit code and output of a command; `code` is None if it timed out."""

    code: int | None
    out: str
    err: str

    def gist(self) -> str:
        """Return the lines that matter of what the command printed, or how it ended."""
        if self.code is None:
            return "it did not answer in time"
        lines = [line.strip() for line in f"{self.err}\n{self.out}".splitlines() if re.search(r"\w", line)]
        return " ".join(lines[:1] if self.code == 0 else lines[-3:])[:300] or f"exit code {self.code}"


def run_command(command: Sequence[str], timeout: float = TIMEOUT) -> CommandResult:
    """Run a command and return its result; end it and its children after `timeout` seconds."""
    try:
        child = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except OSError as error:
        return CommandResult(127, "", f"{command[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=timeout)
        return CommandResult(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", "")
    finally:
        terminate(child)


def terminate(child: "subprocess.Popen[str]") -> None:
    """End a child that still runs, with SIGTERM first so that mpirun can end its ranks."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
