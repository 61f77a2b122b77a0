"""The ranks of benchmarks.torch_ddp: DDP by hand, and mpi_ata."""

import argparse
import json
import os
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from mpi_ata import SGD, ATAAuto, Task, TorchProblem, cluster, launch
from mpi_ata.arrays import Array
from mpi_ata.torch import NamedTorchUpdate
from mpi_ata.torch.cifar import Images, read

FIRST = 5  # rounds that are not timed
RATE, MOMENTUM = 0.02, 0.9
TEST_IMAGES = 2000


def network() -> Any:
    """Return a small convolutional network with batch norm."""
    torch.manual_seed(0)
    layers: list[Any] = []
    for channels, more in [(3, 32), (32, 64), (64, 128)]:
        layers += [nn.Conv2d(channels, more, 3, padding=1, bias=False), nn.BatchNorm2d(more), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 100))


def images(name: str) -> Images:
    """Return the images of a file."""
    records = read(os.environ["MPI_ATA_CIFAR"], f"{name}.bin")
    return Images(records[:TEST_IMAGES]) if name == "test" else Images(records, augment=True)


def sleep_as_slow(began: float, slowness: float) -> None:
    """Sleep until something that began then has taken this many times as long on this thread's clock."""
    time.sleep((slowness - 1) * (time.thread_time() - began))


class Network(TorchProblem):
    """The network on CIFAR-100; the last worker is slow."""

    def __init__(self, batch: int, slowness: float) -> None:
        super().__init__(
            network,
            nn.functional.cross_entropy,
            images("train"),
            batch,
            test=images("test"),
            metrics={"accuracy": TorchProblem.accuracy},
            logs=["loss"],
        )
        self._slowness, self._last = slowness, -1

    def setup(self, worker: int | None, n: int) -> None:
        """Note who is the last worker."""
        super().setup(worker, n)
        self._last = n - 1

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient over one batch."""
        began = time.thread_time()
        result = super().gradient(x, task)
        if task.worker == self._last:
            sleep_as_slow(began, self._slowness)
        return result


def run_mpi_ata(options: argparse.Namespace) -> None:
    """Train with an allocator that is told nothing about speeds."""
    problem = Network(options.batch, options.slowness)
    with cluster(problem) as workers:
        update = problem.bind(NamedTorchUpdate("SGD", RATE, momentum=MOMENTUM))
        method = SGD(problem.x0, ATAAuto(workers.n, options.budget), update)
        began = time.perf_counter()
        for k in range(options.rounds + FIRST):
            if k == FIRST:
                began = time.perf_counter()
            method.step(workers)
        elapsed = time.perf_counter() - began
        _report(options, elapsed, problem.evaluate(method.x)["accuracy"])


def run_ddp(options: argparse.Namespace) -> None:
    """Train with DDP; each rank does its share of the batches of a step."""
    torch.set_num_threads(1)
    split = [int(count) for count in options.split.split(",")]
    rank, n = launch.rank(), len(split)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{options.port}", rank=rank, world_size=n)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    slowness, data, began = options.slowness if rank == n - 1 else 1.0, images("train"), time.perf_counter()
    for k in range(options.rounds + FIRST):
        if k == FIRST:
            torch.distributed.barrier()
            began = time.perf_counter()
        for j in range(split[rank]):
            with model.no_sync() if j < split[rank] - 1 else nullcontext():
                _batch(model, data, np.random.default_rng([k, rank, j]), options, n, slowness)
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.barrier()
    elapsed = time.perf_counter() - began
    if rank == 0:
        _report(options, elapsed, _accuracy(model.module))
    torch.distributed.destroy_process_group()


def _batch(model: Any, data: Images, rng: Any, options: argparse.Namespace, n: int, slowness: float) -> None:
    """Add the gradient of one batch; DDP averages over ranks, so n / B of each gives the mean over B."""
    began = time.thread_time()
    inputs, targets = data.batch(rng.integers(0, len(data), options.batch))
    loss = nn.functional.cross_entropy(model(inputs), targets) * n / options.budget
    sleep_as_slow(began, slowness)
    began = time.thread_time()
    loss.backward()
    sleep_as_slow(began, slowness)


def _accuracy(model: Any) -> float:
    inputs, targets = images("test").batch(np.arange(TEST_IMAGES))
    with torch.no_grad():
        return float(TorchProblem.accuracy(model.eval()(inputs), targets))


def _report(options: argparse.Namespace, elapsed: float, accuracy: float) -> None:
    done = options.rounds * options.budget * options.batch
    print(json.dumps({"rate": done / elapsed, "accuracy": accuracy}), flush=True)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["mpi_ata", "ddp"])
    parser.add_argument("--split", default="")
    parser.add_argument("--slowness", type=float, default=1.0)
    for name in ("port", "budget", "batch", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    (run_ddp if options.role == "ddp" else run_mpi_ata)(options)


if __name__ == "__main__":
    main()
