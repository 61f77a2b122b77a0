"""A run is resolved once: what is read, what is imported, and what a plan then says."""

from pathlib import Path

import pytest

from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.job import load_job
from tests.driver.driven import driven
from tests.faults.scene import saved_again, written

OUT = Path("run.h5")
IMPORTED = Path("imported.txt")
PROBLEM = """
import numpy as np

with open("imported.txt", "a") as file:
    file.write("once\\n")


class Own:
    def __init__(self):
        self.x0 = np.zeros(2)
        with open("imported.txt", "a") as file:
            file.write("built\\n")

    def gradient(self, x, task):
        return x
"""


PARTS = """
from mpi_ata import GradientUpdate, UTA


class Mine(UTA):
    pass


class Step(GradientUpdate):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(PROBLEM)
    return written(tmp_path / "job.toml", rounds=5, problem='file = "own.py"\nclass = "Own"')


def happened() -> list[str]:
    return IMPORTED.read_text().split() if IMPORTED.exists() else []


def test_reading_a_job_imports_nothing_of_the_users(job: Path) -> None:
    load_job(job)
    resolve(job, output=OutputOptions(OUT))
    assert happened() == []


def test_problem_allocator_and_update_in_one_file_are_one_module(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROBLEM + PARTS)
    job = written(tmp_path / "job.toml", rounds=5, problem='file = "own.py"\nclass = "Own"')
    settings = [
        *("allocator.file=own.py", "allocator.class=Mine"),
        *("method.update_file=own.py", "method.update_class=Step"),
    ]
    driven(job, settings)
    assert happened() == ["once", "built"]


def test_a_fresh_run_file_is_where_the_user_was_also_if_the_problem_changes_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own.py").write_text(
        PROBLEM.replace("self.x0 =", "__import__('os').chdir('elsewhere'); self.x0 =")
    )
    job = written(tmp_path / "job.toml", rounds=5, problem='file = "own.py"\nclass = "Own"')
    outcome = driven(job, output=OutputOptions())
    assert outcome.out is not None
    assert len(list((tmp_path / "runs").glob("*.h5"))) == 1
    assert not (tmp_path / "elsewhere" / "runs").exists()


def test_a_finished_run_is_finished_also_where_a_warm_start_is_named(job: Path) -> None:
    driven(job, output=OutputOptions(OUT))
    plan = resolve(job, output=OutputOptions(OUT, resume=True, warm_start=(OUT,)))
    assert plan.finished
    assert plan.notes == ("run.h5 is resumed with what it has learned; --warm-start is for new runs",)


def test_a_run_whose_newest_save_is_damaged_is_not_finished(job: Path) -> None:
    driven(job, output=OutputOptions(OUT))
    saved_again(OUT)
    OUT.write_bytes(OUT.read_bytes()[:-1])
    plan = resolve(job, output=OutputOptions(OUT, resume=True))
    assert (plan.damaged, plan.finished) == (True, "")


def test_variants_of_a_plan_share_the_users_class(job: Path) -> None:
    for variant in resolve(job).with_allocators(["gta", "uta", "ata-empirical"]):
        variant.parts()
    assert happened() == ["once", "built", "built", "built"]


def test_a_plan_says_what_is_resumed_and_what_has_changed(job: Path) -> None:
    driven(job, output=OutputOptions(OUT))
    same = resolve(job, output=OutputOptions(OUT, resume=True))
    assert same.finished
    assert (same.changes, same.notes) == ((), ())
    more = resolve(job, ["stop.rounds=8"], OutputOptions(OUT, resume=True))
    assert not more.finished
    assert more.changes == ("stop.rounds: 5 -> 8",)
    assert more.job.stop.rounds == 8
    assert more.earlier is not None
    assert int(more.earlier.method["k"]) == 5
