"""Running the doctor in changed environments."""

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
from mpi_ata.launch.mpirun import loaded_library

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
    """Run the real command, with another Python, prefix, folder or environment."""
    return _run([*prefix, str(python), "-m", "mpi_ata", "doctor", *options], cwd, environment)


def machine_finding(check: str, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what one check of the machine finds, with another prefix; no ranks are started."""
    asking = f"import dataclasses, json; from mpi_ata.doctor import checks; found = checks.{check}()"
    code = f"{asking}; print(json.dumps(dataclasses.asdict(found)))"
    done = _run([*prefix, sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    finding: dict[str, Any] = json.loads(done.stdout)
    return finding


def _run(
    command: list[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([*site.getsitepackages(), str(ROOT)])
    changed = os.environ | {"PYTHONPATH": paths} | dict(environment or {})
    return subprocess.run(command, env=changed, cwd=cwd, capture_output=True, text=True, timeout=120)


def mpi_defaults() -> dict[str, str]:
    """Return the environment variables that mpirun needs here."""
    environment: dict[str, str] = {}
    launch.set_mpi_defaults(environment)
    return environment


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the findings of a doctor run with --json, by name."""
    assert done.stdout, done.stderr
    return {finding["name"]: finding for finding in json.loads(done.stdout.splitlines()[-1])}


def problem(name: str, **options: Any) -> dict[str, Any]:
    """Return the finding of this name of a doctor that reports a problem."""
    done = run_doctor("--json", **options)
    finding: dict[str, Any] = findings(done)[name]
    assert (done.returncode, finding["ok"]) == (1, False)
    return finding


def fake_mpirun(folder: Path, of_the_same: bool) -> dict[str, str]:
    """Create an mpirun of the loaded MPI or of another; return an environment in which it is found."""
    loaded = loaded_library()
    text = OPEN_MPI if ("Open MPI" in loaded.version) == of_the_same else HYDRA
    path = fake_command(folder, "mpirun", text).parent
    return {"PATH": f"{path}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(Path(loaded.path).parent)}


def fake_command(folder: Path, name: str, text: str) -> Path:
    """Create a command that only prints this text."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


def in_namespace(script: str) -> tuple[str, ...]:
    """Return a prefix that runs a command after a script in a namespace of its own, or skip the test."""
    prefix = ("unshare", "--mount", "--uts", "sh", "-c", f'{script} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare --mount, as root")
    return prefix
