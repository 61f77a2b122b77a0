"""What loader processes save where reading a batch takes as long as 8 sleeps of 10 ms.

python -m benchmarks.torch_loaders 2 epoch: two loader processes for each of two workers, and how to shuffle.
"""

import time
from typing import Any

import torch

import mpi_ata
from benchmarks.measuring import options

ROUNDS = 12


class Slow:
    """Samples that take 10 ms each to read, and are different each time."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        time.sleep(0.01)
        return torch.rand(8) + number % 3, torch.tensor(number % 3)


def main() -> None:
    """Train, and print how long the rounds took and where they ended."""
    asked = options(__doc__, "loaders", "shuffle", loaders=2, shuffle="epoch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 3))
    with mpi_ata.Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        Slow(),
        8,
        budget=4,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        rounds=ROUNDS,
        shuffle=asked.shuffle,
        num_workers=asked.loaders,
        allocator="uta",
        workers=2,
    ) as trainer:
        began = time.perf_counter()
        for _ in trainer:
            pass
        took, at = time.perf_counter() - began, float(trainer.x.sum())
        print(f"{ROUNDS} rounds with num_workers={asked.loaders}: {took:.2f} s; the sum of x is {at:.6f}")


if __name__ == "__main__":
    main()
