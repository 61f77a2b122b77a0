"""Images per second and accuracy on CIFAR-100 beside PyTorch's DDP, with equal workers and with a slow one.

MPI_ATA_CIFAR=FOLDER python -m benchmarks.torch_ddp [--workers 2] [--budget 8] [--batch 16] [--rounds 300]

All train the network of jobs/cifar_ddp.py, which has batch norm, on the same batches per step, one thread per
rank: DDP over gloo with as many batches on each rank, DDP with the split that is best for the known speeds,
and mpi_ata, which is told nothing. The last worker is as fast as the others, and then three times slower: it
sleeps twice as long as each of its batches took on its own core. Update and messages are in the time;
start-up, the first rounds and the final evaluation are not.
"""

import argparse
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from benchmarks import measuring
from mpi_ata.layout import ranks_for
from mpi_ata.view.text import table

CHILDREN = "benchmarks.torch_ddp_children"
DDP = ("DDP, equal split", "DDP, best split")


def main() -> None:
    """Print one table for equal speeds and one with a slow worker."""
    options = parsed(__doc__, rounds=300, images=50_000)
    rows = [row for slowness in (1.0, 3.0) for row in compare(options, slowness)]
    print(json.dumps(rows) if options.json else _table(rows))


def parsed(doc: str | None, **more: int) -> argparse.Namespace:
    """Return the options of a comparison, which needs the data set."""
    options = measuring.options(doc, json=False, workers=2, budget=8, batch=16, seed=0, **more)
    if "MPI_ATA_CIFAR" not in os.environ:
        raise SystemExit("name the folder of CIFAR-100's binary version in the variable MPI_ATA_CIFAR")
    return options


def compare(options: argparse.Namespace, slowness: float) -> list[dict[str, Any]]:
    """Return what each contender reaches where the last worker is this much slower."""
    n, B = options.workers, options.budget
    splits = [B // n] * n, best_split([1.0] * (n - 1) + [slowness], B)
    rows = [
        {"contender": name, "split": split, **measure(options, slowness, "ddp", split)}
        for name, split in zip(DDP, splits, strict=True)
    ]
    rows.append({"contender": "mpi_ata", "split": None, **measure(options, slowness, "mpi_ata", [])})
    return [{"slowness": slowness} | row for row in rows]


def best_split(times: Sequence[float], B: int) -> list[int]:
    """Return how B batches of these times are done soonest, at least one on each rank, as DDP needs."""
    split = [1] * len(times)
    for _ in range(B - len(times)):
        i = min(range(len(times)), key=lambda i: (split[i] + 1) * times[i])
        split[i] += 1
    return split


def measure(options: argparse.Namespace, slowness: float, role: str, split: list[int]) -> dict[str, Any]:
    """Run one contender, and return its images per second and its accuracy."""
    ranks = options.workers if role == "ddp" else ranks_for(options.workers)
    names = ("budget", "batch", "rounds", "seed", "images")
    shared = {name: vars(options)[name] for name in names}
    words = f"--split={','.join(map(str, split)) or 0}", f"--slowness={slowness}", f"--port={_free_port()}"
    found: dict[str, Any] = measuring.measured(ranks, CHILDREN, role, *words, **shared)
    if not found:
        raise SystemExit(f"{role} has failed; see above")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _table(rows: list[dict[str, Any]]) -> str:
    body = [
        [
            f"{row['slowness']:g}",
            row["contender"],
            "-" if row["split"] is None else " + ".join(map(str, row["split"])),
            f"{row['rate']:.1f}",
            *(f"{row['rate'] / _rate(rows, row['slowness'], name):.2f}" for name in DDP),
            f"{100 * row['accuracy']:.1f} %",
        ]
        for row in rows
    ]
    return table(body, ["slowness", "", "split", "images/s", "/ equal split", "/ best split", "accuracy"])


def _rate(rows: list[dict[str, Any]], slowness: float, contender: str) -> float:
    found = next(row for row in rows if (row["slowness"], row["contender"]) == (slowness, contender))
    return float(found["rate"])


if __name__ == "__main__":
    main()
