"""The README shows what the program does."""

import re
import subprocess
import sys

import pytest

from tests.readme import CONSOLE, QUOTED, README, ROOT, with_file, with_output

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


def test_the_readme_has_blocks_to_check() -> None:
    assert len(CONSOLE_BLOCKS) >= 2
    assert len(COMPARISONS) >= 1
    assert len(list(QUOTED.finditer(TEXT))) >= 2


def test_the_loop_of_ones_own_runs_on_simulated_workers() -> None:
    command = [sys.executable, str(ROOT / "jobs" / "own_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.findall(r"round (\d+): quotas \[[ \d]+\], gap 0\.0", done.stdout) == ["100", "200", "300"]


def test_every_make_target_in_the_documents_exists() -> None:
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    documents = TEXT + (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"(?m)(?:^\$ |`)make ([\w-]+)", documents)
    assert {"run", "test"} <= set(named) <= set(targets)


def test_every_link_has_a_target() -> None:
    for document in [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
