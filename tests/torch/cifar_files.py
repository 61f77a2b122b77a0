"""Small files in the layout of CIFAR-100's binary version."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def records(count: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    """Return images that can be learned a little: each label has its own brightness in each quarter."""
    rng = np.random.default_rng(seed)
    made = np.zeros((count, 3074), np.uint8)
    fine = rng.integers(0, 100, count)
    bright = np.random.default_rng(0).integers(0, 200, (100, 3, 2, 2))[fine]
    pixels: Any = bright.repeat(16, axis=2).repeat(16, axis=3) + rng.integers(0, 55, (count, 3, 32, 32))
    made[:, 0], made[:, 1], made[:, 2:] = fine // 5, fine, pixels.reshape(count, -1)
    return made


def write(folder: Path, train: int = 300, test: int = 60) -> Path:
    """Write a folder with train.bin and test.bin."""
    (folder / "train.bin").write_bytes(records(train, 1).tobytes())
    (folder / "test.bin").write_bytes(records(test, 2).tobytes())
    return folder
