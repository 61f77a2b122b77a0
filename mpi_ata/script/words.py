"""What the command line calls an option is an argument in a script: messages name it as such."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mpi_ata.errors import LossError, RunError, UsageError

_WORDS = (
    (r"--out (\S+\.h5\S*) --resume", r'out="\1", resume=True'),
    (r"--out (\S+\.h5)", r'out="\1"'),
    (r"--warm-start (\S+/\S*|\S+\.h5)", r'warm_start="\1"'),
    (r"--prior-weight (\S+)", r"prior_weight=\1"),
    (r"--resume", "resume=True"),
    (r"--any-problem", "any_problem=True"),
    (r"--accept-changes", "accept_changes=True"),
    (r"--virtual", "times=Sqrt(4)"),
    (r"--workers (\d+)", r"workers=\1"),
    (r"--(out|warm-start|prior-weight)", lambda found: found[1].replace("-", "_")),
    (r"\[run\] ", ""),
    (r"replicated = true", "replicated=True"),
    (r"exchange = '", "exchange='"),
    (r"\[problem\] ", "the problem: "),
    (r"\[allocator\] ", "the allocator: "),
)


def python_words(text: str) -> str:
    """Return a message of the command line as a message about arguments."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def in_python() -> Iterator[None]:
    """Let errors speak of arguments."""
    try:
        yield
    except UsageError as error:
        raise UsageError(python_words(str(error))) from None
    except RunError as error:
        kind = LossError if isinstance(error, LossError) else RunError
        raise kind(python_words(str(error))) from None
