"""Who a worker is: by this it is recognised in later runs."""

import os
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """Where a worker stands, and everything else that changes the time of its tasks."""

    host: str
    slot: int  # among the ranks on its host
    hardware: str


@cache
def hardware() -> str:
    """The hardware of this process's node, as far as it decides how long a task takes."""
    parts = [_processor(), f"{os.cpu_count()} cores", f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads"]
    return ", ".join([*parts, *_accelerators()])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _accelerators() -> list[str]:
    """The models of NVIDIA's devices that this process may use, without asking a library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return [f"{len(models)} {models[0]}"] if models else []
