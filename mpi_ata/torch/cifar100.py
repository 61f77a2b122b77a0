"""The paper's convolutional network on CIFAR-100, from the files of the data set's binary version."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import IntArray
from mpi_ata.errors import UsageError
from mpi_ata.torch.devices import check_at_least_1, import_torch
from mpi_ata.torch.problem import TorchProblem

RECORD = 2 + 3 * 32 * 32  # bytes: coarse label, fine label, pixels in the order colour, row, column
COARSE, FINE = 20, 100  # kinds of labels
MEAN = (0.5071, 0.4865, 0.4409)  # of each colour over the training set, where 1 is full brightness
DEVIATION = (0.2673, 0.2564, 0.2762)
FACTOR = (1 / (255 * np.array(DEVIATION))).astype(np.float32).reshape(3, 1, 1)
OFFSET = (np.array(MEAN) / np.array(DEVIATION)).astype(np.float32).reshape(3, 1, 1)
SHIFT = 4  # pixels by which an image is shifted at most


class Cifar100(TorchProblem):
    """Three convolutional and two fully connected layers, 159,809 weights; a task is `samples` images.

    `data` is the folder with train.bin and test.bin.  With `augment`, images are flipped and shifted by up to
    4 pixels at random.  If they are `sharded`, they are sorted by fine label first, so that each worker has
    classes of its own.  Loss and accuracy are evaluated on the first `test_images` images of the test set,
    or on all.
    """

    def __init__(
        self,
        data: str | Path,
        samples: int = 1,
        augment: bool = False,
        sharded: bool = False,
        test_images: int | None = None,
        start: str | Path | None = None,
        device: str = "cpu",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        check_at_least_1(samples=samples, test_images=test_images)
        torch = import_torch()
        super().__init__(
            network,
            torch.nn.functional.cross_entropy,
            Images(read(data, "train.bin"), augment, by_label=sharded),
            samples,
            test=Images(read(data, "test.bin")[:test_images]),
            metrics={"accuracy": self.accuracy},
            sharded=sharded,
            start=start,
            device=device,
            threads=threads,
            seed=seed,
        )


def network() -> Any:
    """Return the model: 448 + 4,640 + 18,496 + 124,025 + 12,200 = 159,809 weights."""
    from torch import nn

    layers: list[Any] = []
    for channels, more in [(3, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(channels, more, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 121), nn.ReLU(), nn.Linear(121, FINE))


class Images:
    """Records as a dataset of batches, which are normalised when they are read."""

    def __init__(self, records: npt.NDArray[np.uint8], augment: bool = False, by_label: bool = False) -> None:
        self._records, self._augment = records, augment
        self._order = np.argsort(records[:, 1], kind="stable") if by_label else np.arange(len(records))

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._records)

    def minibatch(self, numbers: IntArray) -> tuple[Any, Any]:
        """Return images and fine labels as tensors."""
        import torch

        records = self._records[self._order[numbers]]
        images = records[:, 2:].reshape(-1, 3, 32, 32)
        if self._augment:
            corners = torch.randint(2 * SHIFT + 1, (len(images), 2))
            images = _shifted(images, corners, torch.rand(len(images)) < 0.5)
        inputs, labels = torch.from_numpy(images * FACTOR - OFFSET), records[:, 1].astype(np.int64)
        # Convolutions over small batches are faster in this order.
        return inputs.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels)


def _shifted(images: npt.NDArray[np.uint8], corners: Any, mirrored: Any) -> npt.NDArray[np.uint8]:
    """Crop each image from a black frame at its corner, and flip it where `mirrored`."""
    shifted = np.empty_like(images)
    framed = np.pad(images, [(0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)])
    for k, ((row, column), mirror) in enumerate(zip(corners.tolist(), mirrored.tolist(), strict=True)):
        image = framed[k, :, row : row + 32, column : column + 32]
        shifted[k] = image[:, :, ::-1] if mirror else image
    return shifted


def read(folder: str | Path, name: str) -> npt.NDArray[np.uint8]:
    """Return the records of a file, mapped into memory, so that all ranks on a node share them."""
    path = Path(folder).expanduser() / name
    if not path.is_file():
        python = "; that is its Python version" if path.with_suffix("").is_file() else ""
        raise UsageError(
            f"data='{folder}' has no file {name!r}: name the folder of CIFAR-100's binary version{python}"
        )
    size = path.stat().st_size
    if not size or size % RECORD:
        raise UsageError(
            f"{str(path)!r} has {size:,} bytes, which is not a whole number of images of {RECORD:,} bytes: "
            "it is truncated, or not CIFAR-100's binary version"
        )
    try:
        records = np.memmap(path, np.uint8, "r").reshape(-1, RECORD)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    coarse, fine = records[:, :2].max(axis=0).tolist()
    if coarse >= COARSE or fine >= FINE:
        raise UsageError(
            f"{str(path)!r} has labels up to {coarse} and {fine}, which CIFAR-100 does not have: "
            "it is something else, or damaged"
        )
    return records
