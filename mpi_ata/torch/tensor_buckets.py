"""Tensors that are added up over the ranks of torch.distributed in few large calls."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mpi_ata.torch.devices import import_torch

BUCKET = 25 << 20  # bytes that one call adds up, as in DDP: one is copied while another is on its way


class Bucket(NamedTuple):
    """Tensors that are added up in one call."""

    flat: Any  # one array for all of them
    views: list[Any]  # of that array, one for each tensor


class TensorBuckets:
    """Arrays into which tensors are copied to be added up over all ranks; they are kept from sum to sum."""

    def __init__(self, templates: Sequence[Any]) -> None:
        self._distributed = import_torch().distributed
        self._buckets = [_bucket(each) for each in _divided(templates)]

    def start(self, values: Sequence[Any], factor: float) -> list[Any]:
        """Begin to add up values times a factor over all ranks; None stands for zero."""
        running, rest = [], iter(values)
        for flat, views in self._buckets:
            for view in views:
                value = next(rest)
                view.zero_() if value is None else view.copy_(value)
            running.append(self._distributed.all_reduce(flat.mul_(factor), async_op=True))
        return running

    def finish(self, running: Sequence[Any]) -> list[Any]:
        """Return the sums, which the next ones overwrite."""
        for work in running:
            work.wait()
        return [view for bucket in self._buckets for view in bucket.views]


def _divided(templates: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield neighbours of one type and device, each time up to the size of a bucket."""
    bucket: list[Any] = []
    size = 0
    for tensor in templates:
        kind = tensor.dtype, tensor.device
        if bucket and (size + tensor.nbytes > BUCKET or kind != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def _bucket(tensors: list[Any]) -> Bucket:
    sizes = [tensor.numel() for tensor in tensors]
    flat = tensors[0].detach().new_empty(sum(sizes))
    parts = zip(flat.split(sizes), tensors, strict=True)
    return Bucket(flat, [part.view(tensor.shape) for part, tensor in parts])
