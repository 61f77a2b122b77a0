"""minimize() on real ranks: started by mpirun, or by the script itself; and mistakes on some of them."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest

import mpi_ata
from tests.faults.checks import outlives_deaths
from tests.mpi.starting import ROOT, finished, mpirun, started

SCRIPT = """
import os, sys
import mpi_ata
from mpi_ata import Plain, Quadratic, Sqrt

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", 0)))
options = {{"budget": 4, "update": Plain(0.4), "rounds": 20}}
problem = Quadratic(5)
{body}
"""
TWICE = """
for out in ("first.h5", "second.h5"):
    result = mpi_ata.minimize(problem, out=out, **options)
    print(f"{rank} {result and result.summary['rounds']}\\n", end="", flush=True)  # in one piece
"""
CALL = "mpi_ata.minimize(problem, **options)"
MISTAKES = {
    "if rank == 0: " + CALL: "rank 1 has ended, but rank 0 calls minimize",
    "if rank == 2: sys.exit()\n" + CALL: "rank 2 has ended, but rank 0 calls minimize",
    "if rank > 0: " + CALL: "rank 0 has ended, but rank 1 calls minimize",
    "options['budget'] += rank == 1\n" + CALL: "(budget = 5 instead of budget = 4)",
    "if rank == 1: del problem.x0\n" + CALL: "rank 1: Quadratic has no x0",
}


def script(folder: Path, body: str) -> Path:
    """Write a script with this body."""
    path = folder / "train.py"
    path.write_text(SCRIPT.format(body=body))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_rank_calls_and_the_manager_gets_the_result_twice(tmp_path: Path) -> None:
    done = mpirun(3, sys.executable, script(tmp_path, TWICE))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(2 * ["0 20", "1 None", "2 None"])
    run = mpi_ata.load("second.h5")
    assert (run.summary["rounds"], len(run.workers)) == (20, 2)
    assert 'file = "train.py"' in run.job


def test_a_script_starts_its_own_ranks_and_exits_with_the_managers_code(tmp_path: Path) -> None:
    body = "result = mpi_ata.minimize(problem, workers=2, **options)\n"
    body += "if result: print(result.summary['workers'], sys.argv[1:])\nsys.exit(3 if result else 0)"
    done = finished([sys.executable, str(script(tmp_path, body)), "--mine", "a b"])
    assert (done.returncode, done.stdout) == (3, "2 ['--mine', 'a b']\n"), done.stderr


def test_under_a_launcher_a_script_uses_the_ranks_that_are_there_as_a_job_does(tmp_path: Path) -> None:
    body = "result = mpi_ata.minimize(problem, workers=7, **options)\n"
    body += "if result: print(result.summary['workers'])"
    done = mpirun(3, sys.executable, script(tmp_path, body))
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert done.stderr.count("workers=7 does not count here: mpirun started 2") == 1


CRASH = """
class Crashing(Quadratic):
    def gradient(self, x, task):
        if task.worker == 1:
            os.kill(os.getpid(), 11)
        return super().gradient(x, task)

mpi_ata.minimize(Crashing(5), workers=2, **options)
"""


def test_a_crashed_worker_is_named_without_addresses_of_its_stack(tmp_path: Path) -> None:
    done = finished([sys.executable, str(script(tmp_path, CRASH))])
    assert "worker 1 " in done.stderr or not outlives_deaths()  # an MPI that ends all ranks lets none speak
    assert not re.search(r"0x[0-9a-f]{6}", done.stderr)


def test_a_script_that_changes_its_folder_is_started_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    body = "os.chdir('below')\nif mpi_ata.minimize(problem, workers=2, **options): print(os.getcwd())"
    done = finished([sys.executable, script(tmp_path, body).name])
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'below'}\n"), done.stderr


@pytest.mark.slow
def test_the_script_that_ships_with_the_project_runs_on_ranks_of_its_own() -> None:
    done = finished([sys.executable, str(ROOT / "jobs" / "script.py"), "4"])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"300 rounds, gap 0\.0\d+\n", done.stdout)


@pytest.mark.parametrize("body", MISTAKES, ids=MISTAKES.get)
def test_a_mistake_on_some_rank_ends_all_with_one_sentence(tmp_path: Path, body: str) -> None:
    done = mpirun(3, sys.executable, script(tmp_path, body), seconds=40)
    assert done.returncode != 0
    assert MISTAKES[body] in done.stderr
    assert "Traceback" not in done.stderr
    assert len(re.findall(r"(?m)^Error: ", done.stderr)) == 1


def test_ranks_that_each_simulate_all_workers_are_warned_once(tmp_path: Path) -> None:
    body = "mpi_ata.VirtualCluster(problem, mpi_ata.DrawnTimes(Sqrt(4)))"
    done = mpirun(2, sys.executable, script(tmp_path, body))
    assert done.returncode == 0
    assert done.stderr.count("each of the 2 ranks runs its own copy of the simulation; leave out mpirun") == 1


def test_a_signal_saves_a_script_that_started_its_ranks_and_it_can_be_resumed(tmp_path: Path) -> None:
    body = "times = Sqrt(2, scale=1e-3)\noptions['rounds'] = int(sys.argv[1])\n"
    body += "mpi_ata.minimize(problem, workers=2, times=times, out='run.h5', resume=True, **options)"
    command = [sys.executable, str(script(tmp_path, body))]
    with started([*command, "1000000"]) as process:
        deadline = time.monotonic() + 40
        while not Path("run.h5").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 85, err
    assert "the run was stopped early, by SIGUSR1; resume it with resume=True" in err
    reached = mpi_ata.load("run.h5").summary["rounds"]
    done = finished([*command, str(reached + 5)])
    assert done.returncode == 0, done.stderr
    assert mpi_ata.load("run.h5").summary["rounds"] == reached + 5


NOTEBOOK = """
import mpi_ata
from mpi_ata import Adam
result = mpi_ata.minimize("my.py:Mine", budget=4, update=Adam(0.01), rounds=15, workers=2)
print(result.summary["rounds"], result.summary["workers"], result.x.shape, result.path)
for rounds in (3, 5):
    options = {"rounds": rounds, "workers": 2, "out": "runs/run.h5", "resume": True}
    result = mpi_ata.minimize("my.py:Mine", budget=4, update=Adam(0.01), **options)
    print(result.summary["rounds"], result.path)
