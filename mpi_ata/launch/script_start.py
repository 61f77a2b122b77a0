"""How this script was started: its command, and the folder in which Python found it."""

import os
import sys
from contextlib import suppress

FIRST = ["."]  # the folder of the first import
with suppress(OSError):  # it may have been removed
    FIRST[0] = os.getcwd()


def script_command() -> list[str]:
    """Return the command that runs this script again, with the same options and arguments."""
    return [sys.executable, *sys.orig_argv[1:]]


def script_folder() -> str:
    """Return the folder in which this script was started; it may have changed to another one since then."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    relative = [word for word in sys.orig_argv[1:] if script.endswith(f"/{word}")]
    folder = script.removesuffix(relative[0]) if relative else FIRST[0]
    return folder if os.path.isdir(folder) else "."
