"""What tests of runs from Python share."""

import sys

import pytest


@pytest.fixture
def in_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run a script, as it does unless pytest has started it to share the work."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
