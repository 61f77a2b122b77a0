"""What problems share: data that each worker owns, and libraries that may be missing."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata import TorchProblem
from mpi_ata.errors import RunError
from mpi_ata.problems.interface import shard
from tests.cli.commands import call
from tests.faults.scene import written


@given(st.integers(1, 60), st.integers(1, 60))
def test_every_sample_belongs_to_one_worker_and_the_parts_differ_by_at_most_one(n: int, more: int) -> None:
    size = n + more
    parts = [shard(size, worker, n) for worker in range(n)]
    assert [number for part in parts for number in range(*part)] == list(range(size))
    lengths = {end - begin for begin, end in parts}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("n", "rule"), [(4, "3 samples cannot be divided among 4 workers"), (0, "call setup")]
)
def test_samples_for_too_many_or_an_unknown_number_of_workers_are_rejected(n: int, rule: str) -> None:
    with pytest.raises(RunError, match=rule):
        shard(3, 0, n)


@pytest.mark.parametrize(
    ("library", "problem", "sentence"),
    [
        ("sklearn", 'name = "logistic"', "[problem] scikit-learn is missing; "),
        ("torch", 'name = "cifar100"\ndata = "."', "[problem] PyTorch is missing; "),
        ("torch", "import torch\nclass Own: pass", "; "),
        ("sklearn", "class Own:\n  def __init__(self): import sklearn", "; "),
    ],
)
def test_a_missing_library_is_named_in_one_sentence_that_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, problem: str, sentence: str
) -> None:
    if "Own" in problem:
        (tmp_path / "own.py").write_text(problem)
        problem = 'file = "own.py"\nclass = "Own"'
    monkeypatch.setitem(sys.modules, library, None)  # so that importing it fails
    result = call("run", str(written(tmp_path / "job.toml", problem=problem)), "--virtual")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"{sentence}install it with pip install 'mpi-ata[{library}]'\n")
    assert result.stderr.count("\n") == 1


def test_a_users_problem_that_needs_pytorch_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="PyTorch is missing"):
        TorchProblem(None, None, [1])  # type: ignore[arg-type]
