"""The machine: Python, cores, threads, the doorbell, shared memory, the output folder and Slurm."""

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from contextlib import closing
from importlib import metadata
from pathlib import Path

from mpi_ata import launch
from mpi_ata.clusters.doorbell import HEARING, Doorbell
from mpi_ata.doctor.finding import Finding
from mpi_ata.launch import host_name
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.version import __version__

SMALL_FOLDER = 100e6  # bytes
SMALL_SHARED_MEMORY = 128e6  # bytes; a container is often given 64 MiB


def python() -> Finding:
    """Report the version and path of Python."""
    return Finding("Python", f"{platform.python_version()}, {sys.executable}")


def package() -> Finding:
    """Report the versions of the package and of what it depends on."""
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("mpi4py", "numpy"))
    return Finding("package", f"mpi_ata {__version__} in {Path(__file__).parents[1]}, {others}")


def cores() -> Finding:
    """Check that this process is not bound to a single core."""
    usable, total = usable_cores(), os.cpu_count() or 1
    found = f"{total}, not bound" if usable == total else f"bound to {usable} of {total}"
    single = usable == 1 < total and not launch.under_launcher()
    remedy = "all ranks would share one core: request more, for example with --cpus-per-task or taskset"
    return Finding("cores", found, True, remedy if single else None)


def usable_cores() -> int:
    """Return how many cores this process may use; macOS has no way to restrict them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> Finding:
    """Check that numerical libraries do not start more threads per rank than there are cores."""
    found = " ".join(f"{name}={os.environ[name]}" for name in launch.THREADS if name in os.environ)
    each, cores = threads_per_rank(), usable_cores()
    remedy = f"each rank would start {each} threads on {cores} cores: use fewer, or request more cores"
    return Finding("threads", found or "one per rank by default", True, remedy if each > cores else None)


def threads_per_rank() -> int:
    """Return the largest value of the variables that set numbers of threads."""
    leading = [re.match(r"\d+", os.environ.get(name, "1")) for name in launch.THREADS]
    return max(int(hit[0]) if hit else 1 for hit in leading)


def doorbell() -> Finding:
    """Check that a sleeping rank can be woken from its own node and over the network."""
    near, far = can_wake(host_name()), can_wake(ip_address())
    ways = {"within the node": near, "over the network": far}
    found = ", ".join(f"{'works' if works else 'unreachable'} {way}" for way, works in ways.items())
    remedy = "jobs run, but waiting ranks check for messages only every 10 ms: "
    remedy += f"give {host_name()} an address (/etc/hosts) and allow UDP" if near else "allow Unix sockets"
    return Finding("doorbell", found, True, None if near and far else remedy)


def ip_address() -> str:
    """Return the IP address of this node, empty if it has none."""
    try:
        return socket.gethostbyname(host_name())
    except OSError:
        return ""


def can_wake(host: str) -> bool:
    """Return whether a doorbell at this host can be rung, over the network unless it is the node's name."""
    try:
        with closing(Doorbell()) as sender, closing(Doorbell()) as receiver:
            sender.ringer(host, receiver.name, receiver.port)()
            receiver.sleep(HEARING)
            return bool(host) and receiver.heard
    except OSError:
        return False


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108  (it is only measured)
    """Check the free shared memory, through which ranks on one node exchange messages."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding("shared memory", f"{folder}: {error.strerror}", True, "mount a tmpfs there")
    found = f"{bytes_text(usage.free)} of {bytes_text(usage.total)} free in {folder}"
    remedy = (
        "too little for many ranks: remove leftovers of killed jobs, or enlarge it (docker --shm-size=1g)"
    )
    return Finding("shared memory", found, True, remedy if usage.free < SMALL_SHARED_MEMORY else None)


def output_folder(folder: Path | None = None) -> Finding:
    """Check that runs can be written here, and that there is space for them."""
    folder = folder or (RUNS if RUNS.exists() else Path())
    try:
        path = folder.resolve(strict=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
        free = shutil.disk_usage(path).free
    except OSError as error:
        remedy = "change to a folder with write permission, or free space in this one"
        return Finding("output folder", f"cannot write to {folder}: {error.strerror}", False, remedy)
    found = f"{path}, {file_system(path)}, {bytes_text(free)} free, writable"
    remedy = "free space, or change to a folder with more"
    return Finding("output folder", found, True, remedy if free < SMALL_FOLDER else None)


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on."""
    try:
        lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "file system unknown"
    points = [(unescape(point), kind) for _, point, kind, *_ in lines]
    above = [(len(point.parts), j) for j, (point, _) in enumerate(points) if path.is_relative_to(point)]
    if not above:  # in a chroot, whose / is no mount point
        return "file system unknown"
    return points[max(above)[1]][1]  # the deepest mount point, and there the latest mount


def unescape(text: str) -> Path:
    """Return a path from /proc/mounts, where blanks are written as octal numbers."""
    return Path(re.sub(r"\\(\d{3})", lambda hit: chr(int(hit[1], 8)), text))


def bytes_text(count: float) -> str:
    """Return a number of bytes in GB or MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def slurm() -> Finding:
    """Check that jobs can be submitted to Slurm."""
    srun = shutil.which("srun")
    if srun is None:
        return Finding("Slurm", "not installed")
    result = launch.run_command([srun, "--version"])
    remedy = "jobs run with mpirun, but srun does not work: ask your administrator" if result.code else None
    if remedy is None and (squeue := shutil.which("squeue")):
        queue = launch.run_command([squeue, "--me", "--noheader"])
        if queue.code != 0:
            remedy = f"it does not answer, so nothing can be submitted: {queue.gist()}"
    return Finding("Slurm", f"{result.gist()}: {srun}", True, remedy)
