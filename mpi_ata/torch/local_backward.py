"""Backward passes of DDP modules that stay on their rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpi_ata.torch.devices import import_torch


class LocalBackward:
    """Keeps DDP modules from exchanging anything, as their no_sync() does, and in the first pass too.

    Ranks do unequal numbers of passes: one that exchanges something in each would wait forever.  Which
    modules there are is noticed when this rank calls them.
    """

    def __init__(self) -> None:
        self._modules: list[Any] = []
        self.called = False  # whether this rank has called its modules, so that all are known

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the passes inside stay on this rank."""
        torch = import_torch()
        hook = None
        if not self.called:
            hook = torch.nn.modules.module.register_module_forward_pre_hook(self._notice)
        for module in self._modules:
            _isolate(module)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()
            for module in self._modules:
                module.require_backward_grad_sync = True

    def _notice(self, module: Any, arguments: Any) -> None:
        if isinstance(module, _ddp()):
            self._add(module)
            _isolate(module)

    def note(self, model: Any, called: bool) -> None:
        """Take in a model that may be a DDP module, and whether this rank has called its modules by now."""
        if isinstance(model, _ddp()):
            self._add(model)
        self.called = self.called or called

    def _add(self, module: Any) -> None:
        if all(module is not known for known in self._modules):
            self._modules.append(module)


def _ddp() -> Any:
    return import_torch().nn.parallel.DistributedDataParallel


def _isolate(module: Any) -> None:
    module.require_backward_grad_sync = False
    module.require_forward_param_sync = False  # of buffers, before a forward pass
