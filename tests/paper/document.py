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
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "paper.md"
FIGURES = ROOT / "docs" / "paper"
COMMAND = Path(sys.executable).with_name("mpi-ata")
RESULTS = re.compile(
    r"(```console\n\$ mpi-ata (paper .*)\n```\n\n<!-- results -->\n)(?:(?!<!--).*\n)*(<!-- end -->)"
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
    return re.sub(r"!\[.*?\]", "![the curves]", text.replace(f"]({folder}/", f"]({FIGURES.name}/"))


def shrink(figure: Path, to: Path) -> None:
    """Copy a figure with few colours, so that the file is small."""
    from PIL import Image

    to.parent.mkdir(exist_ok=True)
    with Image.open(figure) as image:
        image.convert("RGB").quantize(COLOURS).save(to, optimize=True)


KEYS = ("law", "n", "B", "prior rounds")  # columns that say which runs are compared
OTHERS = ("paper", "virtual")  # columns that ours are compared with
DROPPED = ("rounds", "off by", "slope against ln k")  # columns that readers can do without
SAID = "worker time, gta over x / runtime, x over gta"  # of cells: at the beginning of the page
MEASURED = "- (Leaving out|The target was not reached)"  # notes on these very runs; the page says the rest


def compact(text: str) -> str:
    """Return results with one row for each number of workers, not one for each run, and fewer notes."""
    title, text = text.split("\n", 1)
    lines = [line for line in text.splitlines() if not line.startswith("- ") or re.match(MEASURED, line)]
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    several = len({tuple(cells_of(table[0], row, KEYS)) for row in table[2:]}) > 1
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rest = [line for line in lines[first:] if not line.startswith("|")]
    settings = title.partition(": ")[2] + "."  # the heading of the page says what the paper calls it
    shown = pivoted(table) if several else narrowed(table)
    lines = [settings[0].upper() + settings[1:], *lines[:first], *shown, *rest]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def narrowed(table: list[list[str]]) -> list[str]:
    """Return a table without the columns that say which runs are compared, where all rows have the same."""
    kept = [column for column, name in enumerate(table[0]) if name not in (*KEYS, *DROPPED)]
    first, *others = [f"| {' | '.join(row[column] for column in kept)} |" for row in (table[0], *table[2:])]
    return [first, "|---" * len(kept) + "|", *others]


def cells_of(header: list[str], row: list[str], names: Sequence[str]) -> list[str]:
    """Return the cells of some columns."""
    return [cell for name, cell in zip(header, row, strict=True) if name in names]


def pivoted(table: list[list[str]]) -> list[str]:
    """Return a table with a column for each allocator, but for one that all others are compared with."""
    header, rows = table[0], table[2:]
    keys, values = [name for name in header if name in KEYS], dict[str, list[str]]()
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key, (allocator,) = tuple(cells_of(header, row, KEYS)), cells_of(header, row, ["allocator"])
        cell = value_of(header, row)
        found.setdefault(key, {})[allocator] = cell
        values.setdefault(allocator, []).append(cell)
    names = [name for name, cells in values.items() if set("".join(cells)) - set("1.0/")]
    shown = value_of(header, [name.replace(" / ", " over ") for name in header]).replace("/", " / ")
    lines = [[*keys, *names]]
    lines += [[*key, *(cells.get(name, "") for name in names)] for key, cells in found.items()]
    first, *others = [f"| {' | '.join(line)} |" for line in lines]
    cells = [] if shown.removesuffix(" (paper / paper)") == SAID else [f"Cells: {shown}.", ""]
    return [*cells, first, "|---" * len(lines[0]) + "|", *others]


def value_of(header: list[str], row: list[str]) -> str:
    """Return the values of a row, and in brackets those that they are compared with."""
    cells = list(zip(header, row, strict=True))
    own = [cell for name, cell in cells if name not in (*KEYS, *DROPPED, *OTHERS, "allocator")]
    others = [cell for name, cell in cells if name in OTHERS and cell != "-"]
    return "/".join(own) + (f" ({'/'.join(others)})" if others else "")


def update(text: str, folder: Path, parts: list[str]) -> str:
    """Return a document with current results."""

    def with_results(block: re.Match[str]) -> str:
        head, arguments, end = block.groups()
        if parts and not any(part in arguments for part in parts):
            return block[0]
        print(f"mpi-ata {arguments}", file=sys.stderr)
        text = run_command(arguments, folder)
        return f"{head}{compact(copy_figure(text, folder))}{end}"

    return RESULTS.sub(with_results, text)


if __name__ == "__main__":
    DOCUMENT.write_text(update(DOCUMENT.read_text(), Path(sys.argv[1]), sys.argv[2:]))
