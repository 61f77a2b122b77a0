"""Writes the results of real runs into the documents on the paper's experiments.

python -m tests.paper.document FOLDER ["PART OF A COMMAND" ...]

Runs the commands above the result blocks of docs/paper.md, or only those that contain one of the parts, and
replaces the blocks by what they print.  Run files are saved in FOLDER, and finished runs there
are not repeated.  MPI_ATA_CIFAR names the folder with CIFAR-100.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "paper.md"
FIGURES = ROOT / "docs" / "paper"
COMMAND = Path(sys.executable).with_name("mpi-ata")
RESULTS = re.compile(
    r"(```console\n\$ mpi-ata (paper .*)\n```\n\n<!-- (results|table) -->\n)(?:(?!<!--).*\n)*(<!-- end -->)"
)
COLOURS = 64  # of a figure in a document


def run_command(arguments: str, folder: Path) -> str:
    """Run a command of a document and return what it prints."""
    values = {"FOLDER": os.environ.get("MPI_ATA_CIFAR", "FOLDER"), "results": str(folder)}
    words = [values.get(word, word) for word in shlex.split(arguments)]
    done = subprocess.run([COMMAND, *words, "--markdown"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def copy_figure(text: str, folder: Path) -> str:
    """Copy the figure into the document's folder, and return the text with a link to it there."""
    for name in re.findall(rf"\]\({re.escape(str(folder))}/(.*)\)", text):
        shrink(folder / name, FIGURES / name)
    return text.replace(f"]({folder}/", f"]({FIGURES.name}/")


def shrink(figure: Path, to: Path) -> None:
    """Copy a figure with few colours, so that the file is small."""
    from PIL import Image

    to.parent.mkdir(exist_ok=True)
    with Image.open(figure) as image:
        image.convert("RGB").quantize(COLOURS).save(to, optimize=True)


def table_of(text: str) -> str:
    """Return only the table."""
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("|"))


def update(text: str, folder: Path, parts: list[str]) -> str:
    """Return a document with current results."""

    def with_results(block: re.Match[str]) -> str:
        head, arguments, kind, end = block.groups()
        if parts and not any(part in arguments for part in parts):
            return block[0]
        print(f"mpi-ata {arguments}", file=sys.stderr)
        text = run_command(arguments, folder)
        return f"{head}{table_of(text) if kind == 'table' else copy_figure(text, folder)}{end}"

    return RESULTS.sub(with_results, text)


if __name__ == "__main__":
    DOCUMENT.write_text(update(DOCUMENT.read_text(), Path(sys.argv[1]), sys.argv[2:]))
