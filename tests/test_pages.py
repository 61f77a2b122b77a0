"""The pages show what the program does: their files, commands, links and names are those of the project."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.job import load_job
from tests.pages import DOCS, PAGES, README, ROOT, agrees, blocks, run_here, walk

QUOTED = [(page, block) for page in PAGES for block in blocks(page) if block.use == "file"]
NOT_RUN = [block for page in PAGES for block in blocks(page) if block.use == "not run"]


@pytest.mark.parametrize(("page", "block"), QUOTED, ids=[block.file for _, block in QUOTED])
def test_a_quoted_file_matches_the_file(page: Path, block: tuple[str, str, str, str]) -> None:
    _, file, _, text = block
    assert (ROOT / file).read_text() == text, f"python -m tests.pages {page.relative_to(ROOT)} rewrites it"


def test_the_tutorial_on_results_works_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for block, printed in walk(DOCS / "tutorials" / "results.md", tmp_path, run_here):
        assert agrees(block, printed), printed


def test_only_what_installs_something_or_needs_a_cluster_is_not_run() -> None:
    lines = "".join(block.text for block in NOT_RUN).splitlines()
    commands = [line.removeprefix("$ ").partition(" ")[0] for line in lines if line.startswith("$ ")]
    allowed = {
        "make",
        "pip",
        "source",
        "module",
        "conda",
        "python",
        "salloc",
        "sbatch",
        "sinfo",
        "df",
        "export",
    }
    assert set(commands) - {"mpi-ata"} <= allowed
    assert {line.split()[2] for line in lines if line.startswith("$ mpi-ata")} <= {"doctor", "submit"}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_the_loop_of_ones_own_runs_on_simulated_workers() -> None:
    command = [sys.executable, str(ROOT / "jobs" / "own_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.findall(r"round (\d+): quotas \[[ \d]+\], gap 0\.0", done.stdout) == ["100", "200", "300"]


def test_the_script_runs_on_simulated_workers() -> None:
    command = [sys.executable, str(ROOT / "jobs" / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"300 rounds, gap 0\.0\d+\n", done.stdout)


SNIPPETS = re.findall(r"```python\n(import .*?)```", (DOCS / "scripts.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", SNIPPETS, ids=["minimize", "loop"])
def test_the_scripts_of_the_page_on_scripts_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text.replace("workers=4", "times=mpi_ata.Sqrt(4)"))
    command = [sys.executable, "train.py"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert len(list(tmp_path.glob("runs/*.h5"))) == 1


def test_every_make_target_in_the_documents_exists() -> None:
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    named = re.findall(
        r"(?m)(?:^\$ |`)make (?:[A-Z]+=\S+ )*([\w-]+)", "".join(page.read_text() for page in PAGES)
    )
    assert {"run", "test", "docs"} <= set(named) <= set(targets)


def test_every_extra_is_listed_and_exists() -> None:
    extras = configparser.ConfigParser()
    extras.read(ROOT / "setup.cfg")
    _, _, table = (DOCS / "installation.md").read_text().partition("| extra | installs |")
    named = re.findall(r"`\[(\w+)\]`", table.partition("\n\n")[0])
    assert set(named) == set(extras["options.extras_require"])
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text(), "source .venv/bin/activate"


def test_the_jobs_whose_data_is_elsewhere_can_be_read() -> None:
    for job in ("digits", "cifar100"):
        assert load_job(ROOT / "jobs" / f"{job}.toml", ["problem.data=FOLDER"] * (job == "cifar100"))
