"""The tutorial docs/tutorials/slurm.md works as printed, on a Slurm of several nodes."""

import shlex
from pathlib import Path

import pytest

from tests.pages import DOCS, agrees, walk
from tests.slurm.private import until
from tests.slurm.site import OPEN_MPI, PATIENCE, Site, rounds_of

pytestmark = pytest.mark.cluster


def test_the_tutorial_works_as_printed(site: Site) -> None:
    path = f"{OPEN_MPI.parent}:{site.slurm.environment()['PATH']}"

    def run(command: str, folder: Path) -> str:
        if command.startswith(("mpi-ata watch", "mpi-ata stop")):  # a reader waits for the run to start
            until(lambda: rounds_of(folder / shlex.split(command)[2]) >= 0, PATIENCE)
        if "--resume" in command:  # and for a job to end
            until(lambda: not site.slurm.ask("squeue", "--noheader"), PATIENCE)
        return site.slurm.ask("bash", "-c", command, cwd=folder, seconds=PATIENCE, PATH=path)

    for block, printed in walk(DOCS / "tutorials" / "slurm.md", site.folder, run):
        assert agrees(block, printed), printed
    assert rounds_of(site.folder / "runs" / "long.h5") >= 200
    assert "warm-started" in site.ata("show", "runs/second.h5")
