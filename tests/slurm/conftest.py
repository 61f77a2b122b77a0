"""The private Slurm for tests marked `cluster`: one per pytest process."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.private import PrivateSlurm, private_slurm, why_not
from tests.slurm.site import Site


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    """Start a Slurm of five nodes; if that is not possible, skip the test, or fail it in CI."""
    yield from running()


@pytest.fixture
def fresh_slurm() -> Iterator[PrivateSlurm]:
    """Start a Slurm for a single test, which may break it."""
    yield from running()


@pytest.fixture
def site(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[Site]:
    """Return a user's folder on the cluster, and check that its jobs leave no process behind."""
    found = Site(slurm, tmp_path, frozenset(slurm.processes()))
    try:
        yield found
        found.check_no_process_left()
    finally:
        found.cancel_all()


def missing(reason: str) -> None:
    """Skip a test whose requirements are missing; fail it in CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def running() -> Iterator[PrivateSlurm]:
    """Yield a private Slurm while it is up."""
    if reason := why_not():
        missing(reason)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder,
        private_slurm(Path(folder)) as cluster,
    ):
        yield cluster
