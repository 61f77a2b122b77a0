"""Every message that docs/troubleshooting.md quotes is one of the program's."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.pages import DOCS, ROOT

MESSAGES = re.findall(r"(?m)^\| `(.+?)` \| .+ \|$", (DOCS / "troubleshooting.md").read_text())
VALUE = "..."


@cache
def texts() -> str:
    """Return all texts in the code of the package, one per line, with ... for each value."""
    files = [*(ROOT / "mpi_ata").rglob("*.py")]
    return "\n".join(text for file in files for text in texts_in(ast.parse(file.read_text())))


def texts_in(tree: ast.AST) -> Iterator[str]:
    """Yield all texts in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            yield re.sub(r"%s|\{\d\}", VALUE, written(node))


def written(node: ast.expr) -> str:
    """Return a text as it is written, with ... in place of what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else VALUE


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 40


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    assert message in texts()
