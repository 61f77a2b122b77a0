"""Keep the pages true: their commands are run, from top to bottom, and files that they quote are compared.

A block of a page is run, quoted or saved by what it is:

- ```console: each line after `$ ` is run in one folder, which has a copy of jobs/; if the block shows an
  output, it is compared, where `...` stands for anything.
- `<!-- save: NAME -->` above a block: saved under this name in that folder.
- `<!-- file: NAME -->` above a block: the file of this name in the repository, as it is.
- `<!-- diff: NAME NAME -->` above a block: how two such files differ.
- `<!-- not run -->` above a block: left out.

`python -m tests.pages PAGE ...` rewrites quoted files, and outputs of single commands without `...`.
"""

import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from mpi_ata.launch import find_mpirun
from tests.mpi.starting import environment

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "packaging" / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?m)^(?:<!-- (file|diff|save|not run)(?:: (.+?))? -->\n)?```(\w*)\n((?:(?!```).*\n)*)```"
)
VARYING = re.compile(r"(?m)^(elapsed|saved|billed|energy) .*\n")  # lines of the table at the end of a run
NOTE = re.compile(r"(?m)^Note: .*\n")
LIMIT = 600.0  # seconds for one command


class Block(NamedTuple):
    """A block of code on a page: what is done with it, the file it is about, its language and text."""

    use: str
    file: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a block that is run."""
        lines = self.text.splitlines() if self.language == "console" and self.use != "not run" else []
        return [re.sub(" +# .*", "", line[2:]) for line in lines if line.startswith("$ ")]

    @property
    def output(self) -> str:
        """What the page says that the commands print; empty if it does not say."""
        lines = self.text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("$ "))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [Block(*(part or "" for part in found)) for found in BLOCK.findall(page.read_text())]


def agrees(block: Block, printed: str) -> bool:
    """Return whether commands print what the page shows; notes that it does not show may be printed too."""
    printed = printed if NOTE.search(block.output) else NOTE.sub("", printed)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return not block.output or doctest.OutputChecker().check_output(block.output, printed, options)


def walk(page: Path, folder: Path, run: Callable[[str, Path], str]) -> Iterator[tuple[Block, str]]:
    """Do what a page says in a folder, and yield each block of commands with what it printed."""
    shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(page):
        if block.use == "save":
            (folder / block.file).write_text(block.text)
        if block.commands:
            yield block, "".join(run(command, folder) for command in block.commands)


def run_here(command: str, folder: Path) -> str:
    """Run a command with the programs of this environment, and return what it prints on success."""
    variables = environment()
    programs = [str(Path(sys.executable).parent), str(Path(find_mpirun()).parent)]
    variables["PATH"] = os.pathsep.join([*programs, variables["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    notes = "".join(NOTE.findall(done.stderr))
    return VARYING.sub("", notes + done.stdout)


def rewrite(page: Path) -> None:
    """Bring quoted files and outputs of a page up to date."""
    page.write_text(BLOCK.sub(with_file, page.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        for block, printed in walk(page, Path(folder), run_here):
            if block.output and "..." not in block.output and len(block.commands) == 1:
                text = block.text.removesuffix(block.output) + printed
                page.write_text(page.read_text().replace(block.text, text))


def with_file(found: re.Match[str]) -> str:
    """Return a block, with the file that it quotes as it is now."""
    use, name, language, _ = found.groups()
    is_quoted = use in ("file", "diff")
    return f"<!-- {use}: {name} -->\n```{language}\n{quoted(use, name)}```" if is_quoted else found[0]


def quoted(use: str, name: str) -> str:
    """Return what a block quotes: a file, or how two of them differ, as `diff -U1` prints it."""
    if use == "file":
        return (ROOT / name).read_text()
    before, after = name.split()
    texts = [(ROOT / each).read_text().splitlines() for each in (before, after)]
    lines = unified_diff(texts[0], texts[1], before, after, lineterm="", n=1)
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
