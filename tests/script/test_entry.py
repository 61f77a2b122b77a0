"""What scripts say on stderr: where they resume, that they are finished, and what went wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEAD = """import sys
import mpi_ata
from mpi_ata import SGD, UTA, DrawnTimes, Plain, Quadratic, Sqrt, Stop, VirtualCluster

class Mine(Quadratic):
    def gradient(self, x, task):
        return super().gradient(x, task) if task.round < 50 else x.nothing

problem, rounds = Mine(5), int(sys.argv[1])
"""
MINIMIZE = """mpi_ata.minimize(
    problem, 4, update=Plain(0.4), rounds=rounds, times=Sqrt(3), out="run.h5", resume=True
)
"""
LOOP = """cluster = VirtualCluster(problem, DrawnTimes(Sqrt(3)))
method = SGD(problem.x0, UTA(cluster.n, 4), Plain(0.4))
for _ in mpi_ata.run(method, cluster, problem, Stop(rounds=rounds), out="run.h5", resume=True):
    pass
"""
FINISHED = "run.h5 is already finished, at 20 rounds; to continue, give it another limit\n"


def run_script(folder: Path, body: str, rounds: int) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(HEAD + body)
    return subprocess.run(
        [sys.executable, "train.py", str(rounds)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("body", [MINIMIZE, LOOP], ids=["minimize", "loop"])
def test_a_script_says_where_it_resumes_and_that_it_is_finished(tmp_path: Path, body: str) -> None:
    first, more, again = (run_script(tmp_path, body, rounds) for rounds in (10, 20, 20))
    assert [done.returncode for done in (first, more, again)] == [0, 0, 0], again.stderr
    assert "resumed" not in first.stderr
    assert "resumed at round 10 on 3 workers\n" in more.stderr
    assert FINISHED not in more.stderr
    assert again.stderr.startswith(FINISHED)


def test_a_mistake_in_the_call_ends_with_exit_code_2_and_one_sentence(tmp_path: Path) -> None:
    done = run_script(tmp_path, MINIMIZE, 0)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert ", line 10)\n" in done.stderr


def test_where_a_task_fails_the_line_of_the_call_follows_on_a_line_of_its_own(tmp_path: Path) -> None:
    done = run_script(tmp_path, MINIMIZE, 60)
    assert done.returncode == 1
    assert "Error: a task of worker " in done.stderr
    assert "\ncalled from " in done.stderr
    assert done.stderr.endswith("train.py, line 10\n")
