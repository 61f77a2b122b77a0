"""The private Slurm that the tests marked `cluster` run on: one for each process of pytest's."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.private import PrivateSlurm, private_slurm, why_not
from tests.slurm.site import Site


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    """A Slurm of five nodes; where it cannot be, tests skip and say why, but not in CI."""
    yield from running()


@pytest.fixture
def fresh_slurm() -> Iterator[PrivateSlurm]:
    """One for a single test, which may break it."""
    yield from running()


@pytest.fixture
def site(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[Site]:
    """A user's folder on the cluster; when its jobs are over, none of their processes is left anywhere."""
    found = Site(slurm, tmp_path, frozenset(slurm.processes()))
    try:
        yield found
        found.no_process()
    finally:
        found.leave()


def missing(reason: str) -> None:
    """Skip a test that something is missing for; in CI nothing may be."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def running() -> Iterator[PrivateSlurm]:
    if reason := why_not():
        missing(reason)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder,
        private_slurm(Path(folder)) as cluster,
    ):
        yield cluster
