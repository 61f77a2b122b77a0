"""Keeps README.md true: its console blocks, quoted files and tables are made by what they show.

`python -m tests.readme` writes it anew; the tests hold it to that.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
COMMAND = Path(sys.executable).with_name("mpi-ata")
CONSOLE = re.compile(r"```console\n\$ (mpi-ata (?:run|compare) [^#\n]*--virtual[^#\n]*)\n(?:(?!```).*\n)*```")
QUOTED = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n)(?:(?!```).*\n)*```")


def output_of(command: str) -> str:
    """What a command of the README prints, with the elapsed time left out."""
    words = shlex.split(command)
    done = subprocess.run([COMMAND, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    return re.sub(r"(?m)^(elapsed|saved) .*\n", "", done.stdout)


def with_output(block: re.Match[str]) -> str:
    """A console block with what its command prints now."""
    return f"```console\n$ {block[1]}\n{output_of(block[1])}```"


def with_file(block: re.Match[str]) -> str:
    """A block that quotes a file, with the file as it is now."""
    return f"{block[1]}{(ROOT / block[2]).read_text()}```"


if __name__ == "__main__":
    text = QUOTED.sub(with_file, README.read_text())
    README.write_text(CONSOLE.sub(with_output, text))
