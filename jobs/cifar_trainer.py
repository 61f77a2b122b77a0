"""CIFAR-100 with mpi_ata, after the port: mpirun -n 5 python jobs/cifar_trainer.py FOLDER.

FOLDER holds train.bin and test.bin of the data set's binary version. jobs/cifar_ddp.py is the same script
before the port.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR
from torch.utils.data import Dataset

import mpi_ata


class Cifar100(Dataset):  # type: ignore[misc]
    """Images and fine labels; those for training are shifted and mirrored at random."""

    def __init__(self, file: Path, training: bool, images: int | None = None) -> None:
        self.records = np.memmap(file, np.uint8, "r").reshape(-1, 3074)[:images]
        self.training = training

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.records)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        """Return one image, normalised, and its label."""
        record = self.records[number]
        image = torch.from_numpy(record[2:].astype(np.float32)).view(3, 32, 32) / 64 - 2
        return self.augmented(image) if self.training else image, int(record[1])

    def augmented(self, image: Any) -> Any:
        """Return a random crop of the image in a grey frame, mirrored half of the time."""
        row, column, mirrored = (int(torch.randint(high, ())) for high in (9, 9, 2))
        framed = nn.functional.pad(image, (4, 4, 4, 4))
        crop = framed[:, row : row + 32, column : column + 32]
        return crop.flip(2) if mirrored else crop


def network() -> Any:
    """Return a LeNet with batch norm."""
    layers: list[Any] = []
    for channels, more in [(3, 32), (32, 64), (64, 128)]:
        layers += [nn.Conv2d(channels, more, 3, padding=1, bias=False), nn.BatchNorm2d(more), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 100))


def accuracy(outputs: Any, targets: Any) -> Any:
    """Return the share of images whose largest output is the correct one."""
    return (outputs.argmax(dim=1) == targets).float().mean()


def main() -> None:
    """Train, evaluate after each epoch, and keep the best weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="images per gradient")
    parser.add_argument("--budget", type=int, default=4, help="gradients per step, on all workers together")
    parser.add_argument("--images", type=int, help="train and test on the first ones only")
    parser.add_argument("--best", default="best.pt")
    parser.add_argument("--out", help="the run file; with it, the run can be resumed")
    parser.add_argument("--tensorboard", help="a folder for TensorBoard")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = network()
    train_set = Cifar100(options.data / "train.bin", training=True, images=options.images)
    test_set = Cifar100(options.data / "test.bin", training=False, images=options.images)
    steps = len(train_set) // (options.batch * options.budget)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    warm_up = LinearLR(optimizer, 0.1, total_iters=steps)
    drops = MultiStepLR(optimizer, [steps * options.epochs * part // 4 for part in (2, 3)], gamma=0.2)
    scheduler = SequentialLR(optimizer, [warm_up, drops], [steps])
    log = summary_writer(options.tensorboard if mpi_ata.launch.rank() == 0 else None)

    with mpi_ata.Trainer(
        model,
        nn.functional.cross_entropy,
        train_set,
        batch_size=options.batch,
        budget=options.budget,
        shuffle="epoch",
        optimizer=optimizer,
        scheduler=scheduler,
        test=test_set,
        metrics={"accuracy": accuracy},
        rounds=steps * options.epochs,
        out=options.out,
        resume=options.out is not None,
    ) as trainer:
        for round in trainer:
            log("loss", round.logs["loss"], round.number)
            if round.number % steps == 0:
                found = trainer.evaluate()["accuracy"]
                print(f"epoch {round.number // steps}: loss {round.logs['loss']:.3f}, accuracy {found:.3f}")
                if found > trainer.state.get("best", 0.0):
                    trainer.state["best"] = found
                    trainer.save(options.best)


def summary_writer(folder: str | None) -> Any:
    """Return what logs a scalar for TensorBoard, or ignores it."""
    if folder is None:
        return lambda *_: None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder).add_scalar


if __name__ == "__main__":
    main()
