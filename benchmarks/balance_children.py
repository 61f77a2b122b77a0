"""The ranks of benchmarks.balance: DDP with given shares, and Balance."""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import mpi_ata
from benchmarks import measuring
from mpi_ata.times.recorded import Lognormal, gpu_generations
from mpi_ata.torch.data import Epochs

SAMPLES, BATCH, FEATURES = 4096, 16, 32


def law(n: int, scale: float, equal: bool) -> Lognormal:
    """Return how long micro-batches take on each rank, in seconds."""
    unequal = gpu_generations(n, scale=scale)
    return Lognormal(np.full(n, gpu_generations(3, scale=scale).means.min()), 0.03) if equal else unequal


class Rank:
    """One rank: a network, its data, and a GPU that it pretends to have."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        layers = nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        self.torch, self.options = torch, options
        self.model: Any = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        inputs = torch.randn(SAMPLES, FEATURES)
        self.data = torch.utils.data.TensorDataset(inputs, inputs.prod(1, keepdim=True) + inputs[:, :1])
        self.law = law(options.workers, options.scale, bool(options.equal))
        self._rng = np.random.default_rng(options.rank)

    def loss(self, batch: Any) -> Any:
        """Return the loss of a micro-batch, after its forward pass."""
        inputs, targets = batch
        return self.torch.nn.functional.mse_loss(self.model(inputs), targets)

    def sleep(self, began: float) -> None:
        """Sleep until a micro-batch that began then has taken as long as on the emulated GPU."""
        wanted = self.law.draw(self._rng).item(self.options.rank)
        time.sleep(max(began + wanted - time.perf_counter(), 0.0))


def ddp(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train with DDP; each rank does its share of the micro-batches of a step."""
    torch, split = rank.torch, [int(count) for count in options.split.split(",")]
    own, before = split[options.rank], sum(split[: options.rank])
    epochs, losses, ends = Epochs(SAMPLES, BATCH, 0), [], list[float]()
    for k in range(options.rounds):
        mean = torch.zeros(())
        for j in range(own):
            began = time.perf_counter()
            batch = rank.data[torch.from_numpy(epochs.minibatch(k * options.budget + before + j))]
            with rank.model.no_sync() if j < own - 1 else nullcontext():
                # DDP averages over ranks: n / B of each micro-batch gives the mean over B.
                loss = rank.loss(batch) * options.workers / options.budget
                rank.sleep(began)
                loss.backward()
            mean += loss.detach() / options.workers
        rank.optimizer.step()
        rank.optimizer.zero_grad()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item())
        ends.append(time.perf_counter())
    return _report(ends, losses, split)


def balanced(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train with Balance; a run file that is already there is the warm start."""
    loader = rank.torch.utils.data.DataLoader(rank.data, BATCH)
    earlier = Path(options.folder) / "balance.h5"
    chosen: dict[str, Any] = {"warm_start": earlier} if earlier.exists() else {"out": earlier}
    rank.torch.distributed.barrier()  # all have looked whether it is there
    losses, ends, quota = [], list[float](), []
    with mpi_ata.Balance(options.budget, shuffle="epoch", **chosen) as balance:
        for _ in range(options.rounds):
            began = time.perf_counter()
            for batch in balance.micro_batches(loader):
                loss = rank.loss(batch)
                rank.sleep(began)  # before the backward pass, as in DDP, where that waits for the other ranks
                loss.backward()
                balance.log(loss)
                began = time.perf_counter()
            round = balance.step(rank.model, rank.optimizer)
            losses.append(round.logs["loss"])
            quota = round.quota.tolist()
            ends.append(time.perf_counter())
    return _report(ends, losses, quota)


def _report(ends: list[float], losses: list[float], quota: list[int]) -> dict[str, Any]:
    steps = np.diff(ends)
    late = steps[len(steps) // 2 :]
    return {"step": steps.mean(), "late_step": late.mean(), "losses": losses, "quota": quota}


def main() -> None:
    """Do what the arguments say."""
    numbers = dict.fromkeys(("rank", "workers", "budget", "rounds", "equal"), 0)
    options = measuring.options(__doc__, folder="", split="", scale=1.0, **numbers)
    import torch

    torch.distributed.init_process_group(
        "gloo", f"file://{options.folder}/group", rank=options.rank, world_size=options.workers
    )
    found = (ddp if options.split else balanced)(Rank(options), options)
    torch.distributed.destroy_process_group()
    if options.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
