"""Under a launcher of the user's own, the manager finds the terminal to which its lines are forwarded."""

import os
import pty
import subprocess
import termios
from pathlib import Path

from mpi_ata import launch
from tests.cli.commands import JOB
from tests.mpi.starting import COMMAND, environment

UNSET = ("MPI_ATA_TERMINAL", "COLUMNS", "LINES")  # which mpi-ata sets where it starts the ranks itself


def on_terminal(*command: str) -> str:
    """Run a command whose stderr is a terminal of 30 lines, and return all that was written to it."""
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (30, 100))
    variables = {name: value for name, value in environment().items() if name not in UNSET}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=terminal, env=variables | {"TERM": "xterm"}
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while data := os.read(reader, 65536):
                shown += data
        except OSError:  # on Linux: the other side has closed
            pass
        finally:
            process.kill()
            os.close(reader)
    return shown.decode()


def test_ranks_of_the_users_own_mpirun_draw_a_screen_on_its_terminal(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('law = "sqrt"', 'law = "constant"\nunit = 1e-2'))
    options = ["--out", str(tmp_path / "run.h5"), "--set", "stop.clock=1.5", "--set", "stop.rounds=10000"]
    shown = on_terminal(launch.find_mpirun(), "-n", "3", str(COMMAND), "run", str(job), *options)
    assert "quadratic, sgd, ata-empirical on 2 workers\x1b[K" in shown
    assert shown.count("\x1b[J") >= 2, "it is redrawn, and erased in the end"
