"""The running statistics of batch norm and other normalisations."""

from typing import Any


def running_statistics(torch: Any, model: Any) -> list[Any]:
    """Return the buffers in which normalisations keep their running statistics and counters."""
    norms = torch.nn.modules.batchnorm._NormBase
    modules = [module for module in model.modules() if isinstance(module, norms)]
    return [buffer for module in modules for buffer in module.buffers(recurse=False)]
