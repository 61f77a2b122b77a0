"""The README shows what the program does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import CONSOLE, PYTORCH, QUOTED, README, ROOT, with_file, with_output

TEXT = README.read_text()
CONSOLE_BLOCKS = [block for block in CONSOLE.finditer(TEXT) if "compare" not in block[1]]
COMPARISONS = [block for block in CONSOLE.finditer(TEXT) if "compare" in block[1]]


@pytest.mark.parametrize("block", CONSOLE_BLOCKS, ids=lambda block: block[1])
def test_a_command_prints_what_the_readme_shows(block: re.Match[str]) -> None:
    assert with_output(block) == block[0]


@pytest.mark.slow
@pytest.mark.parametrize("block", COMPARISONS, ids=lambda block: block[1])
def test_a_comparison_prints_what_the_readme_shows(block: re.Match[str]) -> None:
    assert with_output(block) == block[0]


@pytest.mark.parametrize("block", list(QUOTED.finditer(TEXT)), ids=lambda block: block[2])
def test_a_quoted_file_matches_the_file(block: re.Match[str]) -> None:
    assert with_file(block) == block[0]


def test_the_ddp_script_in_the_documents_matches_the_file() -> None:
    (block,) = QUOTED.finditer(PYTORCH.read_text())
    assert with_file(block) == block[0]


def test_the_readme_has_blocks_to_check() -> None:
    assert len(CONSOLE_BLOCKS) >= 2
    assert len(COMPARISONS) >= 1
    assert len(list(QUOTED.finditer(TEXT))) >= 2


def test_the_loop_of_ones_own_runs_on_simulated_workers() -> None:
    command = [sys.executable, str(ROOT / "jobs" / "own_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.findall(r"round (\d+): quotas \[[ \d]+\], gap 0\.0", done.stdout) == ["100", "200", "300"]


def test_the_script_runs_on_simulated_workers() -> None:
    command = [sys.executable, str(ROOT / "jobs" / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"300 rounds, gap 0\.0\d+\n", done.stdout)


SNIPPETS = re.findall(r"```python\n(import .*?)```", (ROOT / "docs" / "scripts.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", SNIPPETS, ids=["minimize", "loop"])
def test_the_scripts_of_the_tutorial_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text.replace("workers=4", "times=mpi_ata.Sqrt(4)"))
    command = [sys.executable, "train.py"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert len(list(tmp_path.glob("runs/*.h5"))) == 1


def test_every_make_target_in_the_documents_exists() -> None:
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    documents = TEXT + (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"(?m)(?:^\$ |`)make ([\w-]+)", documents)
    assert {"run", "test"} <= set(named) <= set(targets)


def test_every_link_has_a_target() -> None:
    for document in [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
