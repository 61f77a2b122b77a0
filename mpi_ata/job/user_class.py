"""A class in a Python file of the user's, imported when it is first needed."""

import importlib.util
import sys
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi_ata.errors import UsageError, describe_error


class UserClass:
    """A class that a job names by file and class; `table` is the part of the job that does."""

    def __init__(self, table: str, path: Path, name: str) -> None:
        self.table, self.path, self.name = table, path, name

    @cached_property
    def loaded(self) -> type[Any]:
        """Import the file and return the class."""
        module = _imported(self.table, self.path)
        found = getattr(module, self.name, None)
        if isinstance(found, type):
            return found
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        there = [cls.__name__ for cls in classes if cls.__module__ == module.__name__]
        raise UsageError(
            f"[{self.table}] no class {self.name!r} in {self.path}; there are: {', '.join(there) or 'none'}"
        )


_modules: dict[tuple[str, bytes], ModuleType] = {}  # by path and contents


def _imported(table: str, path: Path) -> ModuleType:
    """Return a Python file as a module; it is executed once, whatever a job takes from it."""
    key = str(path.resolve()), sha256(path.read_bytes()).digest()
    if key not in _modules:
        _modules[key] = _executed(table, path)
    return _modules[key]


def _executed(table: str, path: Path) -> ModuleType:
    """Execute a Python file, which can import its neighbours."""
    name = f"{path.stem}@{path.resolve()}".replace(".", "%2E")  # a dot would make it part of a package
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"[{table}] file = {str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"[{table}] {path} cannot be imported: {describe_error(error)}") from None
    return module
