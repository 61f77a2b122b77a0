"""A PyTorch script with a loop of its own, on real ranks: python jobs/pytorch_trainer.py --workers 4.

Model, data, optimizer and schedule are those of a script for one process; what Trainer replaces is the loop
over batches. With mpirun or srun, leave `workers` out.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import mpi_ata


def spirals(points: int, seed: int) -> TensorDataset:
    """Points on three interleaved spirals, labelled by spiral."""
    noise = torch.Generator().manual_seed(seed)
    label, t = torch.arange(points) % 3, torch.rand(points, generator=noise)
    angle = 5 * t + 2.1 * label + 0.15 * torch.randn(points, generator=noise)
    return TensorDataset(torch.stack([t * angle.cos(), t * angle.sin()], dim=1), label)


def main() -> None:
    """Train, evaluate now and then on all workers, and keep the best weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, help="how many to start; none under mpirun")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--out", default=None, help="the run file; with it, the run can be resumed")
    parser.add_argument("--best", default="best.pt", help="where the best weights go")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.rounds)

    with mpi_ata.Trainer(
        model,
        nn.CrossEntropyLoss(),
        spirals(3000, seed=1),
        batch_size=16,
        budget=8,
        optimizer=optimizer,
        scheduler=schedule,
        clip=1.0,
        test=spirals(600, seed=2),
        metrics={"accuracy": mpi_ata.TorchProblem.accuracy},
        evaluation_batch=100,
        rounds=options.rounds,
        workers=options.workers,
        out=options.out,
        resume=options.out is not None,
    ) as trainer:
        for round in trainer:  # on rank 0; workers serve inside
            if round.number % 200 == 0:
                accuracy = trainer.evaluate()["accuracy"]
                print(f"round {round.number}: loss {round.logs['loss']:.3f}, accuracy {accuracy:.3f}")
                if accuracy > trainer.state.get("best", 0.0):
                    trainer.state["best"] = accuracy
                    trainer.save(options.best)


if __name__ == "__main__":
    main()
