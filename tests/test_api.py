"""The public names: what `from mpi_ata import ...` promises."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import mpi_ata
from tests.document_api import NOT_RUN, example, groups

ROOT = Path(__file__).parent.parent
HEAVY = ("mpi4py", "h5py", "click", "torch", "matplotlib", "numba", "sklearn", "pandas")


def printed(code: str) -> str:
    """Return what Python prints for some lines, in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("name", [name for name in mpi_ata.__all__ if name != "MPICluster"])
def test_every_public_name_is_there_and_explains_itself(name: str) -> None:
    found = getattr(mpi_ata, name)
    if isinstance(found, type) or callable(found):
        assert found.__doc__


def test_importing_the_package_loads_few_modules_and_no_library_that_a_rank_may_not_need() -> None:
    code = "import sys, mpi_ata; print(*sys.modules)"
    loaded = printed(code).split()
    assert not {*HEAVY} & {*loaded}
    assert sum(name.startswith("mpi_ata") for name in loaded) <= 15
    assert not {*HEAVY[3:]} & {*printed(code.replace("mpi_ata", "mpi_ata.cli")).split()}
    assert printed("import mpi_ata; print(mpi_ata.MPICluster.__name__)") == "MPICluster\n"


def test_a_script_beside_a_clone_does_not_import_the_folder_of_the_clone(tmp_path: Path) -> None:
    (tmp_path / "mpi_ata").mkdir()
    (tmp_path / "script.py").write_text("import mpi_ata\nmpi_ata.minimize")
    subprocess.run([sys.executable, "script.py"], check=True, cwd=tmp_path)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Stepping'"):
        _ = mpi_ata.Stepping  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names_as_python_and_from_the_same_modules() -> None:
    tree = ast.parse((ROOT / "mpi_ata" / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}
    for module in [node.module for node in imports if node.names[0].name == "*"]:
        found = vars(import_module(str(module)))
        own = [name for name in found if name[0] != "_" and not isinstance(found[name], ModuleType)]
        seen |= dict.fromkeys(found.get("__all__", own), module)
    del seen["__version__"]
    assert seen == mpi_ata._MODULES
    assert set(mpi_ata.__all__) <= set(dir(mpi_ata))


def test_the_reference_of_public_names_is_up_to_date() -> None:
    page = printed("from tests.document_api import document; print(document(), end='')")
    assert page == (ROOT / "docs" / "api.md").read_text(), "run python -m tests.document_api"


PREPARED = """
problem = Quadratic(3)
x = g = problem.x0
method = SGD(problem.x0, ATAAuto(n, budget=8), Plain(0.1))
round = method.step(VirtualCluster(problem, DrawnTimes(Sqrt(4))))
cluster = VirtualCluster(problem, DrawnTimes(Sqrt(4)))
result = minimize(problem, 8, update=Plain(0.1), rounds=2, times=Sqrt(4), out="run.h5", progress=False)
"""


@pytest.mark.parametrize(
    "name", [name for names in groups().values() for name in names if name not in NOT_RUN]
)
def test_the_example_of_each_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = {each: getattr(mpi_ata, each) for each in mpi_ata.__all__} | {
        "mpi_ata": mpi_ata,
        "np": np,
        "n": 4,
    }
    exec(PREPARED, scope)  # noqa: S102
    exec(example(name), scope)  # noqa: S102


@pytest.mark.parametrize("name", [name for names in groups().values() for name in names])
def test_each_name_occurs_in_its_example(name: str) -> None:
    assert re.search(rf"\b{name}\b", example(name))


def test_the_protocols_the_clusters_and_the_functions_of_a_script_are_public() -> None:
    protocols = {"Problem", "Allocator", "Method", "Update", "Law", "Observer", "Cluster"}
    others = {"Array", "MPICluster", "VirtualCluster", "load", "minimize", "run", "cluster", "Result"}
    assert protocols | others <= set(mpi_ata.__all__)


def test_a_cluster_without_ranks_or_times_is_rejected_with_both_ways_out() -> None:
    problem = mpi_ata.Quadratic(dimension=3)
    with pytest.raises(mpi_ata.UsageError, match=r"use mpirun -n 5 .* or simulate .* times="):
        mpi_ata.cluster(problem).__enter__()
