"""The mean over ranks of a model's gradients, and of the running statistics of its normalisations."""

import atexit
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mpi_ata import launch
from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import RunError, UsageError
from mpi_ata.torch.data import RankBatches, sequence, set_epoch
from mpi_ata.torch.devices import import_torch, seed_model
from mpi_ata.torch.loaders import Loaders, Reader
from mpi_ata.torch.model import running_statistics, trained_parameters, views_like

BUCKET_BYTES = 25 << 20  # that one call adds up, as in DDP: one is copied while another is on its way


def _divided(templates: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield neighbours of one type and device, each time up to the size of a bucket."""
    bucket: list[Any] = []
    size = 0
    for tensor in templates:
        kind = tensor.dtype, tensor.device
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or kind != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


class ModelMean:
    """Averages gradients and running statistics of one model; other buffers stay as they are."""

    def __init__(self, model: Any, group: "RankGroup") -> None:
        self._group, self._model, self._parameters = group, model, trained(model)
        found = running_statistics(import_torch(), model)
        self._statistics = [buffer for buffer in found if buffer.is_floating_point()]
        self._counters = [buffer for buffer in found if not buffer.is_floating_point()]
        # Arrays, and their views, one for each tensor.
        self._buckets = [_bucket(tensors) for tensors in _divided([*self._parameters, *self._statistics])]
        # float32 would round the counters of long trainings.
        self._counts = [_bucket(tensors) for tensors in _divided([each.double() for each in self._counters])]

    def fits(self, model: Any, parameters: Sequence[Any]) -> bool:
        """Return whether this is the model, and whether the same parameters of it have gradients."""
        return model is self._model and [*map(id, parameters)] == [*map(id, self._parameters)]

    def start(self, weight: float, scale: float) -> list[Any]:
        """Begin to add up, times `scale`; statistics get the weight of this rank, gradients have it."""
        gradients = [parameter.grad for parameter in self._parameters]
        values = [*gradients, *(buffer * weight for buffer in self._statistics)]
        return [
            *self._start(self._buckets, values, scale),
            *self._start(self._counts, self._counters, 1 / self._group.n),
        ]

    def _start(
        self, buckets: Sequence[tuple[Any, list[Any]]], values: Iterable[Any], scale: float
    ) -> Iterator[Any]:
        values = iter(values)
        for flat, views in buckets:
            for view, value in zip(views, values, strict=False):
                view.zero_() if value is None else view.copy_(value)
            yield self._group.start_sum(flat.mul_(scale))

    def finish(self, used: Sequence[bool], scale: float) -> None:
        """Take the sums, times `scale`; parameters that no rank has used keep no gradient, as in DDP."""
        for flat, _ in self._buckets:
            if scale != 1:
                flat.mul_(scale)
        means = (view for _, views in self._buckets for view in views)
        for parameter, anywhere, mean in zip(self._parameters, used, means, strict=False):
            parameter.grad = mean if anywhere else None
        for buffer, mean in zip(self._statistics, means, strict=True):
            buffer.copy_(mean)
        means = (view for _, views in self._counts for view in views)
        for buffer, mean in zip(self._counters, means, strict=True):
            buffer.copy_(mean.round())


def _bucket(tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
    flat = tensors[0].detach().new_empty(sum(tensor.numel() for tensor in tensors))
    return flat, views_like(tensors, flat)


def trained(model: Any) -> list[Any]:
    """Return the parameters of a model that have gradients; reject sparse ones."""
    found = trained_parameters(model)
    if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in found):
        raise RunError("the model has sparse gradients, which are not averaged here; use sparse=False")
    return found


class LocalBackward:
    """Keeps DDP modules from exchanging anything, as their no_sync() does, and in the first pass too.

    Ranks do unequal numbers of passes: one that exchanges something in each would wait forever.  Which
    modules there are is noticed when this rank calls them.
    """

    def __init__(self) -> None:
        self._modules: dict[int, Any] = {}  # by id
        self.called = False  # whether this rank has called its modules, so that all are known

    def isolated(self, minibatches: Iterable[Any]) -> Iterator[Any]:
        """Yield minibatches, the passes over which stay on this rank."""
        hook = None
        if not self.called:
            hook = import_torch().nn.modules.module.register_module_forward_pre_hook(self._notice)
        for module in self._modules.values():
            _isolate(module)
        try:
            yield from minibatches
        finally:
            if hook is not None:
                hook.remove()
            for module in self._modules.values():
                module.require_backward_grad_sync = True

    def _notice(self, module: Any, arguments: Any) -> None:
        self.note(module)
        if id(module) in self._modules:
            _isolate(module)

    def note(self, module: Any) -> None:
        """Take in a module that may be one of DDP; reject those whose passes exchange something."""
        for cls in type(module).__mro__:
            if cls.__name__ in EXCHANGING and not (cls.__name__ == "SyncBatchNorm" and not module.training):
                raise UsageError(f"{cls.__name__} {EXCHANGING[cls.__name__]}")
        if isinstance(module, import_torch().nn.parallel.DistributedDataParallel):
            self._modules[id(module)] = module


def _isolate(module: Any) -> None:
    module.require_backward_grad_sync = False
    module.require_forward_param_sync = False  # of buffers, before a forward pass


SHARDED = "adds up gradients inside backward(), but ranks do unequal numbers of passes here; use DDP"
EXCHANGING = {  # by the names of classes, without importing them
    **dict.fromkeys(("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"), SHARDED),
    "SyncBatchNorm": "exchanges statistics in each pass, but ranks do unequal numbers of passes here; use "
    "BatchNorm, whose running statistics are averaged after each step",
}
NOT_INITIALISED = (
    "there is no process group of torch.distributed, though there are {} ranks: call "
    "torch.distributed.init_process_group() first"
)

FAILED = -1  # instead of counts
# After a collective call has returned, gloo's threads still drop its tensors, for which they need the
# interpreter: one that is shutting down would abort the process.
SETTLING_SECONDS = 0.1
REPORT_SECONDS = 1.0  # that rank 0 has to report an error: launchers end all ranks when the first one ends


class RankGroup:
    """The ranks of torch.distributed; whatever a rank does here, all must do.  One process needs no group."""

    def __init__(self) -> None:
        self._torch, distributed = import_torch(), import_torch().distributed
        self.rank, self.n, self._distributed = 0, 1, None
        if not distributed.is_available() or not distributed.is_initialized():
            if (started := max(launch.world_size(), int(os.environ.get("WORLD_SIZE", "1")))) > 1:
                raise UsageError(NOT_INITIALISED.format(started))
            return
        atexit.register(time.sleep, SETTLING_SECONDS)
        self._distributed = distributed
        self.rank, self.n = distributed.get_rank(), distributed.get_world_size()
        # Other backends may move only what is on a GPU, and do not notice a rank that has died.
        self._group = None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")

    def start_sum(self, flat: Any) -> Any:
        """Begin to add up an array over all ranks, in place."""
        return self._distributed and self._distributed.all_reduce(flat, async_op=True)

    def gather(self, numbers: Sequence[float], width: int) -> Array:
        """Return the numbers of all ranks, one row each, padded with zeros to this width."""
        own = self._torch.zeros(width, dtype=self._torch.float64)
        own[: len(numbers)] = self._torch.tensor(numbers, dtype=self._torch.float64)
        everyone = own.new_empty((self.n, width))
        if self._distributed is None:
            everyone[0] = own
        else:
            self._distributed.all_gather(list(everyone.unbind()), own, group=self._group)
        rows: Array = everyone.numpy()
        return rows

    def gather_texts(self, *texts: str) -> list[tuple[str, ...]]:
        """Return the texts of all ranks."""
        found: list[Any] = [texts] * self.n
        if self._distributed is not None:
            self._distributed.all_gather_object(found, texts, group=self._group)
        return found

    def from_rank_0(self, decide: Callable[[], IntArray] | None, width: int) -> IntArray:
        """Return the counts that rank 0 decides on; if it fails, it says why, and all ranks end."""
        message, failure = self._torch.zeros(width, dtype=self._torch.int64), None
        if self.rank == 0 and decide is not None:
            try:
                message[:] = self._torch.from_numpy(decide())
            except Exception as error:
                message[:], failure = FAILED, error
        if self._distributed is not None:
            self._distributed.broadcast(message, 0, group=self._group)
        if failure is not None:
            raise failure
        if width and message[0] == FAILED:
            time.sleep(REPORT_SECONDS)
            sys.exit(2)
        received: IntArray = message.numpy()
        return received

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return which of these flags are true on any rank."""
        message = self._torch.tensor(flags, dtype=self._torch.uint8)
        if self._distributed is not None:
            self._distributed.all_reduce(message, self._distributed.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in message.tolist()]


PREPARED = (
    "the loader was prepared by Accelerate, which lets ranks wait for each other when one begins an epoch; "
    "pass the DataLoader itself: leave it out of accelerator.prepare()"
)


class LoaderDraws:
    """Minibatches of a loader without end: when it is exhausted, the next epoch begins."""

    def __init__(self, loader: Any, epoch: int) -> None:
        self.loader, self._batches = loader, _endless(loader, epoch)

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield the next `count` minibatches, whatever their place among those of all ranks."""
        return islice(self._batches, count)

    def close(self) -> None:
        """Let go of the loader's processes, if it has any."""
        self._batches.close()


def _endless(loader: Any, epoch: int) -> Generator[Any, None, None]:
    batch = loader  # which is none of its batches
    while True:
        set_epoch(getattr(loader, "sampler", None), epoch)
        for batch in loader:
            yield batch
        if batch is loader:
            raise UsageError(
                "the loader has no batches; give it more samples, a smaller batch_size or drop_last=False, "
                "and let it be one that can be iterated over more than once"
            )
        batch, epoch = loader, epoch + 1


class SharedDraws:
    """Minibatches of a loader's dataset in one sequence for all ranks, each sample once per epoch.

    A minibatch, and what is drawn for it, depend on its place in the sequence alone.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        dataset, collate = (getattr(loader, name, None) for name in ("dataset", "collate_fn"))
        size, sampler = (getattr(loader, name, None) for name in ("batch_size", "batch_sampler"))
        if dataset is None or collate is None or (size is None and sampler is None):
            raise UsageError(
                "shuffle='epoch' needs a DataLoader with a dataset, and a batch_size or a batch_sampler; use "
                "these, or leave shuffle out"
            )
        usual = collate is import_torch().utils.data.default_collate
        try:
            reader = Reader([dataset], None if usual else collate)
        except UsageError as error:
            raise UsageError(f"{error}; shuffle='epoch' draws samples of it, so give it some") from None
        drawn = ("replacement", None, sampler) if size is None else ("epoch",)
        self.loader, found = loader, sequence(len(dataset), size or 1, seed, *drawn)
        assert found is not None  # tasks of no kind draw for themselves here
        self._epochs = found
        self._loaders = Loaders(reader, loader.num_workers)

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield `count` minibatches, from this place of the sequence on."""
        drawn = [self._epochs.request(index) for index in range(first, first + count)]
        self._loaders.expect(request for request, _ in drawn)
        for request, model_seed in drawn:
            minibatch = self._loaders.get(request)
            seed_model(model_seed)  # whichever process has read it
            yield minibatch

    def close(self) -> None:
        """End the loader processes, if there are any."""
        self._loaders.close()


class EpochSteps:
    """The optimizer steps of a trainer that has a loop of its own: those of plain DDP, and what each draws.

    `loader` is that of one of n ranks under plain DDP.  The trainer iterates over `placeholder`, once per
    step, and gets nothing from it; micro-batches are those that `source` has in the `places` of the step.
    """

    def __init__(self, loader: Any, n: int, budget: int) -> None:
        if not hasattr(loader.dataset, "__len__"):
            kind = type(loader.dataset).__name__
            raise UsageError(f"the training data {kind} have no length; use a dataset with samples by number")
        data, batches = import_torch().utils.data, RankBatches(loader.batch_sampler, n)
        self._size, self._budget, self.steps = len(batches), budget, -(-len(batches) // budget)
        kinds = {"collate_fn": loader.collate_fn, "num_workers": loader.num_workers}
        self.source = data.DataLoader(loader.dataset, batch_sampler=batches, **kinds)
        empty: list[list[int]] = [[]] * self.steps
        self.placeholder = data.DataLoader(loader.dataset, batch_sampler=empty, collate_fn=_collate_nothing)

    def places(self, epoch: int, step: int) -> range:
        """Return the micro-batches of a step; the last step of an epoch may have fewer than others."""
        ends = (min(each * self._budget, self._size) for each in (step, step + 1))
        return range(*(epoch * self._size + end for end in ends))


def _collate_nothing(samples: list[Any]) -> dict[str, Any]:
    return {}


FIELDS = 4  # numbers with which each row begins, before the logs and the seconds of a ShareReport


class ShareReport(NamedTuple):
    """What a rank reports of its share of a round."""

    done: int  # micro-batches
    weight: float
    unused: bool  # whether it has parameters without a gradient, though it has done micro-batches
    unnamed: bool  # whether it has logged something whose name is not known to all ranks yet
    logs: list[tuple[float, float]]  # of each name the sum of values, weighted, and of weights
    seconds: list[float]  # of each micro-batch


def reports(rows: Array, names: Sequence[str]) -> list[ShareReport]:
    """Return the reports of all ranks."""
    found = []
    for done, weight, unused, unnamed, *others in rows.tolist():
        sums, seconds = others[: 2 * len(names)], others[2 * len(names) :]
        logs = list(zip(sums[::2], sums[1::2], strict=True))
        found.append(ShareReport(int(done), weight, bool(unused), bool(unnamed), logs, seconds[: int(done)]))
    return found


def mean_logs(shares: Sequence[ShareReport], names: Sequence[str]) -> dict[str, float]:
    """Return the weighted means of what ranks have logged, by name."""
    found = {}
    for i, name in enumerate(names):
        value, weight = (math.fsum(share.logs[i][part] for share in shares) for part in (0, 1))
        if weight:
            found[name] = value / weight
    return found


class Share:
    """The micro-batches of this rank in one round; the first one of a process is `cold`, and takes longer."""

    def __init__(self, quota: IntArray, rank: int, cold: bool = False) -> None:
        self.quota, self.began, self._cold = quota, time.perf_counter(), cold
        self.before, self.count = int(quota[:rank].sum()), int(quota[rank])
        self._seconds: list[float] = []
        self._logs: dict[str, list[tuple[Any, float]]] = {}  # values and weights, by name

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of what this rank has logged."""
        return tuple(self._logs)

    def timed(self, minibatches: Iterable[Any]) -> Iterator[Any]:
        """Yield minibatches, and note how long each takes, from fetching it to the end of the loop's body."""
        began, cuda = time.perf_counter(), import_torch().cuda
        for minibatch in minibatches:
            yield minibatch
            if cuda.is_initialized():
                cuda.synchronize()  # a micro-batch is not done before its GPU is
            now = time.perf_counter()
            self._seconds.append(now - began)
            began = now

    def log(self, values: Mapping[str, Any], weight: float) -> None:
        """Note values of a micro-batch; the device need not be waited for yet."""
        tensor = import_torch().Tensor
        for name, value in values.items():
            own = value.detach() if isinstance(value, tensor) else value
            self._logs.setdefault(name, []).append((own, weight))

    def gather(
        self, group: RankGroup, weight: float | None, unused: bool, names: Sequence[str]
    ) -> list[ShareReport]:
        """Return the reports of all ranks, with what each has logged under these names."""
        width = FIELDS + 2 * len(names) + int(self.quota.max())
        return reports(group.gather(self._report(weight, unused, names), width), names)

    def _report(self, weight: float | None, unused: bool, names: Sequence[str]) -> list[float]:
        done = len(self._seconds)
        own = float(done) if weight is None else float(weight)
        found = [done, own, unused and done > 0, not set(self._logs) <= set(names)]
        for name in names:
            pairs = [(float(value), float(each)) for value, each in self._logs.get(name, ())]
            found += [sum(value * each for value, each in pairs), sum(each for _, each in pairs)]
        return [*found, *self._usual_seconds()]

    def _usual_seconds(self) -> list[float]:
        """Return the seconds of each micro-batch, as if the cold one had taken as long as the others."""
        if not self._cold or len(self._seconds) < 2:
            return self._seconds
        others = self._seconds[1:]
        return [sum(others) / len(others), *others]
