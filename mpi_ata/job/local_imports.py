"""The files next to a user's Python file that it imports, found without executing it."""

import ast
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from mpi_ata.errors import UsageError

PACKAGE = "mpi_ata"  # this one may lie beside it; its version is compared, not its files
INSTALLED = {"site-packages", "dist-packages"}  # folders
MAX_BYTES = 1 << 20  # of the texts that are kept: a run file pads all to the longest


def is_code(path: Path) -> bool:
    """Return whether a user's file is Python code; what is not is data, which may be large."""
    return path.suffix == ".py"


def local_imports(source: Path) -> Iterator[Path]:
    """Yield a file and, of Python code, all files next to it that it imports, directly or not."""
    pending, seen = [source], set[Path]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        for name in imported_names(path) - {PACKAGE}:
            module = source.parent / name
            pending += [module.with_suffix(".py")] if module.with_suffix(".py").is_file() else []
            pending += sorted(module.rglob("*.py")) if module.is_dir() else []


def imported_names(path: Path) -> set[str]:
    """Return the top-level names of the modules that a file imports; data imports nothing."""
    if not is_code(path):
        return set()
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def imported_texts(name: str, source: Path) -> dict[str, str]:
    """Return the texts of the files that a user's file imports, each as `name`/path; checksums if long.

    What cannot be read is left out: importing it gives a better message.  Installed packages are not the
    user's own.
    """
    if INSTALLED.intersection(source.parts):
        return {}
    try:
        found = sorted(path for path in local_imports(source) if path != source)
        texts = {f"{name}/{path.relative_to(source.parent)}": path.read_text() for path in found}
    except (UsageError, OSError, ValueError):
        return {}
    if len(texts) * max(map(len, texts.values()), default=0) <= MAX_BYTES:
        return texts
    return {name: f"sha256 {sha256(text.encode()).hexdigest()}" for name, text in texts.items()}
