"""Text that is safe to write into a batch script."""

import re
import shlex
import unicodedata

from mpi_ata.errors import UsageError


def check_text(text: str) -> str:
    """Return the text; reject characters that could end a line or hide something."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
            raise UsageError(f"{text!r} has a control character, which a batch script must not contain")
    return text


def quote(argument: str) -> str:
    """Return an argument as one word of the shell."""
    return shlex.quote(check_text(argument))


def quote_all(arguments: tuple[str, ...]) -> str:
    """Return arguments as they stand in a command line."""
    return " ".join(map(quote, arguments))


def quote_directive(option: str) -> str:
    """Return an option for an #SBATCH line, which may be quoted but cannot contain quotes."""
    if '"' in check_text(option) or "\\" in option:
        raise UsageError(f"{option!r} has a quote or backslash, which sbatch does not read; leave it out")
    return option if re.fullmatch(r"[\w@%+=:,./*\[\]-]+", option, re.ASCII) else f'"{option}"'
