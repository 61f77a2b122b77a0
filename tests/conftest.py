"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("patient", deadline=None)  # a busy machine is no reason to fail
settings.load_profile("patient")

# What Open MPI chooses in the end where all ranks are on one host.  Looking for networks first takes each of
# the thousands of ranks up to a second, most of which it sleeps.
os.environ.setdefault("OMPI_MCA_pml", "ob1")

# In some files one set-up serves many tests; the tests of hosts would all have the same addresses.
TOGETHER = ("test_methods_on_ranks.py", "test_paper_ratios.py", "test_hosts.py")


class Together(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Spreads tests over processes one by one, but those of some files stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith(TOGETHER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together | None:
    """Return how `--dist loadscope` spreads tests.

    Marks would do with `--dist loadgroup`, but pytest-xdist 3.8 ignores them silently from pytest 9.2 on.
    """
    return Together(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own: runs are kept in runs/ below the working folder."""
    monkeypatch.chdir(tmp_path)
