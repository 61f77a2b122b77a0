"""Errors for the user, each with a message of one sentence."""

import traceback

LONGEST_SHORT = 300  # characters of a message that is shown in a list
CONTINUE = 85  # exit code of a run that was stopped early and can be resumed


class UsageError(ValueError):
    """The user asked for something invalid: a wrong key, value or combination."""


class RunError(RuntimeError):
    """A run that was started correctly cannot continue."""


class LossError(RunError):
    """A run has lost workers that it cannot continue without; it can be resumed on others."""


class DivergedError(RunError):
    """The point or the loss of a run is no longer finite."""


class BadResultError(RunError):
    """A task has returned something that cannot be used."""


class DamagedError(UsageError):
    """A file that is not, or no longer, what a run wrote."""


class TakenError(RunError):
    """A run file that another process has written meanwhile."""


def in_users_code(what: str, error: BaseException) -> RunError:
    """Return the error for a failure in the user's code, with the traceback from there on."""
    if isinstance(error, MemoryError):
        return RunError(f"{what}: it needs more memory than there is ({one_line(error)})")
    inside = error.__traceback__ and error.__traceback__.tb_next
    lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
    return RunError(f"{what}:\n{lines}")


def diverged(round: int, loss: float | None = None) -> DivergedError:
    """Return the error for a run whose point or loss is no longer finite."""
    at_loss = "" if loss is None else f", with loss {loss}"
    return DivergedError(f"the run diverged by round {round}{at_loss}; try a smaller step_size")


def one_line(error: BaseException) -> str:
    """Return the message of an exception without line breaks."""
    return " ".join(str(error).split())


def in_short(error: BaseException) -> str:
    """Return the first line of a message, and where a traceback follows also its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(dict.fromkeys([lines[0], lines[-1]]))[:LONGEST_SHORT]
