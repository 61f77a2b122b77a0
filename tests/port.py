"""The port of a training script as docs/pytorch.md shows it; `python -m tests.port` writes it anew."""

import re
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEFORE, AFTER = "jobs/cifar_ddp.py", "jobs/cifar_trainer.py"
PAGE = ROOT / "docs" / "pytorch.md"
SHOWN = re.compile(r"(?<=```diff\n).*?(?=```)", re.DOTALL)


def port() -> str:
    """What differs between the script before and after the port, as `diff -U1` prints it."""
    before, after = ((ROOT / name).read_text().splitlines() for name in (BEFORE, AFTER))
    lines = unified_diff(before, after, BEFORE, AFTER, lineterm="", n=1)
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(SHOWN.sub(lambda _: port(), PAGE.read_text(), count=1))
