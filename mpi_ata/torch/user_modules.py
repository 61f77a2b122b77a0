"""Modules that no import finds, since a job names them by their files; loader processes need them too."""

import importlib.util
import sys
from typing import Any


class UserModules:
    """Imports, where it is unpickled, the modules that are named by their files here.

    It must come before the objects that need them.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to import them again."""
        files = {name: str(module.__file__) for name, module in sys.modules.items() if "@" in name}
        return _imported, (files,)


def _imported(files: dict[str, str]) -> UserModules:
    for name, file in files.items():
        spec = importlib.util.spec_from_file_location(name, file)
        if name not in sys.modules and spec is not None and spec.loader is not None:
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return UserModules()
