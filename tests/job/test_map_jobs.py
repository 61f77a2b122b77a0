"""Jobs with the method map: what is rejected, and how they are saved and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError
from tests.driver.driven import driven
from tests.faults.scene import METHODS, written
from tests.test_packing import same

PROBLEM = """
import numpy as np


class Mine:
    def __init__(self, step=1):
        self.x0 = {"total": 0, "rows": [], "mean": np.zeros(2, np.float32), "name": "mine", "none": None}
        self.step = step

    def compute(self, x, task):
        return self.step, task.rng.random(2)

    def combine(self, x, results):
        rows = np.array([result.value[1] for result in results])
        total = x["total"] + sum(result.value[0] for result in results)
        mean = rows.mean(axis=0).astype(np.float32)
        return x | {"total": total, "rows": [*x["rows"], rows], "mean": mean}
"""
MAP = 'name = "map"\n[allocator]\nname = "ata-empirical"\nbudget = 6'


@pytest.fixture(autouse=True)
def method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "map", MAP)


def job(folder: Path, old: str = "", new: str = "", changed: tuple[str, str] = ("", "")) -> Path:
    """Write the job, with something replaced in its problem, or in itself."""
    assert old in PROBLEM
    (folder / "mine.py").write_text(PROBLEM.replace(old, new) if old else PROBLEM)
    path = written(folder / "job.toml", "map", 8, 3, problem='file = "mine.py"\nclass = "Mine"')
    path.write_text(path.read_text().replace(*changed, 1))
    return path


def test_x_of_any_structure_is_saved_and_loaded_as_it_was(tmp_path: Path) -> None:
    outcome = driven(job(tmp_path), output=OutputOptions(tmp_path / "run.h5"))
    assert outcome.x["total"] == 8 * 6
    assert same(mpi_ata.load(tmp_path / "run.h5").x, outcome.x)


@pytest.mark.parametrize("allocator", ["gta", "uta", "ata-auto", "m-sync"])
def test_every_allocator_hands_over_b_results_per_round(tmp_path: Path, allocator: str) -> None:
    settings = [f"allocator.name={allocator}", *(["allocator.m=2"] if allocator == "m-sync" else [])]
    assert driven(job(tmp_path), settings).x["total"] == 8 * 6


def test_nan_is_a_value_like_any_other(tmp_path: Path) -> None:
    path = job(tmp_path, "rows.mean(axis=0)", "(rows.mean(axis=0) * np.nan)")
    assert np.isnan(driven(path, output=OutputOptions(tmp_path / "run.h5")).x["mean"]).all()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("def compute", "def other", "[problem] Mine needs compute(x, task)"),
        ("def combine", "def other", "[problem] Mine needs combine(x, results), which returns the next x"),
        ("self.x0", "self.start", "[problem] Mine needs x0, which the tasks of the first round are given"),
        ("def compute", "def gradient(self): ...\n\n    def compute", "[problem] Mine has gradient(), but "),
        ('"name": "mine"', '"name": {1, 2}', "[problem] x0['name'] is of type set, but a value must be made"),
    ],
)
def test_a_problem_that_is_none_for_map_is_rejected(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        driven(job(tmp_path, old, new))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"map"', '"map"\nstep_size = 0.1', "unknown key 'step_size' in [method]"),
        ('"map"', '"map"\nupdate = "adam"', "unknown key 'update' in [method]"),
        ("rounds = 8", "loss = 0.1", "Mine needs loss(x), or evaluate(x) with an entry loss"),
        ('"map"', '"sgd"\nstep_size = 0.1', "x0 of Mine must be a numpy array of float32 or float64"),
    ],
)
def test_keys_of_updates_are_none_of_map_nor_is_its_problem_one_of_gradients(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        driven(job(tmp_path, changed=(old, new)))
    assert complaint in str(caught.value)


def test_a_loss_stops_a_run(tmp_path: Path) -> None:
    loss = '    def loss(self, x):\n        return -x["total"]\n\n'
    path = job(tmp_path, "    def combine", f"{loss}    def combine")
    summary: dict[str, Any] = driven(path, ["stop.loss=-20.0", "run.evaluate_every=1"]).summary()
    assert (summary["rounds"], summary["loss"]) == (4, -24.0)
