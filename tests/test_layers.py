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
LAYERS: list[list[str]] = [
    ["errors", "abilities", "arrays", "version", "randomness", "layout"],
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
    ["cli"],
    ["__init__", "__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# A library, and the only files that may import it.
ROOMS: dict[str, list[str]] = {
    "mpi4py": ["clusters/mpi/*.py"],
    "h5py": ["runfile/hdf5.py"],
    "click": ["cli/*.py"],
    "rich": ["view/live.py"],
    "subprocess": ["launch/mpirun.py", "batch/inside.py"],
    "pickle": [],
    "marshal": [],
    "shelve": [],
    "dill": [],
    "cloudpickle": [],
}

# Slow to import or not always there, so imported where needed, but for files that are named here.
LAZY: dict[str, list[str]] = {
    "torch": [],
    "sklearn": [],
    "matplotlib": [],
    "numba": ["paper/kernel.py"],
    "pandas": [],
    "rich": [],
    "pyarrow": [],
    "tensorboardX": [],
    "wandb": [],
    "mlflow": [],
}

# Files, and all that they may import: an allocator knows no clock.
FRUGAL: dict[str, set[str]] = {
    "allocators/*.py": {"numpy", "mpi_ata", *sys.stdlib_module_names} - {"time", "datetime"},
    "times/*.py": {"numpy", "mpi_ata", *sys.stdlib_module_names},
}

FORBIDDEN_CALLS = {"eval", "exec", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen"}
FORBIDDEN_OPTIONS = {"shell", "allow_pickle"}  # but for a plain False


class Import(NamedTuple):
    """One imported module; `lazy` if that is not done when the file itself is imported."""

    module: str
    line: int
    lazy: bool


def imports(tree: ast.AST, package: str, lazy: bool = False) -> Iterator[Import]:
    """Every import below a node of a file that belongs to `package`, the hidden ones too."""
    for node in ast.iter_child_nodes(tree):
        for module in imported_modules(node, package):
            yield Import(module, getattr(node, "lineno", 0), lazy)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(
            node
        )
        yield from imports(node, package, lazy or inside)


def imported_modules(node: ast.AST, package: str) -> list[str]:
    """What a single statement or call imports; `from a import b` may mean the module a.b."""
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*parents, *([module] if module else [])])
            return [f"{base}.{name.name}" for name in names]
        case ast.Call(args=[ast.Constant(value=str(module)), *_]) if called(node).endswith("import_module"):
            return [module]
    return []


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def called(node: ast.Call) -> str:
    """The name by which a function is called."""
    return ast.unparse(node.func)


def unit(module: str) -> str:
    """The part of the package that a module belongs to: a name in RANKS."""
    name, below = [*module.split("."), "__init__", "__init__"][1:3]
    if f"{name}.{below}" in RANKS:
        return f"{name}.{below}"
    # from mpi_ata import SGD: not a module, so it is what mpi_ata/__init__.py offers.
    return name if name in RANKS or (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file() else "__init__"


def complaints(file: str, source: str) -> list[str]:
    """What is wrong with a file of the package, one sentence each; `file` is its path within it."""
    tree = ast.parse(source)
    package = ".".join(["mpi_ata", *Path(file).parts[:-1]])
    found = list(imports(tree, package))
    return [
        f"{file}: {text}"
        for text in [*direction(file, found), *rooms(file, found), *frugality(file, found), *calls(tree)]
    ]


def direction(file: str, found: list[Import]) -> Iterator[str]:
    """Imports that do not go down."""
    here = file.removesuffix(".py").replace("/", ".")
    here = here if here in RANKS else here.split(".")[0]
    if here not in RANKS:
        yield f"'{here}' has no rank yet; give it one in LAYERS of tests/test_layers.py"
        return
    for module, line, _ in found:
        there = unit(module)
        if module.split(".")[0] != "mpi_ata" or there == here:
            continue
        if there not in RANKS:
            yield f"line {line} imports '{there}', which has no rank yet; give it one in LAYERS"
        elif RANKS[there] >= RANKS[here]:
            yield f"line {line} imports {module}, but {here} is not above {there}"


def rooms(file: str, found: list[Import]) -> Iterator[str]:
    """Libraries in a room that is not theirs."""
    for module, line, lazy in found:
        library = module.split(".")[0]
        if library in ROOMS and not allowed(file, ROOMS[library]):
            who = " or ".join(ROOMS[library]) or "nobody"
            yield f"line {line} imports {library}, which is for {who}"
        if library in LAZY and not lazy and not allowed(file, LAZY[library]):
            yield f"line {line} imports {library} at the top; import it where it is needed"


def frugality(file: str, found: list[Import]) -> Iterator[str]:
    """Imports into files that shall do with little."""
    for pattern, libraries in FRUGAL.items():
        for module, line, _ in found:
            if fnmatch(file, pattern) and module.split(".")[0] not in libraries:
                yield f"line {line} imports {module}; {pattern} may import numpy and what comes with Python"


def calls(tree: ast.AST) -> Iterator[str]:
    """Calls that run text as a program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if called(node) in FORBIDDEN_CALLS:
                yield f"line {node.lineno} calls {called(node)}"
            for option in node.keywords:
                if option.arg in FORBIDDEN_OPTIONS and ast.unparse(option.value) != "False":
                    yield f"line {node.lineno} passes {option.arg}={ast.unparse(option.value)}"


def allowed(file: str, patterns: list[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_downwards_and_keeps_to_its_room(file: str) -> None:
    assert complaints(file, (ROOT / file).read_text()) == []


def test_the_whole_package_was_read() -> None:
    assert {"__init__.py", "cli/runs.py", "clusters/virtual.py", "allocators/ata.py"} <= set(FILES)


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        (
            "job/build.py",
            "from mpi_ata import driver",
            "line 1 imports mpi_ata.driver, but job is not above driver",
        ),
        ("job/build.py", "from mpi_ata import SGD", "job is not above __init__"),
        ("job/build.py", "from ..driver import run", "job is not above driver"),
        ("job/build.py", "def f():\n    from mpi_ata import cli", "line 2 imports mpi_ata.cli"),
        (
            "job/build.py",
            "if TYPE_CHECKING:\n    from mpi_ata.driver import run",
            "line 2 imports mpi_ata.driver",
        ),
        ("job/build.py", "importlib.import_module('mpi_ata.cli')", "line 1 imports mpi_ata.cli"),
        ("runfile/hdf5.py", "from mpi_ata.runfile import store", "runfile.hdf5 is not above runfile.store"),
        ("novel/part.py", "", "'novel' has no rank yet; give it one in LAYERS of tests/test_layers.py"),
        ("clusters/virtual.py", "from mpi4py import MPI", "imports mpi4py, which is for clusters/mpi/*.py"),
        (
            "runfile/store.py",
            "def f():\n    from marshal import loads",
            "imports marshal, which is for nobody",
        ),
        ("problems/quadratic.py", "import torch", "line 1 imports torch at the top"),
        ("times/laws.py", "def f():\n    import scipy", "line 2 imports scipy; times/*.py may import numpy"),
        ("allocators/ata.py", "import time", "imports time; allocators/*.py"),
        ("driver/drive.py", "import builtins\nbuiltins.exec('1')", "line 2 calls builtins.exec"),
        ("batch/slurm.py", "import subprocess\nsubprocess.run('ls', shell=True)", "line 2 passes shell=True"),
    ],
)
def test_what_breaks_a_rule_is_found_and_named(file: str, source: str, complaint: str) -> None:
    found = complaints(file, source)
    assert any(complaint in text for text in found), found
    assert all(text.startswith(f"{file}: ") for text in found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "from mpi_ata.cli import main"),
        (
            "clusters/mpi/worker.py",
            "from mpi4py import MPI\nfrom .channel import Channel\nfrom ...times import Law",
        ),
        ("job/build.py", "from mpi_ata.runfile import store"),
        ("view/text.py", "def plot():\n    import matplotlib.pyplot"),
        ("view/text.py", "if TYPE_CHECKING:\n    import matplotlib.figure"),
        ("job/component.py", "loader.exec_module(module)\nmodel.eval()"),
    ],
)
def test_what_keeps_the_rules_is_let_pass(file: str, source: str) -> None:
    assert complaints(file, source) == []
