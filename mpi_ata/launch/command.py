"""Running a short command to its end."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

PATIENCE = 60.0  # seconds, for what takes two on a healthy machine


class CommandResult(NamedTuple):
    """How a command ended; `code` is None if it took too long."""

    code: int | None
    out: str
    err: str

    def gist(self) -> str:
        """Return the lines that matter of what the command printed, or how it ended."""
        if self.code is None:
            return "it did not answer in time"
        lines = [line.strip() for line in f"{self.err}\n{self.out}".splitlines() if re.search(r"\w", line)]
        return " ".join(lines[:1] if self.code == 0 else lines[-3:])[:300] or f"exit code {self.code}"


def run_command(command: Sequence[str], patience: float = PATIENCE) -> CommandResult:
    """Run a command to its end, and what it starts with it, for at most so many seconds."""
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
        out, err = child.communicate(timeout=patience)
        return CommandResult(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", "")
    finally:
        end(child)


def end(child: "subprocess.Popen[str]") -> None:
    """End a child that still runs, gently at first: so that mpirun ends its ranks."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
