"""Running `mpi-ata paper` in this process."""

import json
from typing import Any

from click.testing import CliRunner, Result

from mpi_ata.cli import main


def called(*arguments: str) -> Result:
    """Run one of its commands on one core."""
    return CliRunner().invoke(main, ["paper", *arguments, "--cores", "1"])


def records(*arguments: str) -> list[dict[str, Any]]:
    """Return the records that a command prints with --json."""
    done = called(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def rejected(sentence: str, *arguments: str) -> None:
    """Check that a command is rejected as wrong usage, with this sentence."""
    done = called(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
