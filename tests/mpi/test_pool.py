"""Pool on real ranks: scripts of others, and what goes wrong."""

import os
import pty
import re
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from mpi_ata import load
from mpi_ata.runfile.progress import read_progress
from tests.faults.checks import outlives_deaths
from tests.mpi.starting import COMMAND, finished, mpirun, rank_pids, started
from tests.mpi.test_interrupted_on_ranks import TIMED, wait_for

SLOW = pytest.mark.slow
SCHWIMMBAD = """
import sys
from mpi_ata import Pool as MPIPool

def worker(task):
    a, b = task
    return a**2 + b**2

def main(pool):
    print(*pool.map(worker, list(zip(range(6), range(6)))), pool.size, pool.comm.Get_size(), pool.enabled())

with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    main(pool)
print("after", flush=True)
"""


def test_a_script_for_schwimmbad_changes_one_import(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCHWIMMBAD)
    done = mpirun(4, sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "0 2 8 18 32 50 3 4 True\nafter\n"), done.stderr


COMMUNICATORS = """
from mpi4py import MPI
import mpi_ata

world = MPI.COMM_WORLD
part = world.Split([MPI.UNDEFINED, 0, 0, 0, 1, 1, 1][world.rank], world.rank)
if world.rank == 0:
    print("outside", flush=True)
elif world.rank < 4:
    with mpi_ata.Pool(comm=part) as pool:
        print("pool", pool.size, pool.comm.Get_size(), sum(pool.map(abs, range(-9, 0))), flush=True)
else:
    options = {"update": mpi_ata.Plain(0.1), "rounds": 5, "comm": part, "progress": False}
    if result := mpi_ata.minimize(mpi_ata.Quadratic(3), 4, **options):
        print("run", result.summary["workers"], result.summary["rounds"], flush=True)
"""


def test_ranks_of_a_communicator_take_part_and_others_do_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMMUNICATORS)
    done = mpirun(7, sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["outside", "pool 2 3 45", "run 2 5"]


@pytest.mark.parametrize(
    ("comm", "found"),
    [
        ("7", "comm=7 must be a communicator of mpi4py"),
        ("MPI.COMM_NULL", "comm is MPI.COMM_NULL: only ranks of the communicator make this call"),
        ("MPI.COMM_SELF", "a job needs at least 2 ranks"),
    ],
)
def test_a_wrong_communicator_is_rejected_in_one_sentence(tmp_path: Path, comm: str, found: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"from mpi4py import MPI\nimport mpi_ata\nmpi_ata.Pool(comm={comm})\n")
    done = mpirun(2, sys.executable, script)
    assert done.returncode != 0
    assert found in done.stderr
    assert "Traceback" not in done.stderr


OPENED = """
import mpi_ata

def nested(value):
    return mpi_ata.Pool().map(abs, [value])

pool = mpi_ata.Pool(workers=2)
print(pool.map(abs, [-1, -2]), flush=True)
{}
"""


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", 0, ""),  # it is closed at the end
        ("pool.close()\nprint(mpi_ata.Pool().map(abs, [-3]))", 2, "rank 1 has ended, but rank 0 calls"),
        ("mpi_ata.Pool()", 2, "Error: cluster cannot be called while a pool or cluster is open; close it"),
        ("pool.map(nested, [1])", 1, "nested failed for item 0 on worker"),
        ("pool.map(nested, [1])", 1, "cluster cannot be called in a task"),
    ],
)
def test_a_pool_that_starts_its_own_ranks_and_second_ones(
    tmp_path: Path, line: str, code: int, words: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPENED.format(line))
    done = finished([sys.executable, str(script)])
    assert done.stdout.startswith("[1, 2]\n"), done.stderr
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


DEADLY = """
import os
import signal
import time
import mpi_ata

def deadly(value):
    if value == 307:
        os.kill(os.getpid(), signal.SIGKILL)
    if value == 9:
        raise ValueError("nine")
    time.sleep({seconds})
    return value

with mpi_ata.Pool(workers=4) as pool:
    found = pool.map(deadly, range(400), on_error="return")
    assert [each for each in found if isinstance(each, int)] == [i for i in range(400) if i not in (9, 307)]
    print(found[307], found[9], sep="\\n")
    pool.map(deadly, [9])
"""


@pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one has died")
@pytest.mark.parametrize(
    "seconds", [pytest.param(0.002, marks=SLOW), 0.0]
)  # of short items, an order comes back at once
def test_an_item_that_kills_costs_two_workers_and_one_that_raises_none(
    tmp_path: Path, seconds: float
) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEADLY.format(seconds=seconds))
    done = finished([sys.executable, str(script)])
    assert done.stdout, done.stderr
    killed, raised = done.stdout.split("\n", 1)
    assert re.match(r"item 307, 307, has cost 2 workers, the last one worker \d \(host ", killed), done.stderr
    assert re.match(r"(?s)deadly failed for item 9 on worker \d .*Traceback.*ValueError: nine", raised)
    assert re.search(r"(?s)Error: deadly failed for item 0 on worker \d .*ValueError: nine", done.stderr)
    assert done.stderr.count("lost worker") == 2


PROCESSES = """
import multiprocessing
import os
import signal
import sys
import time
import mpi_ata

def square(value):
    return value * value

def mapped(value):
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        return pool.map(square, range(value))

def ended(value):
    pool = multiprocessing.get_context(sys.argv[1]).Pool(2)
    pool.map(square, range(9))
    pool.map_async(time.sleep, [600, 600])
    time.sleep(0.2)
    if value == "killed":
        print(*(process.pid for process in pool._pool), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    pool.terminate()
    pool.join()
    return value

if __name__ == "__main__":
    with mpi_ata.Pool(workers=3) as pool:
        assert pool.map(mapped, [3, 4]) == [[0, 1, 4], [0, 1, 4, 9]]
        assert pool.map(ended, range(3)) == [0, 1, 2]
        if sys.argv[2] == "killed":
            pool.map(ended, ["killed"], max_losses=1, on_error="return")
"""


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=SLOW)])
def test_tasks_may_start_processes_which_end_when_asked_and_with_their_worker(
    tmp_path: Path, way: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = finished([sys.executable, str(script), way, "killed" if outlives_deaths() else "not"])
    assert done.returncode == 0, done.stderr
    commands = [Path("/proc", pid, "cmdline") for pid in done.stdout.split()]
    assert len(commands) == 2 * outlives_deaths()
    assert not any(command.exists() and command.read_bytes() for command in commands), "a zombie has none"


@SLOW
def test_a_process_that_imports_a_script_up_to_its_pool_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = finished([sys.executable, str(script)])
    assert "Error: a process that a task has spawned imports this script, and gets to cluster" in done.stderr
    assert (done.returncode, done.stdout) == (0, "[1]\n")


UNGUARDED = """
import multiprocessing
import mpi_ata

def spawning(value):
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    return process.exitcode

with mpi_ata.Pool(workers=1) as pool:
    print(pool.map(spawning, [1]))
"""


RECORDED = """
import sys
import time
import numpy as np
import mpi_ata

def square(value):
    time.sleep(0.02 if value < 60 else float(sys.argv[1]))  # so that the first start is not done in time
    with open("computed", "a") as file:
        file.write(f"{value}\\n")
    return np.float64(value) ** 2

options = {"out": "run.h5", "resume": True, "checkpoint_seconds": 1, "warm_start": ".", "progress": True}
with mpi_ata.Pool(workers=3, **options) as pool:
    found = [value for _ in range(2) for value in pool.map(square, range(150))]
    assert found == 2 * [float(value) ** 2 for value in range(150)]
    print("done")
"""


@pytest.mark.parametrize("sent", [*(pytest.param(name, marks=SLOW) for name in ("USR1", "TERM")), "KILL"])
def test_a_recorded_pool_is_resumed_after_a_signal_with_what_it_has_computed(
    tmp_path: Path, sent: str
) -> None:
    script, run, computed = tmp_path / "script.py", tmp_path / "run.h5", tmp_path / "computed"
    script.write_text(RECORDED)
    with started([sys.executable, str(script), "0.4"], tmp_path) as process:
        wait_for(lambda: read_progress(run).rounds >= 1, process)
        if sent == "KILL":
            os.kill(rank_pids(str(script))[0], signal.SIGKILL)
        else:
            process.send_signal(signal.Signals[f"SIG{sent}"])
        _, err = process.communicate(timeout=60)
    assert (process.returncode == 85) == (sent != "KILL"), err
    assert sent == "KILL" or re.search(rf"SIG{sent} ended map\(\) after \d+ of 150 items\n", err), err
    before = len(computed.read_text().splitlines())
    saved = load(run).summary
    assert "resume=True in a script" in printed_by("show", "run.h5", folder=tmp_path)
    with started([sys.executable, str(script), "0.0"], tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n"), err
    after = load(run)
    again = len(computed.read_text().splitlines()) - 300
    assert after.summary["tasks_used"] == 300, "each item counts once"
    under_way = before - saved["tasks_used"] + 3  # each worker may be at one that it ends after its manager
    assert again <= (under_way if sent == "KILL" else 0), "what was saved is not computed"
    (resumed,) = (event["text"] for event in after.events if event["kind"] == "resumed")
    assert resumed == f"at item {saved['tasks_used']:,} on 3 workers"
    assert "\nrounds" not in (shown := printed_by("show", "run.h5", folder=tmp_path))
    assert " = 300 used + " in shown
    assert "\nitems        300 done\n" in printed_by("watch", "run.h5", folder=tmp_path)
    assert printed_by("explain", "run.h5", folder=tmp_path).startswith("A free worker gets half of its share")
    assert printed_by("report", "run.h5", "-o", "run.html", folder=tmp_path) == "wrote run.html\n"


PRINTING = """
import time, mpi_ata

def waited(item):
    time.sleep(0.02)
    return item

if __name__ == "__main__":
    with mpi_ata.Pool(workers=3, out="run.h5") as pool:
        for part in range(3):
            print("result", part, sum(pool.map(waited, range(100))))
"""


@TIMED
def test_on_a_terminal_results_are_not_erased_by_the_progress_that_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    (tmp_path / "script.py").write_text(PRINTING)
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    with started([sys.executable, "script.py"], tmp_path, terminal, terminal) as process:
        os.close(terminal)
        shown = ""
        with suppress(OSError):  # its other end is closed
            while part := os.read(reader, 4096):
                shown += part.decode()
        assert process.wait(60) == 0, shown
    os.close(reader)
    _, *results = shown.split("result ")
    assert [text.split()[1] for text in results] == 3 * ["4950"]
    for text in results:
        assert "\x1b[2K" not in text.partition("╭")[0], "before it is drawn again, below"


def printed_by(*words: str, folder: Path) -> str:
    """Return what a command prints that succeeds."""
    with started([str(COMMAND), *words], folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (words, err)
    return out


FUTURES = """
import os
import signal
import sys
import time
from concurrent.futures import as_completed
import mpi_ata

def work(value, plus=0):
    if value == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == 7:
        raise ValueError("seven")
    time.sleep(0.05)
    return value * value + plus

executor = mpi_ata.Executor(workers=3)
futures = {executor.submit(work, value, plus=1): value for value in range(12)}
began = time.monotonic()
while sum(future.done() for future in futures) < 12:  # they proceed while this thread computes
    sum(range(10_000))
found = {futures[future]: future.exception() or future.result() for future in as_completed(futures)}
assert isinstance(found[7], ValueError) and "failed for item 7 on worker" in str(found[7].__cause__), found
assert [found[value] for value in range(7)] == [value * value + 1 for value in range(7)]
assert list(executor.map(work, range(4))) == [0, 1, 4, 9]
if sys.argv[1] == "outlives":
    assert "has cost 2 workers" in str(executor.submit(work, "dies").exception())
    assert executor.submit(work, 3).result() == 9
many = [executor.submit(time.sleep, 0.2) for _ in range(40)]
time.sleep(0.1)
assert many[-1].cancel() and not many[0].cancel()
executor.shutdown(wait=False, cancel_futures=True)
assert 1 < sum(future.cancelled() for future in many) < 40
try:
    executor.submit(work, 1)
except mpi_ata.RunError as error:
    print(error)
"""


def test_an_executor_has_futures_that_proceed_while_the_script_computes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FUTURES)
    done = finished([sys.executable, str(script), "outlives" if outlives_deaths() else "not"])
    words = "an executor cannot be used after shutdown(), nor after an error that has ended it\n"
    assert (done.returncode, done.stdout) == (0, words), done.stderr


def test_an_error_of_the_script_is_recorded_although_nobody_has_closed_its_pool(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        OPENED.format("1 / 0").replace("workers=2", f"workers=2, out={str(tmp_path / 'run.h5')!r}")
    )
    done = finished([sys.executable, str(script)])
    assert done.returncode == 1
    found = load(tmp_path / "run.h5").summary
    assert (found["finished"], found["failure"]) == (False, "division by zero")
