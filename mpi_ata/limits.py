"""What no machine could do is rejected before it starts: rounds that never end, arrays beyond its memory."""

import os
import re
from pathlib import Path

from mpi_ata.errors import UsageError

MAX_TASKS = 10**9  # per round: at 1 us each, far less than any real task takes, that is a quarter of an hour
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_tasks(name: str, count: float) -> None:
    """Reject more tasks per round than could be done in reasonable time."""
    if count > MAX_TASKS:
        raise UsageError(
            f"{name}={count} must be at most {MAX_TASKS:,} tasks per round: more take over a quarter of an "
            "hour even at a microsecond each; choose fewer tasks that each do more"
        )


def check_memory(what: str, needed: float) -> None:
    """Reject what needs more bytes than this machine has in all."""
    if needed > (there := machine_memory()):
        raise UsageError(
            f"{what} needs at least {needed / 1e9:,.1f} GB of memory, but this machine has "
            f"{there / 1e9:,.1f} GB; choose a smaller number"
        )


def machine_memory() -> int:
    """Return how many bytes of memory processes on this machine, or in this container, can have."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def usable_cores() -> int:
    """Return how many cores the launcher or Slurm leaves to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on."""
    try:
        text = Path("/proc/mounts").read_text()
    except OSError:
        return "file system unknown"
    mounts = [line.split()[1:3] for line in text.splitlines()]
    points = [Path(re.sub(r"\\(\d{3})", lambda hit: chr(int(hit[1], 8)), point)) for point, _ in mounts]
    above = [(len(point.parts), j) for j, point in enumerate(points) if path.is_relative_to(point)]
    # The deepest mount point, and there the latest mount; in a chroot / is no mount point.
    return mounts[max(above)[1]][1] if above else "file system unknown"
