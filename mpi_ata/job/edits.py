"""Edits of a user's file: whether they change anything, and the difference in words."""

import ast
from difflib import unified_diff

MAX_LINES, MAX_CHARACTERS = 40, 900  # of a difference: an event of a run file is not much longer


def same_code(before: str, after: str) -> bool:
    """Return whether two texts differ at most in comments, blank lines and formatting."""
    if before == after:
        return True
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except (SyntaxError, ValueError, RecursionError):  # data, or not Python at all
        return False


def difference(before: str, after: str) -> str:
    """Return the lines that differ, as a unified diff without its header, cut to a readable size."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    kept, characters = [], 0
    for line in lines[:MAX_LINES]:
        characters += len(line) + 1
        if characters > MAX_CHARACTERS:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    return "\n".join([*kept, *([f"... and {left:,} more lines"] if left else [])])
