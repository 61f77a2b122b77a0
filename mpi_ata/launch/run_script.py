"""Runs a user's script on a rank as Python would, and reports its exit code to the process that started it.

Python calls nobody when a script ends by SystemExit, and the exit code of a launcher is that of any rank.
This file is started by its path, so it imports nothing of the package: the script decides what is loaded.
"""

import os
import runpy
import sys
from types import TracebackType


def main() -> None:
    """Run `SCRIPT ARGUMENTS` or `-m MODULE ARGUMENTS`."""
    try:
        try:
            _run(sys.argv[1:])
        except SystemExit:
            raise
        except BaseException as error:
            error.__traceback__ = _of_script(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)
        sys.exit(0)
    except SystemExit as end:
        if report := sys.modules.get("mpi_ata.launch.exit_report"):  # not if it ended before any run
            report.note_exit(report.exit_code_of(end))
        raise


def _run(words: list[str]) -> None:
    is_module = words[0] == "-m"
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    if is_module:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(os.path.abspath(words[0]), run_name="__main__")


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the lines of this file and of runpy."""
    while trace and (
        trace.tb_frame.f_globals is globals() or trace.tb_frame.f_globals["__name__"] == "runpy"
    ):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
