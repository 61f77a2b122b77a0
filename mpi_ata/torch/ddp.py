"""The mean over ranks of a model's gradients, and of the running statistics of its normalisations."""

import atexit
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import RunError, UsageError
from mpi_ata.torch.data import Epochs, set_epoch
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

    def __init__(self, model: Any) -> None:
        torch = import_torch()
        self._all_reduce = torch.distributed.all_reduce
        self._model, self._parameters = model, trained(model)
        found = running_statistics(torch, model)
        self._statistics = sorted(found, key=lambda buffer: not buffer.is_floating_point())
        templates = [_summable(buffer) for buffer in self._statistics]
        self._buckets: list[tuple[Any, list[Any]]] = []  # arrays, and their views, one for each tensor
        for tensors in _divided([*self._parameters, *templates]):
            flat = tensors[0].detach().new_empty(sum(tensor.numel() for tensor in tensors))
            self._buckets.append((flat, views_like(tensors, flat)))

    def fits(self, model: Any, parameters: Sequence[Any]) -> bool:
        """Return whether this is the model, and whether the same parameters of it have gradients."""
        return model is self._model and [*map(id, parameters)] == [*map(id, self._parameters)]

    def start(self, weight: float, total: float) -> list[Any]:
        """Begin to average; statistics of this rank have its weight, gradients are sums that have it."""
        gradients = [parameter.grad for parameter in self._parameters]
        values = iter([*gradients, *(_summable(buffer) * weight for buffer in self._statistics)])
        running = []
        for flat, views in self._buckets:
            for view, value in zip(views, values, strict=False):
                view.zero_() if value is None else view.copy_(value)
            running.append(self._all_reduce(flat.mul_(1 / total), async_op=True))
        return running

    def finish(self, running: Sequence[Any], used: Sequence[bool]) -> None:
        """Take the means; parameters that no rank has used keep no gradient, as in DDP."""
        for work in running:
            work.wait()
        means = (view for _, views in self._buckets for view in views)
        for parameter, anywhere, mean in zip(self._parameters, used, means, strict=False):
            parameter.grad = mean if anywhere else None
        for buffer, mean in zip(self._statistics, means, strict=True):
            buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def _summable(buffer: Any) -> Any:
    """Return a buffer as it is averaged; float32 would round the counters of long trainings."""
    return buffer if buffer.is_floating_point() else buffer.double()


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
        """Take in a module that may be one of DDP."""
        if isinstance(module, import_torch().nn.parallel.DistributedDataParallel):
            self._modules[id(module)] = module


def _isolate(module: Any) -> None:
    module.require_backward_grad_sync = False
    module.require_forward_param_sync = False  # of buffers, before a forward pass


NOT_INITIALISED = (
    "there is no process group of torch.distributed: call torch.distributed.init_process_group() first, and "
    "start the script with torchrun or mpirun"
)

FAILED = -1  # instead of counts
# After a collective call has returned, gloo's threads still drop its tensors, for which they need the
# interpreter: one that is shutting down would abort the process.
SETTLING_SECONDS = 0.1
REPORT_SECONDS = 1.0  # that rank 0 has to report an error: launchers end all ranks when the first one ends


class RankGroup:
    """The ranks of torch.distributed; whatever a rank does here, all must do."""

    def __init__(self) -> None:
        self._torch, distributed = import_torch(), import_torch().distributed
        if not distributed.is_available() or not distributed.is_initialized():
            raise UsageError(NOT_INITIALISED)
        atexit.register(time.sleep, SETTLING_SECONDS)
        self._distributed = distributed
        self.rank, self.n = distributed.get_rank(), distributed.get_world_size()
        # Other backends may move only what is on a GPU, and do not notice a rank that has died.
        self._group = None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")

    def gather(self, numbers: Sequence[float], width: int) -> Array:
        """Return the numbers of all ranks, one row each, padded with zeros to this width."""
        own = self._torch.zeros(width, dtype=self._torch.float64)
        own[: len(numbers)] = self._torch.tensor(numbers, dtype=self._torch.float64)
        everyone = own.new_empty((self.n, width))
        self._distributed.all_gather(list(everyone.unbind()), own, group=self._group)
        rows: Array = everyone.numpy()
        return rows

    def gather_texts(self, *texts: str) -> list[tuple[str, ...]]:
        """Return the texts of all ranks."""
        found: list[Any] = [None] * self.n
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
        self._distributed.all_reduce(message, self._distributed.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in message.tolist()]


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
        parts: list[Any] = [getattr(loader, name, None) for name in ("dataset", "batch_size", "collate_fn")]
        if None in parts:
            raise UsageError(
                "shuffle='epoch' needs a DataLoader with a dataset and a batch_size; use these, or leave "
                "shuffle out"
            )
        dataset, batch_size, collate = parts
        usual = collate is import_torch().utils.data.default_collate
        try:
            reader = Reader([dataset], None if usual else collate)
        except UsageError as error:
            raise UsageError(f"{error}; shuffle='epoch' draws samples of it, so give it some") from None
        self.loader, self._epochs = loader, Epochs(len(dataset), batch_size, seed)
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


FIELDS = 5  # numbers with which each row begins: those of ShareReport but for the seconds


class ShareReport(NamedTuple):
    """What a rank reports of its share of a round."""

    done: int  # micro-batches
    weight: float
    losses: int  # that were logged
    loss: float  # their sum
    unused: bool  # whether it has parameters without a gradient, though it has done micro-batches
    seconds: list[float]  # of each micro-batch


def reports(rows: Array) -> list[ShareReport]:
    """Return the reports of all ranks."""
    found = []
    for done, weight, losses, loss, unused, *seconds in rows.tolist():
        found.append(ShareReport(int(done), weight, int(losses), loss, bool(unused), seconds[: int(done)]))
    return found


class Share:
    """The micro-batches of this rank in one round; the first one of a process is `cold`, and takes longer."""

    def __init__(self, quota: IntArray, rank: int, cold: bool = False) -> None:
        self.quota, self.began, self._cold = quota, time.perf_counter(), cold
        self.before, self.count = int(quota[:rank].sum()), int(quota[rank])
        self._seconds: list[float] = []
        self._losses: list[Any] = []

    @property
    def width(self) -> int:
        """Return how many numbers the longest report of this round has."""
        return FIELDS + int(self.quota.max())

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

    def log(self, loss: Any) -> None:
        """Note the loss of a micro-batch; the device need not be waited for yet."""
        self._losses.append(loss.detach() if isinstance(loss, import_torch().Tensor) else loss)

    def report(self, weight: float | None, unused: bool) -> list[float]:
        """Return what all ranks need to know, as the numbers of a ShareReport."""
        done, losses = len(self._seconds), [float(loss) for loss in self._losses]
        own = float(done) if weight is None else float(weight)
        return [done, own, len(losses), sum(losses), unused and done > 0, *self._usual_seconds()]

    def _usual_seconds(self) -> list[float]:
        """Return the seconds of each micro-batch, as if the cold one had taken as long as the others."""
        if not self._cold or len(self._seconds) < 2:
            return self._seconds
        others = self._seconds[1:]
        return [sum(others) / len(others), *others]
