"""The machine: Python, cores and threads, how ranks wake each other, where runs are written to, and Slurm."""

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
from mpi_ata.clusters.doorbell import HEARING, Doorbell, host_name
from mpi_ata.doctor.finding import Finding
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.version import __version__

SMALL_FOLDER = 100e6  # bytes
SMALL_SHARED_MEMORY = 128e6  # bytes; a container is often given 64 MiB


def python() -> Finding:
    """Which Python this is."""
    return Finding("Python", f"{platform.python_version()}, {sys.executable}")


def package() -> Finding:
    """Which version of the package this is, and of what it stands on."""
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("mpi4py", "numpy"))
    return Finding("package", f"mpi_ata {__version__} in {Path(__file__).parents[1]}, {others}")


def cores() -> Finding:
    """The cores that this process may use."""
    here, there = usable_cores(), os.cpu_count() or 1
    found = f"{there}, not bound" if here == there else f"bound to {here} of {there}"
    alone = here == 1 < there and not launch.under_launcher()
    remedy = "all ranks would share one core: ask for more, such as by --cpus-per-task or taskset"
    return Finding("cores", found, True, remedy if alone else None)


def usable_cores() -> int:
    """How many cores this process is not kept from; macOS does not keep it from any."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> Finding:
    """How many threads numerical libraries start in a rank."""
    given = " ".join(f"{name}={os.environ[name]}" for name in launch.THREADS if name in os.environ)
    each, here = threads_a_rank(), usable_cores()
    remedy = f"each rank would start {each} threads on {here} cores: use fewer, or ask for more cores"
    return Finding("threads", given or "one a rank by default", True, remedy if each > here else None)


def threads_a_rank() -> int:
    """The largest number that a threads variable is set to."""
    leading = [re.match(r"\d+", os.environ.get(name, "1")) for name in launch.THREADS]
    return max(int(hit[0]) if hit else 1 for hit in leading)


def doorbell() -> Finding:
    """Whether a rank that sleeps can be woken, from its own node and by the way that other nodes take."""
    near, far = rings(host_name()), rings(address())
    ways = {"within the node": near, "over the network": far}
    found = ", ".join(f"{'rings' if heard else 'silent'} {way}" for way, heard in ways.items())
    remedy = "jobs run, but ranks that wait look only every 10 ms: "
    remedy += f"let {host_name()} have an address (/etc/hosts) and UDP pass" if near else "allow Unix sockets"
    return Finding("doorbell", found, True, None if near and far else remedy)


def address() -> str:
    """The number by which other nodes know this one; empty where it has none."""
    try:
        return socket.gethostbyname(host_name())
    except OSError:
        return ""


def rings(host: str) -> bool:
    """Whether a bell is heard that is rung at this host; over the network unless it is the node's name."""
    try:
        with closing(Doorbell()) as ringing, closing(Doorbell()) as rung:
            ringing.ringer(host, rung.name, rung.port)()
            rung.sleep(HEARING)
            return bool(host) and rung.heard
    except OSError:
        return False


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108  (it is only measured)
    """The room through which ranks on one node talk."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding("shared memory", f"{folder}: {error.strerror}", True, "mount a tmpfs there")
    found = f"{size(usage.free)} of {size(usage.total)} free in {folder}"
    remedy = (
        "many ranks may not fit: remove what killed jobs left there, or enlarge it (docker --shm-size=1g)"
    )
    return Finding("shared memory", found, True, remedy if usage.free < SMALL_SHARED_MEMORY else None)


def output_folder(folder: Path | None = None) -> Finding:
    """Where runs are written to: what kind of file system it is, and whether it takes more."""
    folder = folder or (RUNS if RUNS.exists() else Path())
    try:
        path = folder.resolve(strict=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
        free = shutil.disk_usage(path).free
    except OSError as error:
        cure = "go to a folder that you may write to, or make room in this one"
        return Finding("output folder", f"cannot write into {folder}: {error.strerror}", False, cure)
    found = f"{path}, {file_system(path)}, {size(free)} free, writable"
    remedy = "make room, or go to a folder with more"
    return Finding("output folder", found, True, remedy if free < SMALL_FOLDER else None)


def file_system(path: Path) -> str:
    """The type of the file system that a path is on."""
    try:
        lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "file system not known"
    points = [(unescaped(point), kind) for _, point, kind, *_ in lines]
    above = [(len(point.parts), j) for j, (point, _) in enumerate(points) if path.is_relative_to(point)]
    return points[max(above)[1]][1]  # the deepest mount, and of several at one place the latest


def unescaped(text: str) -> Path:
    """A path as /proc/mounts writes it, with blanks as octal numbers."""
    return Path(re.sub(r"\\(\d{3})", lambda hit: chr(int(hit[1], 8)), text))


def size(count: float) -> str:
    """Bytes as a person says them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def slurm() -> Finding:
    """Whether jobs can be given to Slurm."""
    srun = shutil.which("srun")
    if srun is None:
        return Finding("Slurm", "not here")
    answer = launch.run_command([srun, "--version"])
    remedy = "jobs run by mpirun, but srun does not work: ask your administrator" if answer.code else None
    if remedy is None and (squeue := shutil.which("squeue")):
        queue = launch.run_command([squeue, "--me", "--noheader"])
        if queue.code != 0:
            remedy = f"it does not answer, so nothing can be submitted: {queue.gist()}"
    return Finding("Slurm", f"{answer.gist()}: {srun}", True, remedy)
