"""The job of the tests of the command line."""

from pathlib import Path

import pytest

from tests.cli.commands import JOB


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)
