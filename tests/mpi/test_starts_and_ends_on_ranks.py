"""Before the first round and after the last one: nothing hangs, nothing is lost, nothing is left behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from mpi_ata.launch import find_mpirun
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.cli.commands import on_terminal
from tests.doctor.running import in_namespace
from tests.mpi.starting import COMMAND, finished, ranks_of, started
from tests.mpi.test_interrupted_on_ranks import OUT, TIMED, ended, job_of, running, wait_for

STRAGGLING = """
if task.worker == 1 and task.round == 3:
    Path("straggling").touch()
    time.sleep({seconds})
"""


def is_finished() -> bool:
    return OUT.exists() and bool(load_record(RunFile(OUT))[0].reason)


@pytest.mark.slow
@TIMED
def test_a_finished_run_is_saved_before_its_stragglers_are_waited_for() -> None:
    job = job_of("sgd gta", rounds=3, body=STRAGGLING.format(seconds=8))
    with started(running(job)) as process:
        wait_for(is_finished, process)
        assert len(ranks_of(str(job))) >= 4
        out, err = ended(process, job)
    assert process.returncode == 0, err
    assert "ended          at 3 rounds" in out
    assert load_record(RunFile(OUT))[0].summary["worker_time"] > 8


@TIMED
def test_after_a_signal_a_straggler_is_waited_for_as_long_as_grace_says() -> None:
    run = "checkpoint_rounds = 5\ngrace = 1.0"
    job = job_of("sgd gta", rounds=3, run=run, body=STRAGGLING.format(seconds=600))
    with started(running(job)) as process:
        wait_for(is_finished, process)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, _ = ended(process, job)
        assert time.monotonic() - began < 30
    assert "ended          at 3 rounds" in out
    assert is_finished()


def test_files_that_a_killed_mpirun_left_do_not_keep_a_later_one_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process_numbers = int(Path("/proc/sys/kernel/pid_max").read_text())
    for step in range(2000):
        left = tmp_path / f"ompi.{(os.getpid() + step) % process_numbers}"
        left.mkdir()
        (left / f"pmix.{os.uname().nodename}.tool").touch()
    run = finished(running(job_of("sgd gta", rounds=3)))
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.glob("mpi_ata-*"))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_keep_no_run_from_its_end(closed: str) -> None:
    run = finished(["sh", "-c", f'exec "$@" {closed}', "sh", *running(job_of(rounds=3))])
    assert (run.returncode, "Traceback" in run.stderr) == (0, False), run.stderr
    assert is_finished()


def test_without_shared_memory_that_can_be_written_a_run_is_finished_or_says_in_one_sentence_why_not() -> (
    None
):
    job = job_of(body="pass", rounds=3)
    own = job.with_name("own.py")
    own.write_text(own.read_text().replace("super().__init__(10", "super().__init__(1000"))
    run = finished([*in_namespace("mount -t tmpfs -o ro tmpfs /dev/shm"), *running(job)])
    failure = "Error: the ranks ended before they had found each other"  # with an MPI that cannot do without
    assert is_finished() if run.returncode == 0 else failure in run.stderr
    assert "Traceback" not in run.stderr


LOADING = """
import os, pathlib, time
pathlib.Path(f"loading-{os.getpid()}").touch()
time.sleep(2)
"""


@TIMED
def test_a_signal_while_ranks_start_lets_them_save_and_end() -> None:
    job = job_of(body="pass")
    own = job.with_name("own.py")
    own.write_text(LOADING + own.read_text())
    with started([find_mpirun(), "-n", "4", *running(job)]) as process:
        wait_for(lambda: len(list(Path().glob("loading-*"))) == 4, process)
        process.send_signal(signal.SIGUSR1)
        out, err = ended(process, job)
    assert process.returncode == 85, err
    assert "ended          early, by SIGUSR1\nrounds         1\n" in out


@TIMED
def test_progress_is_seen_while_ranks_are_at_work() -> None:
    with on_terminal(*running(job_of())[1:]) as terminal:
        terminal.read_until("rounds/s")
        assert terminal.process.poll() is None, terminal.shown
        assert "round " in terminal.shown
        terminal.process.send_signal(signal.SIGTERM)
        terminal.end()


SETUP = """
    def setup(self, worker, n):
        if worker == 1:
            Path("setting-up").touch()
            time.sleep(600)
