"""A script with Accelerate whose fast ranks get more micro-batches: accelerate launch jobs/accelerate_ddp.py.

The loader is not given to accelerator.prepare(): Balance divides its batches among ranks.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpi_ata


def main() -> None:
    """Train, save, and resume what was saved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    options = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    inputs = torch.randn(3000, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True)), batch_size=16)
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=0.01))

    balance = mpi_ata.Balance(budget=4 * accelerator.num_processes, shuffle="epoch")
    accelerator.register_for_checkpointing(balance)
    if options.checkpoint.exists():
        accelerator.load_state(options.checkpoint)
    for step in range(balance.rounds + 1, options.steps + 1):
        for batch in balance.micro_batches(loader):
            x, y = (part.to(accelerator.device) for part in batch)
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            balance.log(loss)
        done = balance.reduce(model)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == options.steps:
            accelerator.print(f"step {step}: loss {done.logs['loss']:.6f}")
    accelerator.save_state(options.checkpoint)
    accelerator.end_training()


if __name__ == "__main__":
    main()
