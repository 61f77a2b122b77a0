"""The size of the terminal that a stream reaches."""

import os
import shutil
from contextlib import suppress
from typing import TextIO


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines, 0 if not known; COLUMNS and LINES say it where a launcher is in between."""
    columns, lines = shutil.get_terminal_size((0, 0))
    if not (columns and lines):
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(stream.fileno())
    return columns, lines
