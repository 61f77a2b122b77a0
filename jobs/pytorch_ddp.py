"""A DDP script that gives fast ranks more micro-batches: torchrun --nproc-per-node 3 jobs/pytorch_ddp.py.

Plain DDP has one batch per rank and step here; the lines with `balance` are what differs. With --slow, a
micro-batch of the last rank takes longer, so that there is something to balance on one machine.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mpi_ata


def spirals(points: int) -> TensorDataset:
    """Points on three interleaved spirals, labelled by spiral."""
    noise = torch.Generator().manual_seed(1)
    label, t = torch.arange(points) % 3, torch.rand(points, generator=noise)
    angle = 5 * t + 2.1 * label + 0.15 * torch.randn(points, generator=noise)
    return TensorDataset(torch.stack([t * angle.cos(), t * angle.sin()], dim=1), label)


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt", help="resumed if it exists")
    parser.add_argument("--out", help="the run file: speeds, shares and losses")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to add to the last rank's batches")
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo")  # "nccl" on GPUs
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)

    network = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = spirals(3000)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))

    saved = torch.load(options.checkpoint, weights_only=True) if options.checkpoint.exists() else None
    resume = options.out is not None and saved is not None
    balance = mpi_ata.Balance(budget=4 * ranks, out=options.out, resume=resume)
    if saved is not None:  # it decides where training continues, not the run file
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        balance.load_state_dict(saved["balance"])
    for step in range(balance.rounds + 1, options.steps + 1):
        for inputs, labels in balance.micro_batches(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            balance.log(loss)
            time.sleep(options.slow if rank == ranks - 1 else 0.0)
        done = balance.step(model, optimizer)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: loss {done.logs['loss']:.3f}, micro-batches {done.quota.tolist()}")
            parts = {"model": model, "optimizer": optimizer, "balance": balance}
            torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
