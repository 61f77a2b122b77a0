"""Errors for the user, each with a message of one sentence."""

import difflib
import os
import shlex
import signal
import sysconfig
import traceback
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_EXTRAS = ("torch", "sklearn")  # libraries that our extras of the same name install
LONGEST_SHORT = 300  # characters of a message that is shown in a list
CONTINUE = 85  # exit code of a run that was stopped early and can be resumed
CODES = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that control a terminal, or are none


def is_code(character: str) -> bool:
    """Return whether a character is a code for terminals, or half of one that UTF-8 lacks."""
    return unicodedata.category(character) in CODES


def printable(text: str) -> str:
    """Return a text that can be printed, sent and saved: codes are escaped as in JSON; lines, tabs stay."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line if line.isprintable() else _escaped(line) for line in lines)


def _escaped(line: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if is_code(c) and c != "\t" else c for c in line)


def command_line(*words: object) -> str:
    """Return a command as it is typed, whatever characters are in the names of its files."""
    return shlex.join(map(str, words))


class UsageError(ValueError):
    """The user asked for something invalid: a wrong key, value or combination."""

    def __str__(self) -> str:
        return printable(super().__str__())


class RunError(RuntimeError):
    """A run that was started correctly cannot continue."""

    resumable = False  # whether the same command resumes it

    def __str__(self) -> str:
        return printable(super().__str__())


class StopNow(BaseException):  # it is not an error, and no `except Exception` of a user may stop it
    """Raised by a signal in what runs now, the user's code included."""


def require(holds: bool, rule: str) -> None:
    """Raise ValueError with the rule that an argument breaks, unless it holds."""
    if not holds:
        raise ValueError(rule)


class LossError(RunError):
    """A run has lost workers that it cannot continue without; it can be resumed on others."""


class DivergedError(RunError):
    """The point or the loss of a run is no longer finite."""


class BadResultError(RunError):
    """A task has returned something that cannot be used."""


class ItemError(RunError):
    """An item of a farm has no result: its function raised, or its processes died; `index` says which."""

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class DamagedError(UsageError):
    """A file that is not, or no longer, what a run wrote."""


class TakenError(RunError):
    """A run file that another process has saved meanwhile."""


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Let an error of the user's say first what it is about, such as a file."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{prefix}{error}") from None


def in_users_code(what: str, error: BaseException) -> RunError:
    """Return the error for a failure in the user's code, with the traceback from there on."""
    if lacks_memory(error):
        return RunError(f"{what}: it needs more memory than there is ({one_line(error)})")
    inside = error.__traceback__ and error.__traceback__.tb_next
    if inside is None or isinstance(error, SystemExit):  # it was called in a wrong way, or has left
        return RunError(f"{what}: {describe_error(error)}")
    lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
    return RunError(f"{what}:\n{lines}")


class users_code:  # noqa: N801  (used like a function)
    """While the user's code is called: what fails in it becomes a RunError that says what failed."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and is_users_own(error):
            raise in_users_code(self._what, error) from None


def is_users_own(error: BaseException) -> bool:
    """Return whether what came out of the user's code is a failure of it: not a signal, nor our own error."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return False  # it is Python that raises it upon Ctrl-C
    return not isinstance(error, RunError | StopNow)


def describe_error(error: BaseException) -> str:
    """Return in one line what went wrong in a user's code, and where."""
    place = users_line(error)
    if isinstance(error, SystemExit):
        code = f"sys.exit({'' if error.code is None else repr(error.code)})"
        return f"{place or 'it'} calls {code}; raise an exception that says what is wrong instead"
    message = error.msg if isinstance(error, SyntaxError) else one_line(error)
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS else ""
    way_out = f"; install it with pip install 'mpi-ata[{missing}]'" if missing else ""
    parts = [place, type(error).__name__, message]
    return ": ".join(part for part in parts if part) + way_out


def users_line(error: BaseException) -> str:
    """Return the deepest line of a traceback that is the user's own, as file:line; "" if there is none."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, line) for frame, line in steps]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((error.filename, error.lineno or 1))
    own = [f"{_shown(file)}:{line}" for file, line in lines if not file.startswith(_OTHERS)]
    return own[-1] if own else ""


def _shown(file: str) -> str:
    """Return a path as it is shown: from the working directory on, if it is in there."""
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative


_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_OTHERS = ("<", f"{os.path.dirname(__file__)}/", *(f"{sysconfig.get_path(name)}/" for name in _LIBRARIES))


def lacks_memory(error: BaseException) -> bool:
    """Return whether memory is exhausted, which libraries and threads that cannot start report otherwise."""
    texts = ("can't start new thread", "failed to map segment", "annot allocate memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def explained(error: BaseException) -> str:
    """Return in one sentence what has happened to this process from outside; empty if nothing has."""
    if lacks_memory(error):
        way_out = "use fewer workers, a smaller problem, or a higher limit (ulimit -v)"
        return f"there is not enough memory; {way_out}"
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working directory was deleted; change to one that exists"
    return ""


def diverged(round: int, loss: float | None = None) -> DivergedError:
    """Return the error for a run whose point or loss is no longer finite."""
    if not round:
        return DivergedError(f"the loss is {loss} before the first round; check loss() or evaluate(), and x0")
    at_loss = "" if loss is None else f", with loss {loss}"
    what = f"the run diverged by round {round}{at_loss}"
    return DivergedError(f"{what}; try a smaller step_size (learning rate)")


def one_line(error: BaseException) -> str:
    """Return the message of an exception without line breaks."""
    return printable(" ".join(str(error).split()))


def in_short(error: BaseException) -> str:
    """Return the first line of a message, and where a traceback follows also its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(dict.fromkeys([lines[0], lines[-1]]))[:LONGEST_SHORT]


def did_you_mean(word: object, valid: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a word that a user wrote is close to a valid one."""
    if not isinstance(word, str):
        return ""
    names = {name.lower(): name for name in valid}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else ""
