"""Seconds per step of DDP with an equal split, with the best one, and with Balance, on emulated GPUs.

python -m benchmarks.balance [--workers 6] [--per-worker 4] [--rounds 40] [--scale 0.4] [--trainers]

All train the same small network with the same micro-batches, 4 per rank and step on average, over gloo. The
ranks emulate K80s, P100s and V100s training ResNet-50 (see mpi_ata/times/machines), and then equally fast
V100s: a micro-batch sleeps until it has taken as long as it would there, times --scale, so a few cores can
emulate many GPUs. Balance is told nothing about speeds; a second one starts with what the first has learned.
All steps but the first count, those in which Balance learns too. --trainers compares Hugging Face's and
Lightning's instead: see benchmarks/balance_trainers.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.balance_children import law
from benchmarks.balance_trainers import compare_trainers
from benchmarks.measuring import ROOT
from benchmarks.torch_ddp import best_split
from mpi_ata.view.text import table

CHILDREN = "benchmarks.balance_children"
TIMEOUT = 3600  # seconds for one contender
SPEEDS = ("K80, P100, V100", "equal")


def main() -> None:
    """Print one table for unequal speeds and one for equal ones."""
    numbers = {"workers": 6, "per_worker": 4, "rounds": 40, "scale": 0.4}
    options = measuring.options(__doc__, json=False, trainers=False, **numbers)
    if options.trainers:
        print(compare_trainers(options.rounds, options.json))
        return
    rows = [row for speeds in SPEEDS for row in compare(options, speeds)]
    print(json.dumps(rows) if options.json else _table(rows))


def compare(options: argparse.Namespace, speeds: str) -> list[dict[str, Any]]:
    """Return what each contender reaches with ranks of these speeds."""
    n, budget = options.workers, options.workers * options.per_worker
    means = law(n, options.scale, speeds == "equal").means
    best = best_split(means.tolist(), budget)
    splits = {"DDP, equal split": [options.per_worker] * n, "DDP, best split": best}
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            name: measure(options, speeds, Path(folder), split)
            for name, split in splits.items()
            if min(split)
        }
        rows["Balance"] = measure(options, speeds, Path(folder), [])
        rows["Balance, warm start"] = measure(options, speeds, Path(folder), [])
    return [{"speeds": speeds, "contender": name} | row for name, row in rows.items()]


def measure(options: argparse.Namespace, speeds: str, folder: Path, split: list[int]) -> dict[str, Any]:
    """Run one contender on its ranks, and return what rank 0 reports."""
    budget = options.workers * options.per_worker
    arguments = {
        "folder": folder,
        "workers": options.workers,
        "budget": budget,
        "rounds": options.rounds,
        "scale": options.scale,
        "equal": int(speeds == "equal"),
        "split": ",".join(map(str, split)),
    }
    command = [sys.executable, "-m", CHILDREN, *(f"--{name}={value}" for name, value in arguments.items())]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    processes = [
        subprocess.Popen([*command, f"--rank={rank}"], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        for rank in range(options.workers)
    ]
    answers = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    (folder / "group").unlink(missing_ok=True)
    if any(process.returncode for process in processes):
        raise SystemExit("a rank has failed; see above")
    found: dict[str, Any] = json.loads(answers[0])
    return found


def _table(rows: list[dict[str, Any]]) -> str:
    heads = ["speeds", "", "s / step", "speedup", "2nd half", "last split", "last loss", "largest difference"]
    equal = {row["speeds"]: row for row in reversed(rows)}  # the first one of each
    return table([_cells(row, equal[row["speeds"]]) for row in rows], heads)


def _cells(row: dict[str, Any], equal: dict[str, Any]) -> list[str]:
    """Return a row of the table; `equal` is that of DDP with an equal split."""
    differences = [abs(a / b - 1) for a, b in zip(row["losses"], equal["losses"], strict=True)]
    return [
        row["speeds"],
        row["contender"],
        f"{row['step']:.3f}",
        *(f"{equal[key] / row[key]:.2f}" for key in ("step", "late_step")),
        " + ".join(map(str, row["quota"])),
        f"{row['losses'][-1]:.4f}",
        f"{max(differences):.0e}",
    ]


if __name__ == "__main__":
    main()
