"""A PyTorch model as a problem: what a training script does between two steps of its optimizer."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import local_rank, rank, under_launcher
from mpi_ata.layout import MANAGER
from mpi_ata.problems.interface import Task
from mpi_ata.problems.shards import shard

if TYPE_CHECKING:
    import torch

AT_ONCE = 250  # samples evaluated together


class TorchProblem:
    """The mean loss of a model over the samples of a dataset; a task is its gradient over one batch.

    `model` is a module, or a function that returns one, whose random weights then depend on `seed` alone.
    `loss_fn(model(inputs), targets)` returns the mean over a batch, and so do the `metrics`.
    `dataset` has a length, and samples (inputs, targets) by number, or a method batch(numbers) for many.
    Samples are drawn with replacement; if they are `sharded`, worker i draws from the i-th of n equal
    parts of the dataset, in its order.  `test` is another dataset, on which loss and metrics are evaluated.

    All trained weights are views into one float32 array, and their gradients into another.  So besides
    forward and backward a task passes over the weights three times: to copy x in, to zero the gradients,
    and, in the cluster, to copy them out.
    """

    def __init__(
        self,
        model: "torch.nn.Module | Callable[[], torch.nn.Module]",
        loss_fn: "Callable[[Any, Any], torch.Tensor]",
        dataset: Any,
        batch_size: int = 1,
        *,
        test: Any = None,
        metrics: "Mapping[str, Callable[[Any, Any], torch.Tensor]] | None" = None,
        sharded: bool = False,
        start: str | Path | None = None,
        device: str = "cpu",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._torch = torch = import_torch()
        if batch_size < 1:
            raise ValueError(f"{batch_size=} must be at least 1")
        if threads is not None and threads < 1:
            raise ValueError(f"{threads=} must be at least 1")
        if not len(dataset) or (test is not None and not len(test)):
            raise ValueError("a dataset for training or testing must have at least one sample")
        if not isinstance(model, torch.nn.Module):
            torch.default_generator.manual_seed(seed)
            model = model()
        self.device = _device(torch, device)
        self.model = model.to(self.device)
        self._dataset, self._test, self._batch_size = dataset, dataset if test is None else test, batch_size
        self._loss_fn, self._metrics = loss_fn, {**(metrics or {}), "loss": loss_fn}
        self._sharded, self._threads, self._n = sharded, threads, 0
        _check_statistics(torch, model)
        self._constants: dict[str, tuple[Any, int]] | None = _versions(model)
        self._make_flat(_trained(torch, model))
        self.x0: Array = self._host.copy() if start is None else self.load(start)

    def _make_flat(self, weights: "list[torch.nn.Parameter]") -> None:
        """Make weights and gradients views into one array each."""
        torch, begin = self._torch, 0
        size = sum(weight.numel() for weight in weights)
        self._weights = torch.empty(size, device=self.device)
        self._gradient = torch.zeros(size, device=self.device)
        for weight in weights:
            here = slice(begin, begin := begin + weight.numel())
            self._weights[here] = weight.detach().reshape(-1)
            weight.data = self._weights[here].view_as(weight)
            weight.grad = self._gradient[here].view_as(weight)
        self._staging = self._weights.cpu()  # the weights themselves, if they are in main memory
        self._host = self._staging.numpy()

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
        self._move_to(x)
        self._gradient.zero_()
        if not self.model.training:
            self.model.train()
        for task in tasks:
            inputs, targets = self._batch(task)
            loss = self._loss_fn(self.model(inputs), targets)
            if task.stopped():
                break
            loss.backward()
        self._check_constants()
        gradient: Array = self._gradient.cpu().numpy()  # waits for the device, so that its time counts
        return gradient

    def _move_to(self, x: Array) -> None:
        np.copyto(self._host, x)
        if self._staging is not self._weights:
            self._weights.copy_(self._staging)

    def _batch(self, task: Task) -> tuple[Any, Any]:
        """Return a batch and seed torch, so that both depend on the task alone."""
        numbers = task.rng.integers(*self._draws_from(task.worker), self._batch_size)
        self._seed(int(task.rng.integers(2**63)))
        return self._samples(self._dataset, numbers)

    def _seed(self, seed: int) -> None:
        self._torch.default_generator.manual_seed(seed)  # torch.manual_seed costs as much as a small task
        if self.device.type == "cuda":
            self._torch.cuda.manual_seed(seed)

    def _samples(self, dataset: Any, numbers: IntArray) -> tuple[Any, Any]:
        torch = self._torch
        if hasattr(dataset, "batch"):
            inputs, targets = dataset.batch(numbers)
        elif isinstance(dataset, torch.utils.data.TensorDataset):
            inputs, targets = dataset[torch.from_numpy(numbers)]
        else:
            samples = [dataset[number] for number in numbers.tolist()]
            inputs, targets = torch.utils.data.default_collate(samples)
        return _on(self.device, inputs), _on(self.device, targets)

    def _check_constants(self) -> None:
        """Raise RunError if the first task has changed a buffer of the model."""
        if self._constants is None:
            return
        before, self._constants = self._constants, None
        for name, (buffer, version) in _versions(self.model).items():
            if name not in before or buffer is not before[name][0] or version != before[name][1]:
                raise RunError(
                    f"a task has changed the model's buffer {name!r}, which would differ from worker to "
                    "worker; buffers must stay as they are"
                )

    def loss(self, x: Array) -> float:
        """Return the mean loss over the test samples."""
        return self.evaluate(x)["loss"]

    def evaluate(self, x: Array) -> dict[str, float]:
        """Return the means of loss and metrics over the test samples."""
        self._move_to(x)
        self.model.eval()
        self._seed(0)
        totals, size = dict.fromkeys(self._metrics, 0.0), len(self._test)
        with self._torch.no_grad():
            for begin in range(0, size, AT_ONCE):
                numbers = np.arange(begin, min(begin + AT_ONCE, size))
                inputs, targets = self._samples(self._test, numbers)
                outputs = self.model(inputs)
                for name, function in self._metrics.items():
                    totals[name] += float(function(outputs, targets)) * len(numbers)
        return {name: total / size for name, total in totals.items()}

    @staticmethod
    def accuracy(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the share of samples whose largest output is the correct one; a metric."""
        return (outputs.argmax(dim=1) == targets).float().mean()

    def state_dict(self, x: Array) -> "dict[str, torch.Tensor]":
        """Return the model's state_dict at the point x, in tensors of its own."""
        self._move_to(x)
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
        return np.array(self._weights.cpu().numpy())


