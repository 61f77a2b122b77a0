"""Keep docs/api.md true: it is generated from the docstrings of the public names.

`python -m tests.document_api` rewrites it; a test checks that it is up to date.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import mpi_ata

DOCUMENT = Path(__file__).parent.parent / "docs" / "api.md"
TITLE = """# Public names

All names of `mpi_ata.__all__`: these stay; everything else may change. `python -m tests.document_api`
generates this page from their docstrings. [scripts.md](scripts.md) shows how to use them.
"""
GROUPS = {
    "Running": "minimize cluster Pool run Trainer Balance load Result SavedRun Stop Observer Trace Round",
    "Problems": "Problem Computation Task Quadratic TwoPoints TorchProblem Array",
    "Allocators": "Allocator ATAAuto ATA ATAEmpirical GTA UTA OFTA MSync Bandit Proportional",
    "Methods": "Method SGD Map HeterogeneousDataSGD Malenia MindFlayer ASGD Ringmaster "
    "RennalaMVR Ringleader RescaledASGD HeterogeneousDataASGD",
    "Updates": "Update GradientUpdate Plain Momentum Nesterov Adam LMO TorchUpdate",
    "Clusters": "Cluster MPICluster VirtualCluster FaultPolicy Fault Arrival TaskResult Lost Back",
    "Errors": "UsageError RunError ItemError",
}
REST = "Task times"  # the group of all names that are in no other
WIDTH = 110


def document() -> str:
    """Return the whole page."""
    sections = [f"## {title}\n\n{''.join(map(entry, names))}" for title, names in groups().items()]
    return "\n".join([TITLE, *sections]).rstrip() + "\n"


def groups() -> dict[str, list[str]]:
    """Return the public names by group; each is in one."""
    grouped = {title: names.split() for title, names in GROUPS.items()}
    known = {name for names in grouped.values() for name in names}
    public = [name for name in mpi_ata.__all__ if not name.startswith("__")]
    return grouped | {REST: [name for name in public if name not in known]}


def entry(name: str) -> str:
    """Return the section of one name: how it is called, its docstring, and what it offers."""
    found = getattr(mpi_ata, name)
    if not getattr(found, "__module__", "").startswith("mpi_ata"):  # an alias of a type
        return f"### {name}\n\nA numpy array.\n\n"
    call = "" if getattr(found, "_is_protocol", False) else f"```python\n{called(name, found)}\n```"
    parts = [call, docstring(found), "\n".join(members(found))]
    return f"### {name}\n\n" + "".join(f"{part}\n\n" for part in parts if part)


def docstring(found: Any) -> str:
    """Return a docstring, whose single line breaks do not matter."""
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def called(name: str, found: Any) -> str:
    """Return how a function or class is called, on one line if that is short."""
    node = definition(found)
    arguments = list(fields(node)) if isinstance(node, ast.ClassDef) else list(parameters(node))
    if "__signature__" in vars(found):  # callers write the fields of what the function gets as one object
        [kind, *_] = inspect.get_annotations(inspect.unwrap(found)).values()
        arguments = [each for cls in (kind, *kind.__bases__) for each in fields(definition(cls))]
    returned = f" -> {ast.unparse(node.returns)}" if isinstance(found, type(called)) and node.returns else ""
    short = f"{name}({', '.join(arguments)}){returned}"
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return short if len(short) <= WIDTH else f"{name}(\n{lines}){returned}"


def definition(found: Any) -> Any:
    """Return a function, the constructor of a class, or a class without one, as Python reads it."""
    owner = next((cls for cls in getattr(found, "__mro__", ()) if has_constructor(cls)), None)
    source = found if owner is None else owner.__init__
    return ast.parse(textwrap.dedent(inspect.getsource(source))).body[0]


def has_constructor(cls: type) -> bool:
    """Return whether a class has a constructor that is written in the package, not one of a protocol's."""
    own = vars(cls).get("__init__")
    package = Path(mpi_ata.__file__).parent
    return inspect.isfunction(own) and package in Path(own.__code__.co_filename).parents


def parameters(node: Any) -> Iterator[str]:
    """Yield the parameters of a function as they are written."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip_longest(reversed(named), reversed(arguments.defaults)))[::-1]
    yield from (parameter(arg, default) for arg, default in pairs if arg.arg != "self")
    if arguments.vararg or arguments.kwonlyargs:
        yield f"*{ast.unparse(arguments.vararg) if arguments.vararg else ''}"
    yield from map(parameter, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def parameter(arg: ast.arg, default: ast.expr | None) -> str:
    """Return one parameter with its default."""
    return ast.unparse(arg) + (f" = {ast.unparse(default)}" if default is not None else "")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a class that has no constructor of its own: a dataclass or a named tuple."""
    lines = (ast.unparse(line) for line in node.body if isinstance(line, ast.AnnAssign))
    yield from ("*" if line == "_: KW_ONLY" else line for line in lines)


def members(found: Any) -> Iterator[str]:
    """Yield a line for each public method or property that a class defines itself."""
    for name, member in vars(found).items() if isinstance(found, type) else ():
        inner = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
            names = [each for each in inspect.signature(inner).parameters if each != "self"]
            arguments = "" if isinstance(member, property) else f"({', '.join(names)})"
            yield f"- `{name}{arguments}`: {' '.join(docstring(inner).split())}"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
