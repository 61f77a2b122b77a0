"""Runs what `make run` runs, and writes its table into README.md and its picture to docs/pictures/demo.png.

`python -m docs.demo` does so, on a machine that has nothing else to do.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mpi_ata.view.text import markdown_table, ratio, significant

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(?s)(<!-- demo -->\n).*?(<!-- end of demo -->)")
TIMES = {"clock": "clock [s]", "worker_time": "worker time [s]", "billed": "billed [s]"}
HEADER = ["allocator", *TIMES.values(), "wasted tasks", "clock / greedy", "worker time / greedy"]


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table of a comparison for the README."""
    (greedy,) = (row for row in rows if row["allocator"] == "gta")
    lines = []
    for row in rows:
        times = [significant(row[name], 4) for name in TIMES]
        ratios = [ratio(row[name], greedy[name]) for name in ("clock", "worker_time")]
        lines.append([f"`{row['allocator']}`", *times, f"{row['tasks_wasted']:,}", *ratios])
    return markdown_table(lines, HEADER)


if __name__ == "__main__":
    picture = str(ROOT / "docs" / "pictures" / "demo.png")
    words = ["compare", str(ROOT / "jobs" / "demo.toml"), "--json", "--output", picture]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mpi_ata", *words], stdout=subprocess.PIPE, text=True, check=True
    )
    table = table_of(json.loads(done.stdout.splitlines()[-1]))
    readme = ROOT / "README.md"
    readme.write_text(TABLE.sub(rf"\g<1>{table}\n\g<2>", readme.read_text()))
    print(table)
