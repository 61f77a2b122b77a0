"""Tests without the settings of the user who runs them; a Python without an MPI."""

import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata import launch


@pytest.fixture(autouse=True)
def _no_thread_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch.THREADS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a Python that has our packages, but no MPI beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare/bin/python"