def import_torch() -> Any:
    """Import PyTorch, which takes a second or two, only where it is needed."""
    try:
        import torch
    except ImportError:
        raise UsageError("PyTorch is missing; install it with pip install 'mpi-ata[torch]'") from None
    return torch


def _device(torch: Any, name: str) -> Any:
    """Return the device of this name; of several GPUs on a node each rank takes its own."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} is not known to PyTorch; use 'cpu' or 'cuda'") from None
    if device.type != "cuda":
        return device
    if under_launcher() and rank() == MANAGER:
        return torch.device("cpu")  # the manager does no tasks and leaves the GPUs to the workers
    if not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, but PyTorch sees no GPU here; use 'cpu'")
    if device.index is None:
        device = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _on(device: Any, values: Any) -> Any:
    """Move a tensor, or lists and dicts of them, to the device."""
    if isinstance(values, Mapping):
        return {name: _on(device, value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_on(device, value) for value in values]
    return values.to(device) if hasattr(values, "to") else values


def _check_statistics(torch: Any, model: Any) -> None:
    """Raise ValueError if a layer tracks statistics of the batches it has seen, as batch norm does."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise ValueError(
                f"the model's {name or 'whole'!r} is a {type(module).__name__}, whose running statistics "
                "would differ from worker to worker; use torch.nn.GroupNorm, or track_running_stats=False"
            )


def _versions(model: Any) -> dict[str, tuple[Any, int]]:
    """Return all buffers of a model, and how often each was changed."""
    return {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}


def _trained(torch: Any, model: Any) -> list[Any]:
    """Return the trained weights, all float32."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        raise ValueError("the model has no weights to train; all are frozen, or there are none")
    for name, weight in weights.items():
        if weight.dtype != torch.float32:
            raise ValueError(
                f"the model's {name!r} is {weight.dtype}, but only float32 is supported; use model.float()"
            )
    return list(weights.values())
