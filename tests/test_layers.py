"""Imports go one way through the package, and each foreign library has its own room."""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

import mpi_ata

ROOT = Path(mpi_ata.__file__).parent

# From the bottom up: who stands in a line may import from the lines before it.  A file with a rank of its own
# is named with its folder: the run file as bytes and arrays knows nothing of jobs, so they can read one.
LAYERS = [
    ["errors", "abilities", "arrays", "version", "randomness", "layout", "turns"],
    ["limits", "packing", "runfile.hdf5"],
    ["launch", "runfile.store"],
    ["problems", "times", "allocators", "updates"],
    ["clusters", "torch"],
    ["methods"],
    ["job"],
    ["runfile"],
    ["driver"],
    ["batch", "doctor", "view"],
    ["paper", "script"],
    ["cli", "torch.transformers", "torch.lightning"],
    ["__init__", "__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# A library, and the only files that may import it.
ROOMS: dict[str, tuple[str, ...]] = {
    "mpi4py": ("clusters/mpi/*.py",),
    "h5py": ("runfile/hdf5.py",),
    "click": ("cli/*.py",),
    "rich": ("view/live.py",),
    "subprocess": ("launch/mpirun.py", "batch/inside.py"),
    **dict.fromkeys(("pickle", "cloudpickle"), ("clusters/pickling.py",)),
    **dict.fromkeys(("marshal", "shelve", "dill"), ()),
}

# Slow to import or not always there, so imported where needed, but for one file.
LAZY = {"torch", "sklearn", "matplotlib", "numba", "pandas", "rich", "pyarrow"}
LAZY |= {"tensorboardX", "wandb", "mlflow", "cloudpickle"}
AT_ONCE = ("paper/kernel.py", "numba")

# Files, and all that they may import: an allocator knows no clock.
FRUGAL = {
    "allocators/*.py": {"numpy", "mpi_ata", *sys.stdlib_module_names} - {"time", "datetime"},
    "times/*.py": {"numpy", "mpi_ata", *sys.stdlib_module_names},
}


class Import(NamedTuple):
    """One imported module; `lazy` if that is not done when the file itself is imported."""

    module: str
    line: int
    lazy: bool


def imports(tree: ast.AST, package: str, lazy: bool = False) -> Iterator[Import]:
    """Yield every import below a node of a file that belongs to `package`, the hidden ones too."""
    for node in ast.iter_child_nodes(tree):
        for module in imported_modules(node, package):
            yield Import(module, getattr(node, "lineno", 0), lazy)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        yield from imports(node, package, lazy or function or types)


def imported_modules(node: ast.AST, package: str) -> list[str]:
    """Return what a statement or call imports; `from a import b` may mean the module a.b."""
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parents = package.split(".")[: package.count(".") - level + 2] if level else []
            base = ".".join([*parents, *([module] if module else [])])
            return [f"{base}.{name.name}" for name in names]
        case ast.Call(func=func, args=[ast.Constant(value=str(module)), *_]):
            return [module] if ast.unparse(func).endswith("import_module") else []
    return []


def unit(module: str) -> str:
    """Return the part of the package that a module belongs to: a name in RANKS."""
    name, below = [*module.split("."), "__init__", "__init__"][1:3]
    if f"{name}.{below}" in RANKS:
        return f"{name}.{below}"
    # from mpi_ata import SGD: not a module, so it is what mpi_ata/__init__.py offers.
    return name if name in RANKS or (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file() else "__init__"


def complaints(file: str, source: str) -> list[str]:
    """Return what is wrong with a file of the package, one sentence each; `file` is its path within it."""
    found = list(imports(ast.parse(source), ".".join(["mpi_ata", *Path(file).parts[:-1]])))
    return [f"{file}: {text}" for rule in (direction, rooms, frugality) for text in rule(file, found)]


def direction(file: str, found: list[Import]) -> Iterator[str]:
    """Yield imports that do not go down."""
    here = file.removesuffix(".py").replace("/", ".")
    here = here if here in RANKS else here.split(".")[0]
    for there in {here, *(unit(module) for module, _, _ in found if module.startswith("mpi_ata"))} - {*RANKS}:
        yield f"'{there}' has no rank yet; give it one in LAYERS of tests/test_layers.py"
    for module, line, _ in found:
        there = unit(module) if module.split(".")[0] == "mpi_ata" else here
        if there != here and RANKS.get(there, 0) >= RANKS.get(here, 0):
            yield f"line {line} imports {module}, but {here} is not above {there}"


def rooms(file: str, found: list[Import]) -> Iterator[str]:
    """Yield libraries in a room that is not theirs."""
    for module, line, lazy in found:
        library = module.split(".")[0]
        if library in ROOMS and not any(fnmatch(file, pattern) for pattern in ROOMS[library]):
            yield f"line {line} imports {library}, which is for {' or '.join(ROOMS[library]) or 'nobody'}"
        if library in LAZY and not lazy and (file, library) != AT_ONCE:
            yield f"line {line} imports {library} at the top; import it where it is needed"


def frugality(file: str, found: list[Import]) -> Iterator[str]:
    """Yield imports into files that shall do with little."""
    for pattern, libraries in FRUGAL.items():
        for module, line, _ in found:
            if fnmatch(file, pattern) and module.split(".")[0] not in libraries:
                yield f"line {line} imports {module}; {pattern} may import numpy and what comes with Python"


def test_every_file_imports_only_downwards_and_keeps_to_its_room() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
    assert {"__init__.py", "cli/runs.py", "clusters/virtual.py", "allocators/ata.py"} <= set(files)
    assert [text for file in files for text in complaints(file, (ROOT / file).read_text())] == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("job/build.py", "from mpi_ata import driver", "line 1 imports mpi_ata.driver, but job is not above"),
        ("job/build.py", "from mpi_ata import SGD", "job is not above __init__"),
        ("job/build.py", "from ..driver import run", "job is not above driver"),
        ("job/build.py", "def f():\n    from mpi_ata import cli", "line 2 imports mpi_ata.cli"),
        ("job/build.py", "if TYPE_CHECKING:\n    from mpi_ata.driver import run", "job is not above driver"),
        ("job/build.py", "importlib.import_module('mpi_ata.cli')", "line 1 imports mpi_ata.cli"),
        ("runfile/hdf5.py", "from mpi_ata.runfile import store", "runfile.hdf5 is not above runfile.store"),
        ("novel/part.py", "", "'novel' has no rank yet; give it one in LAYERS of tests/test_layers.py"),
        ("clusters/virtual.py", "from mpi4py import MPI", "imports mpi4py, which is for clusters/mpi/*.py"),
        ("runfile/store.py", "def f():\n    from marshal import loads", "marshal, which is for nobody"),
        ("problems/quadratic.py", "import torch", "line 1 imports torch at the top"),
        ("times/laws.py", "def f():\n    import scipy", "line 2 imports scipy; times/*.py may import numpy"),
        ("allocators/ata.py", "import time", "imports time; allocators/*.py"),
        ("__init__.py", "from mpi_ata.cli import main", ""),
        (
            "clusters/mpi/worker.py",
            "from mpi4py import MPI\nfrom .channel import C\nfrom ...times import L",
            "",
        ),
        ("job/build.py", "from mpi_ata.runfile import store", ""),
        ("view/text.py", "if TYPE_CHECKING:\n    import matplotlib.figure\ndef f():\n    import pandas", ""),
    ],
)
def test_what_breaks_a_rule_is_named_and_nothing_else(file: str, source: str, complaint: str) -> None:
    found = "\n".join(complaints(file, source))
    assert found.startswith(f"{file}: ") and complaint in found if complaint else not found


def test_numpy_never_pickles() -> None:
    words = [word for file in ROOT.rglob("*.py") for word in file.read_text().split()]
    assert {word for word in words if "allow_pickle" in word} == {"allow_pickle=False)"}
