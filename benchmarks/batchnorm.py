"""Accuracy with batch norm beside PyTorch's DDP, on the same images of CIFAR-100, over several seeds.

MPI_ATA_CIFAR=FOLDER python -m benchmarks.batchnorm [--seeds 5] [--images 5000] [--rounds 400]

The network and the steps are those of benchmarks.torch_ddp. DDP normalises by the batch of each rank and
keeps the running statistics of rank 0 (broadcast_buffers); mpi_ata normalises by the batch of each task and
averages the statistics over all tasks of a round.
"""

import argparse
import json
from statistics import mean, stdev
from typing import Any

from benchmarks.torch_ddp import measure, parsed
from mpi_ata.view.text import table

CONTENDERS = {"DDP": "ddp", "mpi_ata": "mpi_ata"}


def main() -> None:
    """Print the accuracy of each contender for each seed, and mean and spread over seeds."""
    options = parsed(__doc__, seeds=5, rounds=400, images=5_000)
    found = {name: accuracies(options, role) for name, role in CONTENDERS.items()}
    print(json.dumps(found) if options.json else _table(found))


def accuracies(options: argparse.Namespace, role: str) -> list[float]:
    """Return the accuracy that one contender reaches with each seed."""
    n, B = options.workers, options.budget
    split = [B // n] * n if role == "ddp" else []
    found: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        options.seed = seed
        found.append(measure(options, 1.0, role, split))
    return [row["accuracy"] for row in found]


def _table(found: dict[str, list[float]]) -> str:
    body = [
        [name, *(f"{100 * value:.1f}" for value in [*row, mean(row), _spread(row)])]
        for name, row in found.items()
    ]
    seeds = [f"seed {seed}" for seed in range(len(next(iter(found.values()))))]
    return table(body, ["accuracy [%]", *seeds, "mean", "spread"])


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
