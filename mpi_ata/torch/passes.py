"""Forward passes of a model over batches: on its device, in its precision, with their own random numbers."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from mpi_ata.torch.devices import on_device
from mpi_ata.torch.losses import forward

PRECISIONS = {"float32": None, "bf16": "bfloat16", "fp16": "float16"}


class Passes:
    """Runs a model on batches; if they are `pinned`, they reach a GPU through page-locked memory."""

    def __init__(self, torch: Any, model: Any, device: Any, precision: str, pinned: bool) -> None:
        self._torch, self._model, self._device, self._pinned = torch, model, device, pinned
        self._half = PRECISIONS[precision]

    def value(self, function: Callable[[Any, Any], Any], batch: Any, seed: int) -> Any:
        """Return the value of a loss or metric of the model's outputs for a batch and its targets.

        The random numbers of the model depend on the seed alone, whichever process has read the batch.
        """
        self._torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            self._torch.cuda.manual_seed(seed)
        with self._autocast():
            return function(*forward(self._model, on_device(self._device, batch, self._pinned)))

    def _autocast(self) -> Any:
        if self._half is None:
            return nullcontext()
        return self._torch.autocast(self._device.type, getattr(self._torch, self._half))
