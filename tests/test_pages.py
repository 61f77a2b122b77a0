"""The pages show what the program does: their files, commands, links and names are those of the project."""

import configparser
import math
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from mpi_ata.job import load_job
from tests.pages import DOCS, PAGES, README, ROOT, Block, agrees, blocks, quoted, run_here, walk

BLOCKS = [(page, block) for page in PAGES for block in blocks(page)]
QUOTED = [pytest.param(*pair, id=pair[1].file) for pair in BLOCKS if pair[1].use in ("file", "diff")]
NOT_RUN = "".join(block.text for _, block in BLOCKS if block.use == "not run").splitlines()
ALLOWED = {"make", "pip", "source", "module", "conda", "python", "salloc", "sbatch", "sinfo", "df", "export"}
FENCE = re.compile(r"(?ms)^ *```.*?^ *```")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize(("page", "block"), QUOTED)
def test_a_quoted_file_matches_the_file(page: Path, block: Block) -> None:
    rule = f"python -m tests.pages {page.relative_to(ROOT)} rewrites it"
    assert quoted(block.use, block.file) == block.text, rule


def test_the_port_leaves_model_data_optimizer_and_schedule_as_they_were() -> None:
    port = quoted("diff", "jobs/cifar_ddp.py jobs/cifar_trainer.py")
    removed = [line for line in port.splitlines() if line.startswith("-")]
    kept = ("nn.Conv2d", "augmented", "torch.optim.SGD", "LinearLR", "MultiStepLR", "SequentialLR(")
    assert not [line for line in removed for word in kept if word in line]


@pytest.mark.slow
def test_the_page_on_results_works_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for block, printed in walk(DOCS / "results.md", tmp_path, run_here):
        assert agrees(block, printed), printed


def test_only_what_installs_something_or_needs_a_cluster_is_not_run() -> None:
    commands = [line.removeprefix("$ ").split() for line in NOT_RUN if line.startswith("$ ")]
    assert {command[0] for command in commands} <= {"mpi-ata", *ALLOWED}
    assert {command[1] for command in commands if command[0] == "mpi-ata"} <= {"doctor", "submit"}


def test_the_readme_is_short_and_has_few_links() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 140
    assert len(re.findall(r"(?<!!)\[[^]]+\]\(", text)) <= 8


def output_of(folder: Path, *words: str) -> str:
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=variables, stdout=-1, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("own_loop", "".join(rf"round {k}: quotas \[[ \d]+\], gap 0\.0.*\n" for k in (100, 200, 300))),
        ("script", r"300 rounds, gap 0\.0\d+\n"),
    ],
)
def test_a_script_of_jobs_runs_on_simulated_workers(script: str, printed: str, tmp_path: Path) -> None:
    assert re.fullmatch(printed, output_of(tmp_path, str(ROOT / "jobs" / f"{script}.py")))


SNIPPETS = re.findall(r"```python\n(import .*?)```", (DOCS / "own-problem.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", SNIPPETS, ids=["minimize", "loop"])
def test_the_scripts_of_the_page_on_problems_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text.replace("workers=4", "times=mpi_ata.Sqrt(4)"))
    output_of(tmp_path, "train.py")
    assert len(list(tmp_path.glob("runs/*.h5"))) == 1


OTHER_TASKS = (DOCS / "methods.md").read_text().partition("## Tasks that are not gradients\n")[2]
PROBLEM, LOOP = re.findall(r"(?s)```python\n(.*?)```", OTHER_TASKS)
JOB = """
problem = {file = "my_problem.py", class = "Pi"}
method = {name = "map"}
allocator = {name = "ata-empirical", budget = 20}
times = {law = "sqrt"}
stop = {rounds = 100}
run = {workers = 4}
"""


def test_the_programs_with_tasks_that_are_not_gradients_run(tmp_path: Path) -> None:
    (tmp_path / "my_problem.py").write_text(PROBLEM)
    (tmp_path / "job.toml").write_text(JOB)
    printed = output_of(tmp_path, "-m", "mpi_ata", "run", "job.toml", "--virtual")
    (found,) = re.findall(r"(?m)^pi +([\d.]+)$", printed)
    # The standard error of 4 times a share of 100 x 20 x 10,000 points is 0.0004.
    assert float(found) == pytest.approx(math.pi, abs=0.002)
    (tmp_path / "loop.py").write_text(PROBLEM + LOOP)
    # Of 10 x 8 x 10,000 points it is 0.0018.
    assert float(output_of(tmp_path, "loop.py")) == pytest.approx(math.pi, abs=0.009)


def test_the_farm_of_the_page_on_farms_runs_on_simulated_workers(tmp_path: Path) -> None:
    (farm,) = (block.text for block in blocks(DOCS / "farm.md") if block.file == "farm.py")
    (tmp_path / "farm.py").write_text(farm.replace("workers=4", "times=mpi_ata.Sqrt(4)"))
    assert output_of(tmp_path, "farm.py") == "size 20: 0.893, size 100: 0.972; the limit is 1\n"


def test_every_make_target_in_the_documents_exists() -> None:
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    named = re.findall(
        r"(?m)(?:^\$ |`)make (?:[A-Z]+=\S+ )*([\w-]+)", "".join(page.read_text() for page in PAGES)
    )
    assert {"run", "test", "docs"} <= set(named) <= set(targets)


def test_every_extra_is_listed_and_exists() -> None:
    extras = configparser.ConfigParser()
    extras.read(ROOT / "setup.cfg")
    _, _, table = (DOCS / "start.md").read_text().partition("| extra | installs |")
    named = re.findall(r"`\[(\w+)\]`", table.partition("\n\n")[0])
    assert set(named) == set(extras["options.extras_require"])
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text(), "source .venv/bin/activate"


def test_the_jobs_whose_data_is_elsewhere_can_be_read() -> None:
    for job in ("digits", "cifar100"):
        assert load_job(ROOT / "jobs" / f"{job}.toml", ["problem.data=FOLDER"] * (job == "cifar100"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that hosting sites give to the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", page.read_text()))
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).replace("`", "").lower() for title in titles]
    names = [re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain]
    return {name for name, count in Counter(names).items() if count == 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for file, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"there is no {file}"
        assert not anchor or anchor in anchors(target), f"{file or page.name} has no heading {anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {README}
    while new:
        reached |= new
        links = {(page.parent / file).resolve() for page in new for file, _ in LINK.findall(page.read_text())}
        new = {link for link in links if link.suffix == ".md" and link.is_file()} - reached
    assert set(DOCS.rglob("*.md")) <= reached


def test_every_picture_is_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    shown = set(re.findall(r"pictures/([\w-]+\.png)", text))
    assert {each.name for each in (DOCS / "pictures").iterdir()} == shown


def test_the_page_on_architecture_names_a_few_files_that_exist() -> None:
    named = set(re.findall(r"`([a-z_/0-9]+\.py)`", (DOCS / "architecture.md").read_text()))
    assert [file for file in named if not (ROOT / "mpi_ata" / file).is_file()] == []
    assert len(named) <= 40
