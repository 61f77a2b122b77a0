"""A script of one's own on real ranks, without a job file."""

import re
import sys
from pathlib import Path

from tests.mpi.starting import COMMAND, ROOT, finished, mpirun

SCRIPT = ROOT / "jobs" / "own_loop.py"


def test_a_loop_of_ones_own_runs_on_real_ranks_and_only_the_manager_gets_there() -> None:
    done = mpirun(5, sys.executable, SCRIPT)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"round (\d+): quotas \[([ \d]+)\], gap 0\.0", done.stdout)
    assert [number for number, _ in found] == ["100", "200", "300"]
    assert all(sum(map(int, quotas.split())) == 8 for _, quotas in found)


def test_a_loop_that_fails_ends_all_ranks_with_its_error(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        SCRIPT.read_text().replace("if round.number == 300:", "if 1 / (300 - round.number) < 0:")
    )
    done = mpirun(5, sys.executable, script)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr


def test_times_for_another_number_of_workers_are_rejected() -> None:
    done = mpirun(3, sys.executable, SCRIPT)
    assert done.returncode != 0
    assert "but mpirun started 2 and the manager: make the two agree" in done.stderr


def test_a_world_without_workers_is_rejected_in_words(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mpi_ata\nwith mpi_ata.cluster(mpi_ata.Quadratic(3)) as c:\n    print(c.n)\n")
    done = mpirun(1, sys.executable, script)
    assert done.returncode != 0
    assert "a job needs at least 2 ranks (1 manager + 1 worker) but was started on 1" in done.stderr
    assert "use workers=4" in done.stderr


ALLOCATOR = """
import os
from mpi_ata import UTA

if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "2":
    raise ImportError("only here")


class Mine(UTA):
    pass
"""


def test_an_allocator_that_fails_on_one_rank_ends_a_comparison_on_all(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ALLOCATOR)
    job = tmp_path / "job.toml"
    text = (ROOT / "jobs" / "emulated.toml").read_text()
    own = r'\1file = "mine.py"\nclass = "Mine"\nbudget = 4\n\n'
    job.write_text(re.sub(r"(?ms)(\[allocator\]\n).*?\n\n", own, text))
    done = mpirun(3, COMMAND, "compare", job, "--allocators", "own,uta", seconds=40)
    assert done.returncode != 0
    assert "rank 2: " in done.stderr
    assert "ImportError: only here" in done.stderr


COUNTING = """
import sys
from pathlib import Path
from mpi_ata import Quadratic

class Counting(Quadratic):
    def gradient(self, x, task):
        names = [name for name in sys.modules if name.startswith("mpi_ata")]
        Path(__file__).with_name(f"loaded{task.worker}").write_text(str(len(names)))
        return super().gradient(x, task)
"""


def test_a_worker_loads_at_most_130_modules_of_this_package(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    job, named = tmp_path / "job.toml", 'file = "counting.py"\nclass = "Counting"'
    job.write_text((ROOT / "jobs" / "emulated.toml").read_text().replace('name = "quadratic"', named))
    done = finished([str(COMMAND), "run", str(job), "--workers", "2", "--set", "stop.rounds=2"])
    assert done.returncode == 0, done.stderr
    counts = [int((tmp_path / f"loaded{worker}").read_text()) for worker in range(2)]
    assert max(counts) <= 130, counts
