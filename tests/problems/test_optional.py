"""Heavy libraries: not imported with the package, and named in one sentence where they are missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpi_ata import TorchProblem
from mpi_ata.cli import main
from mpi_ata.job.component import PROBLEMS

JOB = """
[problem]
{problem}
[method]
name = "sgd"
step_size = 0.1
[allocator]
name = "uta"
budget = 2
[times]
law = "constant"
[stop]
rounds = 1
[run]
workers = 2
"""


def test_the_package_imports_no_heavy_library() -> None:
    heavy = ["torch", "sklearn", "scipy", "matplotlib", "numba"]
    code = f"import sys, mpi_ata.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("library", "problem", "sentence"),
    [
        ("sklearn", 'name = "logistic"', "scikit-learn is missing"),
        ("torch", 'name = "cifar100"\ndata = "."', "PyTorch is missing"),
    ],
)
def test_a_missing_library_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, problem: str, sentence: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(problem=problem))
    monkeypatch.setitem(sys.modules, library, None)  # so that importing it fails
    result = CliRunner().invoke(main, ["run", str(job), "--virtual"])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"[problem] {sentence}; install it with pip install 'mpi-ata[{library}]'\n")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("library", ["torch", "sklearn"])
@pytest.mark.parametrize(
    "code", ["import {}\nclass Own: pass", "class Own:\n  def __init__(self): import {}"]
)
def test_where_a_users_file_lacks_a_library_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, code: str
) -> None:
    (tmp_path / "own.py").write_text(code.format(library))
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(problem='file = "own.py"\nclass = "Own"'))
    monkeypatch.setitem(sys.modules, library, None)
    result = CliRunner().invoke(main, ["run", str(job), "--virtual"])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"; install it with pip install 'mpi-ata[{library}]'\n")


def test_a_users_problem_that_needs_pytorch_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="PyTorch is missing"):
        TorchProblem(None, None, [1])  # type: ignore[arg-type]


def test_the_problems_have_the_names_that_job_files_use() -> None:
    assert {"quadratic", "logistic", "cifar100"} <= set(PROBLEMS)
