"""What all calls of a script share: arguments that are checked, errors in one sentence, exit codes."""

import builtins
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from mpi_ata import launch
from mpi_ata.clusters import FaultPolicy
from mpi_ata.errors import CONTINUE, LossError, RunError, UsageError, did_you_mean, explained
from mpi_ata.job.schema import Stop
from mpi_ata.launch.signals import StopRequest

WHOLE, NUMBER = ((int,), "a whole number (int)"), ((int, float), "a number")
COUNTS = ("workers", "budget", "rounds", "seed", "evaluate_every", "checkpoint_rounds")
NUMBERS = ("checkpoint_seconds", "grace", "prior_weight")
RULES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(COUNTS, WHOLE),
    **dict.fromkeys(NUMBERS, NUMBER),
    "out": ((str, os.PathLike), "a path, as in out='runs/mine.h5'"),
    "warm_start": ((str, os.PathLike, Sequence), "a path, or a list of paths"),
    "stop": ((Stop,), "limits, as in stop=Stop(gap=1e-5)"),
    "exchange": ((str,), "a string, as in exchange='chain'"),
    "faults": ((FaultPolicy,), "a policy, as in faults=FaultPolicy(deadline=5.0)"),
    "progress": ((bool,), "True or False"),
    "observers": ((list, tuple), "a list of observers, as in observers=[CSVLogger()]"),
}
REQUIRED = (
    "seed",
    "exchange",
    "evaluate_every",
    "grace",
    "prior_weight",
    "warm_start",
    "progress",
    "observers",
)
REMOVED = {
    "replicated": "was removed; use exchange='chain', or mpi_ata.Balance, which trains a copy of the "
    "model on every rank"
}
SOON_SECONDS = 0.01
TORCH = "torch.distributed.distributed_c10d"  # whose hook adds the rank to tracebacks

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
log = logging.getLogger("mpi_ata")


def entry_point(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function for scripts: errors that nobody catches end them in one sentence.

    An unknown argument is rejected with the name that was probably meant.
    """
    known, name = inspect.signature(function).parameters, function.__qualname__.removesuffix(".__init__")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        launch.open_closed_streams()
        report_errors_in_one_sentence()
        reject_unknown(name, given, given if takes_any else known)
        if (comm := given.get("comm")) is not None:
            use_communicator(comm)
        return function(*args, **given)

    return call


def use_communicator(comm: Any) -> None:
    """Let only the ranks of a communicator of mpi4py take part, from now on."""
    if not (hasattr(comm, "Get_rank") and hasattr(comm, "Dup")):
        raise UsageError(
            f"comm={comm!r} must be a communicator of mpi4py, as in comm=MPI.COMM_WORLD.Split(...)"
        )
    from mpi_ata.clusters.mpi.library import MPI, use_world

    if comm == MPI.COMM_NULL:
        raise UsageError("comm is MPI.COMM_NULL: only ranks of the communicator make this call")
    use_world(comm)


def reject_unknown(name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Reject words that are not arguments of a function, with the ones that were probably meant."""
    for word in given:
        if word in REMOVED:
            raise UsageError(f"{word} {REMOVED[word]}")
        if word not in known:
            raise UsageError(f"{name}() has no argument {word!r}{did_you_mean(word, known)}")


def taking(arguments: Callable[P, A]) -> Callable[[Callable[[A], T]], Callable[P, T]]:
    """Return a decorator: what a function gets as one object of a class, its callers write as arguments."""

    def decorate(function: Callable[[A], T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> T:
            try:
                signature.bind(*args, **given)
            except TypeError as error:  # about the class, which callers do not know
                raise UsageError(f"{function.__name__}(): {error}") from None
            return function(arguments(*args, **given))

        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(arguments).replace(return_annotation=returned)
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def check_arguments(**given: Any) -> None:
    """Reject arguments of another type than theirs; None stands for those that are not given."""
    for name, value in given.items():
        if name in RULES and not (value is None and name not in REQUIRED):
            kinds, rule = RULES[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise UsageError(f"{name}={value!r} must be {rule}")
    for each in given.get("observers", ()):
        if isinstance(each, type) or not hasattr(each, "on_round"):
            raise UsageError(f"{each!r} is not an observer; observers must be {RULES['observers'][1]}")


def script_path() -> Path | None:
    """Return the script that this process runs; None at a prompt and in a notebook."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    is_interactive = hasattr(builtins, "__IPYTHON__")  # where %run sets __file__, too
    return Path(file) if file and not is_interactive and Path(file).is_file() else None


def report_errors_in_one_sentence() -> None:
    """Let errors of this package that nobody catches end the script without a long traceback."""
    present = sys.excepthook
    if (present is sys.__excepthook__ or present.__module__ == TORCH) and script_path() is not None:
        sys.excepthook = partial(_report, present)


def _report(
    others: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.last_value = error  # as Python does where it calls this itself: a pool that is still open looks there
    what = str(error) if isinstance(error, UsageError | RunError) else ""
    if what := what or (explained(error) if isinstance(error, FileNotFoundError) else ""):
        print(_with_line(f"Error: {what}", trace), file=sys.stderr)
    else:
        others(kind, error, trace)
    if not isinstance(error, LossError):  # on other workers the run may continue
        launch.note_failure(str(error))
    if isinstance(error, UsageError):
        sys.exit(2)  # after this hook Python would end with 1


def _with_line(message: str, trace: TracebackType | None) -> str:
    """Return a message with the line of the script from which the package was called."""
    steps = [step for step in traceback.walk_tb(trace) if step[0].f_globals.get("__name__") == "__main__"]
    if not steps:
        return message
    line = f"{steps[-1][0].f_code.co_filename}, line {steps[-1][1]}"
    return f"{message}\ncalled from {line}" if "\n" in message else f"{message} ({line})"


def end_process(stop_request: StopRequest) -> None:
    """End a script after a signal, with exit code 85 if its run can be resumed; a notebook continues."""
    saved = stop_request.exit_code == CONTINUE
    needed = "it cannot be resumed: that needs out=..., and parts that have state() and restore(state)"
    left = "resume it with resume=True" if saved else needed
    log.warning("the run was stopped early, by %s; %s", stop_request.word, left)
    if script_path() is not None:
        sys.exit(stop_request.exit_code)


def end_soon(stop_request: StopRequest) -> None:
    """End a script after a signal where it has just left its loop, which discards a generator.

    Python drops what is raised while a generator is discarded, so that the signal is sent again, a moment
    later.
    """
    again = signal.Signals[stop_request.name]

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(again, before or signal.SIG_DFL)
        end_process(stop_request)

    before = signal.signal(again, end)
    timer = threading.Timer(SOON_SECONDS, os.kill, (os.getpid(), again))
    timer.daemon = True
    timer.start()
