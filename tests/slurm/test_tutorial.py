"""The page docs/slurm.md works as printed, on a Slurm of several nodes; its batch script is correct."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import DOCS, ROOT, agrees, blocks, walk
from tests.slurm.private import until
from tests.slurm.site import OPEN_MPI, PATIENCE, Site, rounds_of

PAGE = DOCS / "slurm.md"


@pytest.mark.cluster
def test_the_page_works_as_printed(site: Site) -> None:
    path = f"{OPEN_MPI.parent}:{site.slurm.environment()['PATH']}"

    def run(command: str, folder: Path) -> str:
        if command.startswith(("mpi-ata watch", "mpi-ata stop")):  # a reader waits for the run to start
            until(lambda: rounds_of(folder / shlex.split(command)[2]) >= 0, PATIENCE)
        if "--resume" in command:  # and for a job to end
            until(lambda: not site.slurm.ask("squeue", "--noheader"), PATIENCE)
        return site.slurm.ask("bash", "-c", command, cwd=folder, seconds=PATIENCE, PATH=path)

    for block, printed in walk(PAGE, site.folder, run):
        assert agrees(block, printed), printed
    assert rounds_of(site.folder / "runs" / "long.h5") >= 200
    assert "warm-started" in site.ata("show", "runs/second.h5")


def test_the_batch_script_is_correct_and_asks_slurm_for_the_same_as_the_example() -> None:
    (script,) = [block.text for block in blocks(PAGE) if block.language == "bash"]
    options = ("--open-mode=append", "--requeue", "--signal=B:USR1@60", "--output=slurm-%j.out")
    for text in (script, (ROOT / "slurm" / "run.sbatch").read_text()):
        assert all(f"#SBATCH {option}" in text for option in options)
        assert "\ntrap '' USR1" in text
        assert "\nexec mpi-ata batch " in text
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    words = ["shellcheck", "--exclude=SC1091", "-"]  # the environment is not there to be followed
    done = subprocess.run(words, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
