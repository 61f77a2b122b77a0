"""Keep README.md true: its console blocks and quoted files are generated from what they show.

`python -m tests.readme` rewrites them, and the file that docs/pytorch.md quotes; the tests check that they
are up to date.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PYTORCH = ROOT / "docs" / "pytorch.md"
COMMAND = Path(sys.executable).with_name("mpi-ata")
CONSOLE = re.compile(r"```console\n\$ (mpi-ata (?:run|compare) [^#\n]*--virtual[^#\n]*)\n(?:(?!```).*\n)*```")
QUOTED = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n)(?:(?!```).*\n)*```")


def output_of(command: str) -> str:
    """Return what a command of the README prints, without the lines that vary from run to run."""
    words = shlex.split(command)
    done = subprocess.run([COMMAND, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    return re.sub(r"(?m)^(elapsed|saved) .*\n", "", done.stdout)


def with_output(block: re.Match[str]) -> str:
    """Return a console block with what its command prints now."""
    return f"```console\n$ {block[1]}\n{output_of(block[1])}```"


def with_file(block: re.Match[str]) -> str:
    """Return a block that quotes a file, with the file as it is now."""
    return f"{block[1]}{(ROOT / block[2]).read_text()}```"


if __name__ == "__main__":
    PYTORCH.write_text(QUOTED.sub(with_file, PYTORCH.read_text()))
    text = QUOTED.sub(with_file, README.read_text())
    README.write_text(CONSOLE.sub(with_output, text))
