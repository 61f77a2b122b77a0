"""How a script ends: early by a signal, or with an error in one sentence."""

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from mpi_ata import launch
from mpi_ata.errors import CONTINUE, LossError, RunError, UsageError
from mpi_ata.launch.signals import StopRequest
from mpi_ata.launch.verdict import exit_code_of, has_lost_workers, note_exit
from mpi_ata.layout import MANAGER
from mpi_ata.script.description import script_path

log = logging.getLogger("mpi_ata")

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
TORCH = "torch.distributed.distributed_c10d"  # whose hook adds the rank to tracebacks


def end_process(stop_request: StopRequest) -> None:
    """End a script after a signal, with exit code 85 if its run can be resumed; a notebook goes on."""
    by = "Ctrl-C" if stop_request.name in ("", "SIGINT") else stop_request.name
    left = "resume it with resume=True" if stop_request.exit_code == CONTINUE else "it cannot be resumed"
    log.warning("the run was stopped early, by %s; %s", by, left)
    if script_path() is None:
        return
    report_exit(stop_request.exit_code)
    sys.exit(stop_request.exit_code)


def end_after_loop(stop_request: StopRequest) -> None:
    """End a script after a signal where it has just left its loop, which discards this generator.

    Python drops what is raised while a generator is discarded, so it is raised at the script's next line.
    """
    before, caller = sys.gettrace(), sys._getframe(1).f_back

    def end(frame: FrameType, event: str, arg: object) -> None:
        sys.settrace(before)
        frame.f_trace = None
        end_process(stop_request)

    if stop_request and caller is not None:
        caller.f_trace = end
        sys.settrace(sys.gettrace() or (lambda *_: None))


def report_errors_in_one_sentence() -> None:
    """Let errors of this package that nobody catches end the script without a long traceback."""
    present = sys.excepthook
    if (present is sys.__excepthook__ or present.__module__ == TORCH) and script_path() is not None:
        sys.excepthook = partial(_report, present)


def _report(
    others: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, UsageError | RunError):
        print(_with_place(f"Error: {error}", trace), file=sys.stderr)
    else:
        others(kind, error, trace)
    if not isinstance(error, LossError):  # on other workers the run may continue
        launch.note_failure(str(error))
    report_exit(2 if isinstance(error, UsageError) else 1)
    if isinstance(error, UsageError):
        sys.exit(2)  # after this hook Python would end with 1


def _with_place(message: str, trace: TracebackType | None) -> str:
    """Return a message with the line of the script from which the package was called."""
    steps = [step for step in traceback.walk_tb(trace) if step[0].f_globals.get("__name__") == "__main__"]
    if not steps:
        return message
    place = f"{steps[-1][0].f_code.co_filename}, line {steps[-1][1]}"
    return f"{message}\ncalled from {place}" if "\n" in message else f"{message} ({place})"


def report_exit(code: int) -> None:
    """Report the manager's exit code to the process that started the ranks: mpirun's may be a dead rank's."""
    if launch.under_launcher() and launch.rank() == MANAGER:
        note_exit(code)
        if code == 0 and has_lost_workers():
            _follow_script()


def _follow_script() -> None:
    """Report the exit code with which the script ends later, by tracing its outermost frame.

    Python has no other hook for that.  It slows down calls: use it only where mpirun's code is unreliable.
    """
    *_, outermost = _callers(sys._getframe())
    outermost.f_trace = _note_system_exit
    sys.settrace(sys.gettrace() or (lambda *_: None))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _note_system_exit(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
    if event == "exception" and issubclass(arg[0], SystemExit):
        end = arg[1] if isinstance(arg[1], SystemExit) else SystemExit(arg[1])
        note_exit(exit_code_of(end))
    return _note_system_exit
