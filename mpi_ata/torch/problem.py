"""A PyTorch model as a problem: what a training script does between two steps of its optimizer."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import UsageError
from mpi_ata.problems.interface import Task
from mpi_ata.problems.shards import shard
from mpi_ata.torch.devices import device_of, import_torch, on_device
from mpi_ata.torch.epochs import Epochs
from mpi_ata.torch.flat_model import FlatModel
from mpi_ata.torch.losses import Loss, forward, parts, weighted
from mpi_ata.torch.tail import TailUpdate
from mpi_ata.updates import Update

if TYPE_CHECKING:
    import torch

PRECISIONS = {"float32": None, "bf16": "bfloat16", "fp16": "float16"}


class TorchProblem:
    """The mean loss of a model over the samples of a dataset; a task is its gradient over one batch.

    `model` is a module, or a function that returns one, whose random weights then depend on `seed` alone.
    `loss_fn(model(inputs), targets)` returns the mean over a batch, and so do the `metrics`; see losses.py
    for other samples than pairs.  A loss may be a dict: "loss" is what is minimised, "weight" how much the
    batch counts, and what `logs` names is averaged over the tasks of an update: see `logged`.
    `dataset` has a length, and samples by number, which `collate_fn` makes a batch, or a method
    batch(numbers) for many.  Samples are drawn with replacement, or, with `shuffle` = "epoch", each once per
    epoch, whoever draws it.  If they are `sharded`, worker i draws from the i-th of n equal parts of the
    dataset, in its order.  `test` is another dataset, on which loss and
    metrics are evaluated, `evaluation_batch` samples at a time.  With `precision` "bf16" or "fp16", models
    compute in it where PyTorch's autocast thinks it safe; "fp16" scales the loss.

    All trained weights are views into one float32 array, and their gradients into another.  So besides
    forward and backward a task passes over the weights three times: to copy x in, to zero the gradients,
    and, in the cluster, to copy them out.  The statistics of batch norm follow the weights in x, and so do
    the `buffers` that are named: they become their means over the tasks of an update.
    """

    def __init__(
        self,
        model: "torch.nn.Module | Callable[[], torch.nn.Module]",
        loss_fn: "Callable[[Any, Any], Any]",
        dataset: Any,
        batch_size: int = 1,
        *,
        test: Any = None,
        metrics: "Mapping[str, Callable[[Any, Any], torch.Tensor]] | None" = None,
        logs: Sequence[str] = (),
        buffers: Sequence[str] = (),
        collate_fn: Callable[[list[Any]], Any] | None = None,
        evaluation_batch: int = 250,
        shuffle: str = "replacement",
        sharded: bool = False,
        start: str | Path | None = None,
        device: str = "cpu",
        precision: str = "float32",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._torch = torch = import_torch()
        for name, value in {"batch_size": batch_size, "evaluation_batch": evaluation_batch}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if threads is not None and threads < 1:
            raise ValueError(f"{threads=} must be at least 1")
        if precision not in PRECISIONS:
            raise ValueError(f"{precision=} must be one of {', '.join(PRECISIONS)}")
        if shuffle not in ("replacement", "epoch"):
            raise ValueError(f"{shuffle=} must be 'replacement' or 'epoch'")
        if shuffle == "epoch" and sharded:
            raise ValueError("sharded datasets are drawn from with replacement; remove shuffle='epoch'")
        if not len(dataset) or (test is not None and not len(test)):
            raise ValueError("a dataset for training or testing must have at least one sample")
        if not isinstance(model, torch.nn.Module):
            torch.default_generator.manual_seed(seed)
            model = model()
        self.device = device_of(torch, device)
        self.model = model.to(self.device)
        self._dataset, self._test, self._batch_size = dataset, dataset if test is None else test, batch_size
        self._own_collate, self._collate = (
            collate_fn is not None,
            collate_fn or torch.utils.data.default_collate,
        )
        self._loss_fn, self._metrics = loss_fn, {**(metrics or {}), "loss": loss_fn}
        self._at_once, self._half = evaluation_batch, PRECISIONS[precision]
        self._epochs = Epochs(len(dataset), batch_size, seed) if shuffle == "epoch" else None
        self.shares_draws = shuffle == "epoch"
        self._sharded, self._threads, self._n = sharded, threads, 0
        self._flat = FlatModel(torch, self.model, self.device, buffers, logs, scaled=precision == "fp16")
        self.layout = self._flat.layout
        self.x0: Array = self._flat.point() if start is None else self.load(start)

    def bind(self, update: Update) -> Update:
        """Return an update that moves the weights of this model by another one, and averages what follows."""
        if hasattr(update, "bind"):
            update.bind(self.model)
        return TailUpdate(update, self.layout) if self.layout.has_tail else update

    def logged(self, x: Array) -> dict[str, float]:
        """Return what the tasks of the update that led to x have logged, on average."""
        return self.layout.logged(x)

    def setup(self, worker: int | None, n: int) -> None:
        """Use one thread, unless the user wants more, and set the number of workers that share the data."""
        if self._threads is not None or "OMP_NUM_THREADS" not in os.environ:
            self._torch.set_num_threads(self._threads or 1)
        self._n = n
        self._draws_from(worker or 0)

    def _draws_from(self, worker: int) -> tuple[int, int]:
        """Return the first sample a worker may draw, and the one after the last."""
        size = len(self._dataset)
        return shard(size, worker, self._n) if self._sharded else (0, size)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient over one batch."""
        return self.gradients(x, [task])

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of the gradients over several batches; the next task reuses the array."""
        self._flat.move_to(x)
        self._flat.clear()
        if not self.model.training:
            self.model.train()
        for task in tasks:
            if not self._add_gradient(task):
                break
        self._flat.check_buffers()
        if self.layout.scaled:
            self._flat.unscale()
        return self._flat.result()

    def _add_gradient(self, task: Task) -> bool:
        """Add one task's gradient to the result, unless it is stopped."""
        with self._autocast():
            loss = self._loss(self._batch(task))
        if task.stopped():
            return False
        total = loss.total * loss.weight if loss.weight != 1 else loss.total
        (total * self._flat.scale() if self.layout.scaled else total).backward()
        self._flat.add_tail(loss.weight, loss.logs)
        return True

    def _loss(self, batch: Any) -> Loss:
        value = self._loss_fn(*forward(self.model, batch))
        return parts(value, self.layout.logs, self.layout.has_tail)

    def _autocast(self) -> Any:
        if self._half is None:
            return nullcontext()
        return self._torch.autocast(self.device.type, getattr(self._torch, self._half))

    def _batch(self, task: Task) -> Any:
        """Return a batch and seed torch, so that both depend on the task alone."""
        if self._epochs is not None and task.index is not None:
            numbers = self._epochs.batch(task.index)
        else:
            numbers = task.rng.integers(*self._draws_from(task.worker), self._batch_size)
        self._seed(int(task.rng.integers(2**63)))
        return self._samples(self._dataset, numbers)

    def _seed(self, seed: int) -> None:
        self._torch.default_generator.manual_seed(seed)  # torch.manual_seed costs as much as a small task
        if self.device.type == "cuda":
            self._torch.cuda.manual_seed(seed)

    def _samples(self, dataset: Any, numbers: IntArray) -> Any:
        torch = self._torch
        if hasattr(dataset, "batch"):
            batch = dataset.batch(numbers)
        elif isinstance(dataset, torch.utils.data.TensorDataset) and not self._own_collate:
            batch = dataset[torch.from_numpy(numbers)]
        else:
            batch = self._collate([dataset[number] for number in numbers.tolist()])
        return on_device(self.device, batch)

    def loss(self, x: Array) -> float:
        """Return the mean loss over the test samples."""
        return self.evaluate(x)["loss"]

    def evaluate(self, x: Array) -> dict[str, float]:
        """Return the means of loss and metrics over the test samples, and what the last tasks have logged."""
        parts = range(self._parts())
        return self.combine_parts(x, [number for part in parts for number in self.evaluate_part(x, part)])

    def _parts(self) -> int:
        return -(-len(self._test) // self._at_once)

    @property
    def evaluation_parts(self) -> int:
        """Return into how many parts an evaluation can be divided; 0 where evaluate() is the user's own."""
        return self._parts() if type(self).evaluate is TorchProblem.evaluate else 0

    def evaluate_part(self, x: Array, part: int) -> list[float]:
        """Return the sums of loss and metrics over one batch of test samples, each with its weight."""
        self._flat.move_to(x)
        self.model.eval()
        self._seed(part)
        numbers = np.arange(part * self._at_once, min((part + 1) * self._at_once, len(self._test)))
        with self._torch.no_grad(), self._autocast():
            outputs, targets = forward(self.model, self._samples(self._test, numbers))
            means = [function(outputs, targets) for function in self._metrics.values()]
        return [number for mean in means for number in weighted(mean, len(numbers))]

    def combine_parts(self, x: Array, numbers: Sequence[float]) -> dict[str, float]:
        """Return the means over all parts, and what the last tasks have logged."""
        sums = np.reshape(numbers, (-1, len(self._metrics), 2)).sum(axis=0)
        means = dict(zip(self._metrics, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))
        return means | {f"train_{name}": value for name, value in self.logged(x).items()}

    @staticmethod
    def accuracy(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the share of samples whose largest output is the correct one; a metric."""
        return (outputs.argmax(dim=1) == targets).float().mean()

    def state_dict(self, x: Array) -> "dict[str, torch.Tensor]":
        """Return the model's state_dict at the point x, in tensors of its own."""
        self._flat.move_to(x)
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def save(self, x: Array, path: str | Path) -> None:
        """Write the state_dict at the point x to a file, as torch.save does."""
        partial = Path(f"{path}.{os.getpid()}.part")
        try:
            self._torch.save(self.state_dict(x), partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self, path: str | Path) -> Array:
        """Return the point x whose state_dict is in a file; only tensors are unpickled."""
        try:
            state = self._torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
        except Exception:
            way = "write one with torch.save(model.state_dict(), ...)"
            raise UsageError(f"{str(path)!r} is not a file of tensors alone; {way}") from None
        try:
            self.model.load_state_dict(state)
        except Exception as error:
            why = " ".join(str(error).split())
            raise UsageError(f"{str(path)!r} is not a state_dict of this model: {why}") from None
        return self._flat.point()
