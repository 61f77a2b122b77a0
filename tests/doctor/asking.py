"""Asking the doctor, with some changes of its surroundings."""

import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import launch

ROOT = Path(__file__).parents[2]
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/"


def run_doctor(
    *options: str,
    python: Path | str = sys.executable,
    prefix: tuple[str, ...] = (),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The real command, with some changes of its surroundings."""
    ours = os.pathsep.join([*site.getsitepackages(), str(ROOT)])
    return subprocess.run(
        [*prefix, str(python), "-m", "mpi_ata", "doctor", *options],
        env=os.environ | {"PYTHONPATH": ours} | dict(environment or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def prepared() -> dict[str, str]:
    """What an mpirun must be told here."""
    environment: dict[str, str] = {}
    launch.set_mpi_defaults(environment)
    return environment


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return {finding["name"]: finding for finding in json.loads(done.stdout.splitlines()[-1])}


def command(folder: Path, name: str, text: str) -> Path:
    """A stand-in for a command, which says this and no more."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


def apart(script: str) -> tuple[str, ...]:
    """What runs a command after a script that may mount and rename as it likes; skips where it may not."""
    prefix = ("unshare", "--mount", "--uts", "sh", "-c", f'{script} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare --mount, as root")
    return prefix
