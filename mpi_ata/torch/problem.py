"""A PyTorch model as a problem: what a training script does between two steps of its optimizer."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise
from operator import eq, is_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array
from mpi_ata.errors import RunError, UsageError
from mpi_ata.problems.interface import Task
from mpi_ata.torch.data import Minibatches, sequence
from mpi_ata.torch.devices import check_at_least_1, device_of, import_torch, on_device, seed_model
from mpi_ata.torch.loaders import TRAINING, Reader
from mpi_ata.torch.model import GRADIENT_NORM, FlatModel, Layout, load_weights, write_weights
from mpi_ata.torch.optimizers import TailUpdate, TorchUpdate
from mpi_ata.updates import Update

if TYPE_CHECKING:
    import torch


PRECISIONS = {"float32": "", "bf16": "bfloat16", "fp16": "float16"}  # and the types of autocast
WIRES = {"float32": False, "bfloat16": True}  # whether numbers travel as bfloat16


def forward(model: Any, minibatch: Any) -> tuple[Any, Any]:
    """Return the model's outputs, and what the loss compares them with.

    Of a tuple, the last entry is the target and the others are the model's arguments; a dict has named
    arguments and is the target as well, and so is a single tensor.
    """
    if isinstance(minibatch, Mapping):
        return model(**minibatch), minibatch
    if isinstance(minibatch, list | tuple) and len(minibatch) > 1:
        *inputs, targets = minibatch
        return model(*inputs), targets
    single = minibatch[0] if isinstance(minibatch, list | tuple) else minibatch
    return model(single), single


def _entries(value: Any) -> Mapping[str, Any]:
    """Return what a loss function returned, a tensor or a dict, as a dict with an entry "loss"."""
    return value if isinstance(value, Mapping) else {"loss": value}


def task_loss(value: Any, layout: Layout) -> tuple[Any, float, Mapping[str, Any]]:
    """Return the mean loss of a minibatch, how much the minibatch counts, and what is logged beside it.

    An entry "weight" says over how many things, such as tokens, the loss is a mean.
    """
    entries, logs = _entries(value), layout.logs
    if missing := {"loss", *logs}.difference(entries, [GRADIENT_NORM]):
        raise RunError(
            f"the loss has no entry {missing.pop()!r}; it has: {', '.join(entries)}; return a dict with "
            "'loss' and everything that logs= names"
        )
    weight = float(entries.get("weight", 1.0))
    if weight != 1 and not layout.has_tail:
        raise RunError("a loss with an entry 'weight' needs logs=['loss'], with which weights are sent")
    if not weight >= 0:
        raise RunError(f"the weight of a batch is {weight}, but it must be at least 0")
    return entries["loss"], weight, {name: entries.get(name, 0.0) for name in logs}


Metrics = Mapping[str, Callable[[Any, Any], Any]]
UNNAMED = "test"  # the dataset of evaluations, where there is only one


class Evaluations:
    """Datasets by name, and the metrics that are evaluated on them, `size` samples at a time.

    The parts of all datasets are numbered one after the other, the first dataset from 0 on.
    """

    def __init__(self, sets: Mapping[str, Any], metrics: Metrics, size: int) -> None:
        self.sets, self.metrics, self.size = sets, metrics, size
        ends = accumulate((-(-len(dataset) // size) for dataset in sets.values()), initial=0)
        self.parts = {name: range(*both) for name, both in zip(sets, pairwise(ends), strict=True)}
        self.default = next(iter(sets))  # the dataset that is evaluated where none is named

    def locate(self, part: int) -> tuple[int, int]:
        """Return which dataset a part belongs to, as its position, and the number of the part in there."""
        found = enumerate(self.parts.values())
        return next((position, part - parts.start) for position, parts in found if part in parts)

    def name_of(self, data: Any) -> str | None:
        """Return the name of a dataset, the first one for None; None if it was not there before the run."""
        return _name_of("dataset", "test", self.default if data is None else data, self.sets, is_)

    def metric_name(self, metric: Any) -> str | None:
        """Return the name of a metric; None if it was not there before the run."""
        return _name_of("metric", "metrics", metric, self.metrics, eq)


def _name_of(
    what: str, argument: str, given: Any, known: Mapping[str, Any], same: Callable[[Any, Any], bool]
) -> str | None:
    if not isinstance(given, str):
        return next((name for name, each in known.items() if same(each, given)), None)
    if given not in known:
        raise UsageError(f"there is no {what} {given!r}; {argument}= names: {', '.join(known)}")
    return given


def sums(metrics: Metrics, size: int, outputs: Any, targets: Any) -> list[float]:
    """Return the sums of metrics over a minibatch of this size, each with its weight."""
    found: list[float] = []
    for function in metrics.values():
        entries = _entries(function(outputs, targets))
        weight = float(entries.get("weight", size))
        found += [float(entries["loss"]) * weight, weight]
    return found


def means(metrics: Metrics, numbers: Sequence[float]) -> dict[str, float]:
    """Return the means of metrics over all parts, from their sums."""
    totals = np.reshape(numbers, (-1, len(metrics), 2)).sum(axis=0)
    return dict(zip(metrics, (totals[:, 0] / totals[:, 1]).tolist(), strict=True))


class TorchProblem:
    """The mean loss of a model over the samples of a dataset; a task is its gradient over one batch.

    `model` is a module, or a function that returns one, whose random weights then depend on `seed` alone.
    `loss_fn(model(inputs), targets)` returns the mean over a batch, and so do the `metrics`.  Of a sample
    that is a tuple, the last entry is the target and the others are the model's arguments; a dict has named
    arguments, and is the target as well, and so is a single tensor.  A loss may be a dict: "loss" is what is
    minimised, "weight" how much the batch counts, and what `logs` names is averaged over the tasks of an
    update: see `logged`.
    `dataset` has a length, and samples by number, which `collate_fn` makes a batch, or a method
    minibatch(numbers) for many.  Samples are drawn with replacement, or, with `shuffle` = "epoch", each once
    per epoch, whoever draws it, or as a `sampler` or `batch_sampler` of PyTorch says.  If they are `sharded`,
    worker i draws from the i-th of n equal parts of the dataset, in its order.  `num_workers` processes per
    worker read batches ahead, which changes no result.  `test` is another dataset, or several by name, on
    which loss and metrics are evaluated, `evaluation_batch` samples at a time.  With `precision` "bf16" or
    "fp16", models compute in it where PyTorch's autocast thinks it safe; "fp16" scales the loss.  With `wire`
    = "bfloat16", gradients travel as bfloat16, and with `wire_x` the weights that tasks get.

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
        sampler: Any = None,
        batch_sampler: Any = None,
        sharded: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        start: str | Path | None = None,
        device: str = "cpu",
        precision: str = "float32",
        wire: str = "float32",
        wire_x: str = "float32",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        check_at_least_1(batch_size=batch_size, threads=threads, evaluation_batch=evaluation_batch)
        for name, value in (("precision", precision), ("wire", wire), ("wire_x", wire_x)):
            if value not in (choices := PRECISIONS if name == "precision" else WIRES):
                raise UsageError(f"{name}={value!r} must be one of {', '.join(choices)}")
        self._torch = torch = import_torch()
        named = test if isinstance(test, Mapping) else {} if test is None else {UNNAMED: test}
        tests = dict(named) or {UNNAMED: dataset}
        reader = Reader([dataset, *tests.values()], collate_fn)
        drawn = sequence(len(dataset), batch_size, seed, shuffle, sampler, batch_sampler)
        self._minibatches = Minibatches(reader, batch_size, drawn, sharded, num_workers)
        self._batch_size = batch_size
        self.shares_draws = drawn is not None
        self.evaluations = Evaluations(tests, {**(metrics or {}), "loss": loss_fn}, evaluation_batch)
        if not isinstance(model, torch.nn.Module):
            torch.default_generator.manual_seed(seed)
            model = model()
        self.device = device_of(torch, device)
        self.model = model.to(self.device)
        self._half, self._pinned = PRECISIONS[precision], pin_memory
        self._loss_fn, self._collate, self._threads = loss_fn, collate_fn, threads
        self._flat = FlatModel(torch, self.model, self.device, buffers, logs, scaled=precision == "fp16")
        self.layout = self._flat.layout
        self.halved_results = self.layout.weights if WIRES[wire] else 0
        self.halved_x = self.layout.weights if WIRES[wire_x] else 0
        self.x0: Array = self._flat.point() if start is None else self.load(start)

    def bind(self, update: Update) -> Update:
        """Return an update that moves the weights of this model by another one, and averages what follows."""
        if isinstance(update, TorchUpdate):
            update.bind(self.model)
        return TailUpdate(update, self.layout, self._flat.description(), self._flat.sample())

    def training_settings(self) -> dict[str, str | int]:
        """Return what the run file of a script keeps, so that a resumed run notices another training."""
        loss = getattr(self._loss_fn, "__qualname__", type(self._loss_fn).__qualname__)
        return {"model": type(self.model).__qualname__, "loss": loss, "batch_size": self._batch_size}

    def logged(self, x: Array) -> dict[str, float]:
        """Return what the tasks of the update that led to x have logged, on average."""
        return self.layout.logged(x)

    def setup(self, worker: int | None, n: int) -> None:
        """Use one thread, unless the user wants more, and set the number of workers that share the data."""
        if self._threads is not None or "OMP_NUM_THREADS" not in os.environ:
            self._torch.set_num_threads(self._threads or 1)
        self._minibatches.open(worker, n)

    def shared_arrays(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield what must be the same on all ranks: frozen weights, constant buffers, a hash of samples."""
        yield from self._flat.constants()
        yield from self._minibatches.shared_arrays()

    def expect(self, tasks: Iterable[Task]) -> None:
        """Read the minibatches of these tasks ahead, if there are loader processes."""
        self._minibatches.expect(tasks)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient over one minibatch."""
        return self.gradients(x, [task])

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of the gradients over several minibatches; the next task reuses the array."""
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
        value = self._value(self._loss_fn, *self._minibatches.of_task(task))
        loss, weight, logs = task_loss(value, self.layout)
        if task.stopped():
            return False
        total = loss * weight if weight != 1 else loss
        (total * self._flat.scale() if self.layout.scaled else total).backward()
        self._flat.add_tail(weight, logs)
        return True

    def _value(self, function: Callable[[Any, Any], Any], minibatch: Any, seed: int) -> Any:
        """Return the value of a loss or metric of the model's outputs for a minibatch and its targets.

        The random numbers of the model depend on the seed alone, whichever process has read the minibatch.
        """
        torch, device = self._torch, self.device
        seed_model(seed)
        moved = on_device(device, minibatch, self._pinned)
        with torch.autocast(device.type, getattr(torch, self._half)) if self._half else nullcontext():
            return function(*forward(self.model, moved))

    def loss(self, x: Array) -> float:
        """Return the mean loss over the test samples."""
        return self.evaluate(x)["loss"]

    def evaluate(self, x: Array) -> dict[str, float]:
        """Return the means of loss and metrics over the test samples, and what the last tasks have logged."""
        return self.evaluate_parts(x, self.evaluations.parts[self.evaluations.default])

    def evaluate_parts(self, x: Array, parts: range) -> dict[str, float]:
        """Return the same for these parts, evaluated in this process."""
        return self.combine_parts(x, [number for part in parts for number in self.evaluate_part(x, part)])

    @property
    def evaluation_parts(self) -> int:
        """Return into how many parts an evaluation can be divided; 0 where evaluate() is the user's own."""
        own = type(self).evaluate is TorchProblem.evaluate
        return len(self.evaluations.parts[self.evaluations.default]) if own else 0

    def evaluate_part(self, x: Array, part: int) -> list[float]:
        """Return the sums of loss and metrics over one minibatch of test samples, each with its weight."""
        position, number = self.evaluations.locate(part)
        dataset = TRAINING + 1 + position
        minibatch, size = self._minibatches.of_part(dataset, number, self.evaluations.size)
        return self._sums(x, minibatch, size, number, self.evaluations.metrics)

    def _sums(self, x: Array, minibatch: Any, size: int, seed: int, metrics: Metrics) -> list[float]:
        self._flat.move_to(x)
        self.model.eval()
        with self._torch.no_grad():
            found: list[float] = self._value(partial(sums, metrics, size), minibatch, seed)
        return found

    def combine_parts(self, x: Array, numbers: Sequence[float]) -> dict[str, float]:
        """Return the means over all parts, and what the last tasks have logged."""
        found = means(self.evaluations.metrics, numbers)
        return found | {f"train_{name}": value for name, value in self.logged(x).items()}

    def evaluate_here(self, x: Array, dataset: Any, metrics: Metrics) -> dict[str, float]:
        """Return the means of metrics over a dataset that workers do not know, in this process alone."""
        reader, size, found = Reader([dataset], self._collate), self.evaluations.size, list[float]()
        for part in range(-(-len(dataset) // size)):
            request = reader.part(0, part, size)
            found += self._sums(x, reader.read(request), len(request.samples), part, metrics)
        return means(metrics, found)

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
        write_weights(self.state_dict(x), path)

    def load(self, path: str | Path) -> Array:
        """Return the point x whose state_dict is in a file; only tensors are unpickled."""
        load_weights(self.model, path)
        return self._flat.point()
