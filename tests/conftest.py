"""What all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a busy machine is no reason to fail
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own: runs are kept in runs/ below the working folder."""
    monkeypatch.chdir(tmp_path)
