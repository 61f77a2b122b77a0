"""Keeps the tables and figures on the paper true: they are those of real runs.

python -m tests.paper.document FOLDER ["PART OF A COMMAND" ...]

Runs the commands above places for results in docs/paper.md and README.md, or those that contain one of the
parts, and writes there what they print.  The run files are kept in FOLDER: what is there is not made again.
MPI_ATA_CIFAR names the folder with CIFAR-100.
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


def printed(arguments: str, folder: Path) -> str:
    """What a command of a document prints now."""
    stand_ins = {"FOLDER": os.environ.get("MPI_ATA_CIFAR", "FOLDER"), "results": str(folder)}
    words = [stand_ins.get(word, word) for word in shlex.split(arguments)]
    done = subprocess.run([COMMAND, *words, "--markdown"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def with_figure(text: str, folder: Path) -> str:
    """The same, with the figure taken over into the document's folder."""
    for name in re.findall(rf"\]\({re.escape(str(folder))}/(.*)\)", text):
        shrink(folder / name, FIGURES / name)
    return text.replace(f"]({folder}/", f"]({FIGURES.name}/")


def shrink(figure: Path, to: Path) -> None:
    """Copy a figure with few colours, which makes it small."""
    from PIL import Image

    to.parent.mkdir(exist_ok=True)
    with Image.open(figure) as image:
        image.convert("RGB").quantize(COLOURS).save(to, optimize=True)


def table_of(text: str) -> str:
    """The table alone."""
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("|"))


def written(text: str, folder: Path, parts: list[str]) -> str:
    """A document with results as they are now."""

    def with_results(block: re.Match[str]) -> str:
        head, arguments, kind, end = block.groups()
        if parts and not any(part in arguments for part in parts):
            return block[0]
        print(f"mpi-ata {arguments}", file=sys.stderr)
        text = printed(arguments, folder)
        return f"{head}{table_of(text) if kind == 'table' else with_figure(text, folder)}{end}"

    return RESULTS.sub(with_results, text)


if __name__ == "__main__":
    for document in (DOCUMENT, ROOT / "README.md"):
        document.write_text(written(document.read_text(), Path(sys.argv[1]), sys.argv[2:]))
