"""Who a worker is, so that later runs recognise it."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from mpi_ata.launch import THREADS
from mpi_ata.limits import usable_cores

VIRTUAL = "virtual"  # the host of simulated workers
DRAWN = "drawn: "  # begins what takes the place of hardware where times are drawn
CPUS, GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")
HARDWARE_BYTES = 192  # of a rank's description of its hardware
ARM = ("CPU implementer", "CPU part")  # all that an ARM processor reports about its model


class WorkerIdentity(NamedTuple):
    """Where a worker runs, and everything else that changes the time of its tasks."""

    host: str
    local_index: int  # among the ranks on its host; where times are drawn, the worker's index
    hardware: str  # or the law of its times
    ranks_on_host: int = 1  # which share that hardware


def drawn_identity(host: str, worker: int, law: str, ranks_on_host: int = 1) -> WorkerIdentity:
    """Return the identity of a worker whose times follow a law: its index decides them, not its hardware."""
    return WorkerIdentity(host, worker, DRAWN + law, ranks_on_host)


@cache
def hardware() -> str:
    """Describe the hardware that this process may use, as far as it decides how long a task takes."""
    parts = [_processor(CPUS), f"{usable_cores()} of {os.cpu_count()} cores", _threads(os.environ)]
    gpus = _gpus(GPUS, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return _fitting(", ".join([*parts, gpus] if gpus else parts))


def _fitting(text: str) -> str:
    """Shorten a text to fit into the handshake, still different from all others."""
    data = text.encode(errors="replace")
    if len(data) <= HARDWARE_BYTES:
        return data.decode()
    return f"{data[: HARDWARE_BYTES - 20].decode(errors='ignore')}... {sha256(data).hexdigest()[:16]}"


def _processor(file: Path) -> str:
    """Return the model of the processor, without its current frequency."""
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines()]
    except OSError:
        lines = []
    reported = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    if "model name" in reported:
        return reported["model name"]
    return " ".join(
        [platform.processor() or platform.machine(), *(reported[key] for key in ARM if key in reported)]
    )


def _threads(environment: Mapping[str, str]) -> str:
    """Describe how many threads numerical libraries may start, each by its own variable where they differ."""
    allowed = {name.removesuffix("_NUM_THREADS"): environment.get(name, "all") for name in THREADS}
    if len(set(allowed.values())) == 1:
        return f"{allowed['OMP']} threads"
    return "threads " + " ".join(f"{name}={value}" for name, value in allowed.items())


def _gpus(folder: Path, visible: str | None) -> str:
    """Describe NVIDIA devices and which of them this process may use, without loading a library."""
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
    # Where all are of one model only their number matters; otherwise it matters which ones.
    return f"{visible.count(',') + 1 if len(models) == 1 else f'devices {visible}'} of {text}"
