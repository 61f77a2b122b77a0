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

from benchmarks import measuring
from jobs.cifar_ddp import network
from mpi_ata import SGD, ATAAuto, Task, TorchProblem, TorchUpdate, cluster, launch
from mpi_ata.arrays import Array, IntArray
from mpi_ata.torch.cifar100 import Images, read
from mpi_ata.torch.data import Epochs

FIRST = 5  # rounds that are not timed
RATE, MOMENTUM, DECAY = 0.02, 0.9, 5e-4
TEST_IMAGES = 2000


def seeded_network(seed: int) -> Any:
    """Return the network of jobs/cifar_ddp.py, with weights that depend on the seed alone."""
    torch.manual_seed(seed)
    return network()


def images(name: str, count: int | None = None) -> Images:
    """Return the images of a file: those for testing, or the first `count` for training."""
    records = read(os.environ["MPI_ATA_CIFAR"], f"{name}.bin")
    return Images(records[:TEST_IMAGES]) if name == "test" else Images(records[:count], augment=True)


def optimizer_of(model: Any) -> Any:
    """Return the optimizer of jobs/cifar_ddp.py."""
    return torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=DECAY)


def scheduler_of(optimizer: Any, rounds: int) -> Any:
    """Return a schedule that drops the step size twice."""
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [rounds // 2, 3 * rounds // 4], gamma=0.2)


def sleep_as_slow(began: float, slowness: float) -> None:
    """Sleep until something that began then has taken this many times as long on this thread's clock."""
    time.sleep((slowness - 1) * (time.thread_time() - began))


class Network(TorchProblem):
    """The network on CIFAR-100; the last worker is slow."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(
            lambda: seeded_network(options.seed),
            nn.functional.cross_entropy,
            images("train", options.images),
            options.batch,
            test=images("test"),
            metrics={"accuracy": TorchProblem.accuracy},
            logs=["loss"],
            shuffle="epoch",
            seed=options.seed,
        )
        self._slowness, self._last = options.slowness, -1

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
    problem = Network(options)
    with cluster(problem, seed=options.seed) as workers:
        update = TorchUpdate(optimizer_of, lambda found: scheduler_of(found, options.rounds))
        method = SGD(problem.x0, ATAAuto(workers.n, options.budget), problem.bind(update))
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
    model = nn.parallel.DistributedDataParallel(seeded_network(options.seed))
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer, options.rounds)
    data, slowness = images("train", options.images), options.slowness if rank == n - 1 else 1.0
    epochs, began = Epochs(len(data), options.batch, options.seed), time.perf_counter()
    for k in range(options.rounds + FIRST):
        if k == FIRST:
            torch.distributed.barrier()
            began = time.perf_counter()
        first = k * options.budget + sum(split[:rank])
        for j in range(split[rank]):
            with model.no_sync() if j < split[rank] - 1 else nullcontext():
                _batch(model, data, epochs.minibatch(first + j), n / options.budget, slowness)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    torch.distributed.barrier()
    elapsed = time.perf_counter() - began
    if rank == 0:
        _report(options, elapsed, _accuracy(model.module))
    torch.distributed.destroy_process_group()


def _batch(model: Any, data: Images, numbers: IntArray, share: float, slowness: float) -> None:
    """Add the gradient of one batch; DDP averages over ranks, so n / B of each gives the mean over B."""
    began = time.thread_time()
    inputs, targets = data.minibatch(numbers)
    loss = nn.functional.cross_entropy(model(inputs), targets) * share
    sleep_as_slow(began, slowness)
    began = time.thread_time()
    loss.backward()
    sleep_as_slow(began, slowness)


def _accuracy(model: Any) -> float:
    inputs, targets = images("test").minibatch(np.arange(TEST_IMAGES))
    with torch.no_grad():
        return float(TorchProblem.accuracy(model.eval()(inputs), targets))


def _report(options: argparse.Namespace, elapsed: float, accuracy: float) -> None:
    done = options.rounds * options.budget * options.batch
    print(json.dumps({"rate": done / elapsed, "accuracy": accuracy}), flush=True)


def main() -> None:
    """Do what the arguments say."""
    numbers = dict.fromkeys(("port", "budget", "batch", "rounds", "seed", "images"), 0)
    options = measuring.options(__doc__, "role", role="", split="", slowness=1.0, **numbers)
    (run_ddp if options.role == "ddp" else run_mpi_ata)(options)


if __name__ == "__main__":
    main()
