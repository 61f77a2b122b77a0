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
from mpi_ata import GradientUpdate, UTA

def note(word):
    with open("imported.txt", "a") as file:
        file.write(word)

note("once ")

class Own:
    def __init__(self):
        self.x0 = np.zeros(2)
        note("built ")

    def gradient(self, x, task):
        return x

class Mine(UTA):
    pass

class Step(GradientUpdate):
    pass
"""


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


def test_problem_allocator_and_update_in_one_file_are_one_module(job: Path) -> None:
    allocator = ["allocator.file=own.py", "allocator.class=Mine"]
    driven(job, [*allocator, "method.update_file=own.py", "method.update_class=Step"])
    assert happened() == ["once", "built"]


def test_a_fresh_run_file_is_where_the_user_was_also_if_the_problem_changes_the_folder(job: Path) -> None:
    Path("elsewhere").mkdir()
    moves = PROBLEM.replace("self.x0 =", "__import__('os').chdir('elsewhere'); self.x0 =")
    Path("own.py").write_text(moves)
    assert driven(job, output=OutputOptions()).out is not None
    assert len(list((job.parent / "runs").glob("*.h5"))) == 1
    assert not (job.parent / "elsewhere" / "runs").exists()


def test_a_run_whose_newest_save_is_damaged_is_not_finished(job: Path) -> None:
    driven(job, output=OutputOptions(OUT))
    saved_again(OUT)
    OUT.write_bytes(OUT.read_bytes()[:-1])
    plan = resolve(job, output=OutputOptions(OUT, resume=True))
    assert (plan.damaged, plan.finished) == (True, "")


def test_variants_of_a_plan_share_the_users_class(job: Path) -> None:
    for variant in resolve(job).with_each("allocator", ["gta", "uta", "ata-empirical"]):
        variant.parts()
    assert happened() == ["once", "built", "built", "built"]


def test_a_plan_says_what_is_resumed_and_what_has_changed(job: Path) -> None:
    driven(job, output=OutputOptions(OUT))
    same = resolve(job, output=OutputOptions(OUT, resume=True))
    assert (same.finished, same.changes, same.notes) == ("5 rounds", (), ())
    warm = resolve(job, output=OutputOptions(OUT, resume=True, warm_start=(OUT,)))
    assert warm.finished
    assert warm.notes == ("run.h5 is resumed with what it has learned; --warm-start is for new runs",)
    more = resolve(job, ["stop.rounds=8"], OutputOptions(OUT, resume=True))
    assert (more.finished, more.changes, more.job.stop.rounds) == ("", ("stop.rounds: 5 -> 8",), 8)
    assert more.earlier is not None
    assert int(more.earlier.method["k"]) == 5


def test_a_limit_that_set_gave_and_that_was_reached_is_used_up(job: Path) -> None:
    driven(job, ["stop.rounds=3"], output=OutputOptions(OUT))
    again = resolve(job, ["stop.rounds=3"], OutputOptions(OUT, resume=True))
    assert again.finished == "3 rounds"
    plain = resolve(job, output=OutputOptions(OUT, resume=True))
    assert (plain.finished, plain.changes) == ("", ("stop.rounds: 3 -> 5",))
