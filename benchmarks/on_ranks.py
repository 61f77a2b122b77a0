"""Clock, worker time and billed time on real ranks, beside what the virtual cluster predicts.

python -m benchmarks.on_ranks [rounds] [seconds per unit]

Runs jobs/emulated.toml, 16 workers of unequal speed that sleep, once with tasks that stop at once and once
with tasks that run to their end.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import ROOT, options
from mpi_ata.view.text import table

JOB = ROOT / "jobs" / "emulated.toml"
ALLOCATORS = {
    "ata-auto": ("name='ata-auto'",),
    "ata-auto, spares": ("name='ata-auto'", "spares='auto'"),
    "ata-empirical": (),
    "gta": ("name='gta'",),
    "uta": ("name='uta'",),
}
COSTS = ["clock [s]", "virtual", "worker time [s]", "virtual", "elapsed [s]", "billed [s]"]
HEADER = ["tasks", "allocator", *COSTS]


def run(settings: Sequence[str], *options: str) -> dict[str, Any]:
    """Return the summary of a run with these settings."""
    command = [sys.executable, "-m", "mpi_ata", "run", str(JOB), "--json", *options]
    command += [word for setting in settings for word in ("--set", setting)]
    with TemporaryDirectory() as folder:
        command += ["--out", str(Path(folder, "run.h5"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def row(stoppable: bool, name: str, settings: Sequence[str]) -> list[str]:
    """Return one row: an allocator on ranks, and simulated."""
    keys = [f"allocator.{key}" for key in ALLOCATORS[name]]
    keys += [*settings, f"times.stoppable={str(stoppable).lower()}"]
    real, virtual = run(keys), run(keys, "--virtual")
    return [
        "stop at once" if stoppable else "run to their end",
        name,
        *(f"{found[key]:.4g}" for key in ("clock", "worker_time") for found in (real, virtual)),
        *(f"{real[key]:.4g}" for key in ("elapsed", "billed")),
    ]


def main() -> None:
    """Print one table."""
    asked = options(__doc__, "rounds", "unit", rounds=300, unit=0.0)
    settings = [f"stop.rounds={asked.rounds}", *([f"times.unit={asked.unit}"] if asked.unit else [])]
    rows = [row(stoppable, name, settings) for stoppable in (True, False) for name in ALLOCATORS]
    print(table(rows, HEADER))


if __name__ == "__main__":
    main()
