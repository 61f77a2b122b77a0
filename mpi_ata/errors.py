"""What can go wrong, said in one sentence each."""

import traceback

CONTINUE = 85  # the exit code of a run that was stopped early, and can go on


class UsageError(ValueError):
    """The user asked for something that cannot be: a wrong key, value or combination."""


class RunError(RuntimeError):
    """A run that started well cannot go on."""


def in_users_code(what: str, error: BaseException) -> RunError:
    """The error of a run that a user's code caused, with the traceback from there on."""
    inside = error.__traceback__ and error.__traceback__.tb_next
    lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
    return RunError(f"{what}:\n{lines}")


def diverged(round: int, loss: float | None = None) -> RunError:
    """The error of a run whose point or loss is no longer a finite number."""
    told = "" if loss is None else f", with loss {loss}"
    return RunError(f"the run diverged by round {round}{told}; try a smaller step_size")


def one_line(error: BaseException) -> str:
    """Return the message of an exception without line breaks."""
    return " ".join(str(error).split())