try:
    mpi_ata.minimize(mpi_ata.Quadratic(3), budget=4, update=Adam(0.01), rounds=15, workers=2)
except mpi_ata.UsageError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_a_script_a_problem_in_a_file_runs_on_ranks_and_any_other_is_rejected() -> None:
    Path("my.py").write_text("from mpi_ata import Quadratic\nclass Mine(Quadratic):\n    pass\n")
    done = finished([sys.executable, "-c", NOTEBOOK])
    assert done.returncode == 0, done.stderr
    *results, rejection = done.stdout.splitlines()
    assert results == ["15 2 (100,) None", "3 runs/run.h5", "5 runs/run.h5"]
    assert rejection.startswith("workers=2 needs a script that all ranks can run: save this as SCRIPT.py")


DEATH = """
class Dying(Quadratic):
    def gradient(self, x, task):
        if task.round == 10 and task.worker == 1:
            os._exit(9)
        return super().gradient(x, task)

result = mpi_ata.minimize(Dying(5), workers=2, **options)
if result: print("finished", flush=True)
if result and sys.argv[1:]: exec(sys.argv[1])
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("raise SystemExit(3)", 3)])
def test_a_script_that_outlives_a_worker_exits_with_0_or_a_code_of_its_own(
    tmp_path: Path, end: str, code: int
) -> None:
    done = finished([sys.executable, str(script(tmp_path, DEATH)), end])
    assert (done.returncode == code) == ("finished" in done.stdout), done.stderr


POOL = """
import multiprocessing
if __name__ == "__main__":
    result = mpi_ata.minimize(Quadratic(5), workers=2, **options)
    if result:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(pool.map(abs, [-1, 2]), flush=True)
        raise SystemExit(3)
"""


def test_a_script_on_ranks_can_use_a_pool_of_processes(tmp_path: Path) -> None:
    done = finished([sys.executable, str(script(tmp_path, POOL))])
    assert (done.returncode, "[1, 2]" in done.stdout) == (3, True), done.stderr


BODY = """
class Counting:
    x0 = 0.0
    def compute(self, x, task):
        if task.round == 6 and "fail" in sys.argv:
            raise ValueError("on purpose")
        return 1.0

problem = Counting()
with mpi_ata.cluster(problem, workers=2) as cluster:
    method = mpi_ata.Map(problem.x0, mpi_ata.UTA(cluster.n, 4))
    for _ in mpi_ata.run(method, cluster, problem, mpi_ata.Stop(rounds=10), out="run.h5", resume=True):
        method.x += len(method.results)
    print(method.x, flush=True)
"""


def test_a_round_that_fails_on_ranks_leaves_what_the_loop_did_before_it(tmp_path: Path) -> None:
    command = [sys.executable, str(script(tmp_path, BODY))]
    failed = finished([*command, "fail"])
    assert failed.returncode == 1
    assert "run.h5 holds the run up to round 5" in failed.stderr
    done = finished(command)
    assert (done.returncode, done.stdout) == (0, "40.0\n"), done.stderr


AFTERWARDS = """
import time
if mpi_ata.minimize(problem, workers=2, **options):
    try:
        print("done", flush=True)
        time.sleep(50)
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "printed"), [(signal.SIGINT, 1, "cleaned up\n"), (signal.SIGTERM, 143, "")]
)
def test_a_signal_after_the_run_does_what_it_does_in_any_script(
    tmp_path: Path, number: signal.Signals, code: int, printed: str
) -> None:
    with started([sys.executable, str(script(tmp_path, AFTERWARDS))]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert out.startswith(printed), "the words of a launcher may follow"


ENDS = """
import atexit, signal, time
{before}
result = mpi_ata.minimize(problem, workers=2, **options)
{after}
"""
HANGS = "if result is None: atexit.register(time.sleep, 3600)\nif result: "
DIES_LAST = """
if result is None:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_FIRST = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)"
CRASHES = "if result: os.kill(os.getpid(), signal.SIGSEGV)"
ENDED = "some ranks were still there 10 s after the run; they were ended"
DIED = "Error: a rank has died, and all have ended"


@pytest.mark.parametrize(
    ("before", "after", "code", "words"),
    [
        pytest.param("", HANGS + "sys.exit(3)", 3, ENDED, marks=pytest.mark.slow),
        pytest.param("", HANGS + "os._exit(3)", 1, DIED, marks=pytest.mark.slow),
        ("", DIES_LAST, 0, ""),
        ("", CRASHES, 1, DIED),
        (DIES_FIRST, "", 1, "Error: the ranks ended before they had found each other"),
    ],
    ids=["hang", "hang, manager gone", "killed at exit", "crash", "killed at start"],
)
def test_however_ranks_end_the_script_that_started_them_ends_with_their_code_or_the_reason(
    tmp_path: Path, before: str, after: str, code: int, words: str
) -> None:
    done = finished([sys.executable, str(script(tmp_path, ENDS.format(before=before, after=after)))])
    assert done.returncode == code, done.stderr
    assert words in done.stderr
