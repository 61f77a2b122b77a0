"""The pages on kinds of clusters, docs/sites: batch scripts are correct, and it is said what was tried."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import DOCS, ROOT, blocks

PAGES = sorted((DOCS / "sites").glob("*.md"))
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def script_of(page: Path) -> str:
    """Return the batch script of a page."""
    (script,) = [block.text for block in blocks(page) if block.language == "bash"]
    return script


@by_page
def test_a_page_says_what_was_tried_and_the_overview_lists_it(page: Path) -> None:
    assert "\nTemplate. Tried on: " in page.read_text()
    assert f"(sites/{page.name})" in (DOCS / "sites.md").read_text()


@by_page
def test_a_batch_script_is_correct_and_asks_slurm_for_the_same_as_the_example(page: Path) -> None:
    options = ("--open-mode=append", "--requeue", "--signal=B:USR1@60", "--output=slurm-%j.out")
    for text in (script_of(page), (ROOT / "slurm" / "run.sbatch").read_text()):
        assert all(f"#SBATCH {option}" in text for option in options)
        assert "\ntrap '' USR1" in text
        assert "\nexec mpi-ata batch " in text
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    words = ["shellcheck", "--exclude=SC1091", "-"]  # the environment is not there to be followed
    done = subprocess.run(words, input=script_of(page), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
