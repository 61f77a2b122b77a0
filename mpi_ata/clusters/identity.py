"""Who a worker is: by this it is recognised in later runs."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from mpi_ata.launch import THREADS

DRAWN = "drawn: "  # begins what stands for hardware where times are drawn
CPUS, GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")
LONGEST = 192  # bytes that a rank may say of its hardware
ARM = ("CPU implementer", "CPU part")  # all that an ARM processor says of its model


class WorkerIdentity(NamedTuple):
    """Where a worker stands, and everything else that changes the time of its tasks."""

    host: str
    slot: int  # among the ranks on its host; where times are drawn, its index, which decides them
    hardware: str  # or the law of its times
    ranks: int = 1  # on its host, which share that hardware


def drawn_identity(host: str, worker: int, law: str, ranks: int = 1) -> WorkerIdentity:
    """A worker whose times follow a law: they depend on its index, and on no hardware."""
    return WorkerIdentity(host, worker, DRAWN + law, ranks)


@cache
def hardware() -> str:
    """The hardware that this process may use, as far as it decides how long a task takes."""
    parts = [_processor(CPUS), f"{_usable_cores()} of {os.cpu_count()} cores", _threads(os.environ)]
    gpus = _gpus(GPUS, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return _fitting(", ".join([*parts, gpus] if gpus else parts))


def _fitting(text: str) -> str:
    """A text short enough to travel, and still unlike all others."""
    data = text.encode(errors="replace")
    if len(data) <= LONGEST:
        return data.decode()
    return f"{data[: LONGEST - 20].decode(errors='ignore')}... {sha256(data).hexdigest()[:16]}"


def _usable_cores() -> int:
    """How many cores the launcher or Slurm leaves to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor(file: Path) -> str:
    """The model; never its frequency of the moment."""
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines()]
    except OSError:
        lines = []
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    if "model name" in said:
        return said["model name"]
    return " ".join([platform.processor() or platform.machine(), *(said[key] for key in ARM if key in said)])


def _threads(environment: Mapping[str, str]) -> str:
    """How many threads numerical libraries may start, each by its own variable where they differ."""
    allowed = {name.removesuffix("_NUM_THREADS"): environment.get(name, "all") for name in THREADS}
    if len(set(allowed.values())) == 1:
        return f"{allowed['OMP']} threads"
    return "threads " + " ".join(f"{name}={value}" for name, value in allowed.items())


def _gpus(folder: Path, visible: str | None) -> str:
    """The models of NVIDIA's devices, and which of them this process may use; without asking a library."""
    models = Counter(
        line.partition(":")[2].strip()
        for file in sorted(folder.glob("*/information"))
        for line in file.read_text().splitlines()
        if line.startswith("Model:")
    )
    if not models or visible in ("", "-1", "NoDevFiles"):
        return ""
    text = " + ".join(f"{count} {model}" for model, count in models.items())
    if visible is None:
        return text
    # Where all are alike their number is what counts; otherwise it matters which ones.
    return f"{visible.count(',') + 1 if len(models) == 1 else f'devices {visible}'} of {text}"
