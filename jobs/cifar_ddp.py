"""CIFAR-100 with DDP, before the port: torchrun --nproc-per-node 4 jobs/cifar_ddp.py FOLDER.

FOLDER holds train.bin and test.bin of the data set's binary version. jobs/cifar_trainer.py is the same script
after the port.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler


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


def evaluate(model: Any, test_set: Cifar100) -> float:
    """Return the accuracy over the test images."""
    model.eval()
    with torch.no_grad():
        found = [
            accuracy(model(inputs), targets) * len(targets) for inputs, targets in DataLoader(test_set, 250)
        ]
    model.train()
    return float(sum(found)) / len(test_set)


def main() -> None:
    """Train, evaluate after each epoch, and keep the best weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="images per gradient")
    parser.add_argument("--images", type=int, help="train and test on the first ones only")
    parser.add_argument("--best", default="best.pt")
    parser.add_argument("--tensorboard", help="a folder for TensorBoard")
    options = parser.parse_args()
    dist.init_process_group("gloo")

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(network())
    train_set = Cifar100(options.data / "train.bin", training=True, images=options.images)
    test_set = Cifar100(options.data / "test.bin", training=False, images=options.images)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, options.batch, sampler=sampler)
    steps = len(loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    warm_up = LinearLR(optimizer, 0.1, total_iters=steps)
    drops = MultiStepLR(optimizer, [steps * options.epochs * part // 4 for part in (2, 3)], gamma=0.2)
    scheduler = SequentialLR(optimizer, [warm_up, drops], [steps])
    log = summary_writer(options.tensorboard if dist.get_rank() == 0 else None)

    best = 0.0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader, epoch * steps + 1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            log("loss", loss.item(), step)
        if dist.get_rank() == 0:
            found = evaluate(model.module, test_set)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {found:.3f}")
            if found > best:
                best = found
                torch.save(model.module.state_dict(), options.best)
        dist.barrier()
    dist.destroy_process_group()


def summary_writer(folder: str | None) -> Any:
    """Return what logs a scalar for TensorBoard, or ignores it."""
    if folder is None:
        return lambda *_: None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder).add_scalar


if __name__ == "__main__":
    main()