"""


@TIMED
@pytest.mark.every_mpi
@pytest.mark.slow
def test_workers_that_are_never_set_up_are_abandoned_after_a_signal() -> None:
    job = job_of(body="pass", run="grace = 1.0")
    own = job.with_name("own.py")
    own.write_text(own.read_text() + SETUP)
    with started(running(job)) as process:
        wait_for(Path("setting-up").exists, process)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, err = ended(process, job)
        assert time.monotonic() - began < 30
    assert process.returncode not in (0, 85)
    assert "SIGTERM received during set-up; nothing was computed" in err


@TIMED
def test_nothing_is_left_in_shared_memory_by_ranks_that_are_killed_while_they_are_set_up() -> None:
    job = job_of(body="pass")
    own = job.with_name("own.py")
    own.write_text(own.read_text().replace("super().__init__(10", "super().__init__(1000") + SETUP)

    def shared() -> set[str]:
        return {path.name for path in Path("/dev/shm").glob("mpi_ata-*")}  # noqa: S108

    before = shared()
    with started(running(job)) as process:
        wait_for(Path("setting-up").exists, process)
        for pid in ranks_of(str(job)):
            os.kill(pid, signal.SIGKILL)
        ended(process, job)
    assert shared() <= before


AT_EXIT = """
    def setup(self, worker, n):
        import atexit
        if worker == 1:
            atexit.register(time.sleep, 3600)
"""


@pytest.mark.slow
def test_a_worker_that_hangs_at_its_exit_does_not_hang_the_run() -> None:
    job = job_of(body="pass", rounds=3)
    own = job.with_name("own.py")
    own.write_text(own.read_text() + AT_EXIT)
    with started(running(job)) as process:
        out, err = ended(process, job)
    assert process.returncode == 0, err
    assert "ended          at 3 rounds" in out
    assert "some ranks were still there 10 s after the run; they were ended" in err


IN_PLACE = """
from mpi_ata.updates import Plain
class InPlace(Plain):
    def __call__(self, x, g):
        x -= 0.1 * g
        return x
"""


def test_an_update_that_writes_into_the_point_is_rejected_wherever_tasks_run() -> None:
    Path("update.py").write_text(IN_PLACE)
    settings = ["--set", "method.update_file=update.py", "--set", "method.update_class=InPlace"]
    job = job_of(rounds=5)
    for where in (["--virtual"], []):
        done = finished([str(COMMAND), "run", str(job), *settings, *where])
        assert done.returncode == 1
        assert "ValueError: output array is read-only" in done.stderr
        assert "x -= 0.1 * g" in done.stderr


NO_DESCRIPTORS = """
import os, resource
if "{rank}" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_open_its_connections_ends_the_run_in_one_sentence(rank: int) -> None:
    job = job_of(body="pass")
    own = job.with_name("own.py")
    own.write_text(NO_DESCRIPTORS.format(rank=rank) + own.read_text())
    done = finished(running(job), seconds=30)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    who = "rank 1: " if rank else ""
    assert done.stderr.count(f"Error: {who}connections cannot be opened on ") == 1
    assert "Too many open files; raise the limit on open files, as with ulimit -n 4096" in done.stderr
    assert not ranks_of(str(job))


SHARING = """
import sys
import mpi_ata, numpy as np
what, rank = sys.argv[1], mpi_ata.launch.rank()

class Sharing(mpi_ata.Quadratic):
    def shared_arrays(self):
        self.shared = np.full(3, float(rank))
        yield self.shared
        if what == "raises" and rank == 1:
            raise OSError("the disk is gone")
        if what != "fewer" or rank == 0:
            yield np.zeros(2)

    def gradient(self, x, task):
        assert not self.shared.any(), "they are those of rank 0"
        return super().gradient(x, task)

job = dict(problem=Sharing(3), budget=2, update=mpi_ata.Plain(0.1), rounds=2)
if len(sys.argv) > 2:
    results = mpi_ata.run_jobs([job, job], progress=False)
    for result in results or ():
        print(result.summary["error"] or result.summary["rounds"])
elif result := mpi_ata.minimize(**job, progress=False):
    print(result.summary["rounds"])
"""


@pytest.mark.parametrize(
    ("what", "code", "found"),
    [
        ("fine", 0, "2\n"),
        ("raises", 2, "OSError: the disk is gone"),
        (
            "fewer",
            2,
            "not those of rank 0: the next one has 0 bytes here and 16 there; build the same on all",
        ),
    ],
)
def test_ranks_share_arrays_or_end_together(what: str, code: int, found: str) -> None:
    Path("share.py").write_text(SHARING)
    done = finished([find_mpirun(), "-n", "3", sys.executable, "share.py", what], seconds=60)
    assert done.returncode == code, done.stderr
    assert found in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("fine", ["2", "2"]),
        ("raises", ["OSError: the disk is gone"] * 2),
        ("fewer", ["not those of rank 0: they have 24 bytes here and 40 there; build the same on all"] * 2),
    ],
)
def test_jobs_that_share_ranks_have_the_arrays_of_the_manager_or_fail_alone(
    what: str, found: list[str]
) -> None:
    Path("share.py").write_text(SHARING)
    done = finished([find_mpirun(), "-n", "3", sys.executable, "share.py", what, "jobs"], seconds=60)
    for line, text in zip(done.stdout.splitlines(), found, strict=True):
        assert text in line
