"""Ctrl-C while real ranks are at work: acknowledged at once, and obeyed at once when it is pressed again."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from mpi_ata.launch import find_mpirun
from tests.mpi.starting import started
from tests.mpi.test_interrupted_on_ranks import TIMED, ended, job_of, running, saved_rounds, wait_for

HANGING = """
if task.round == 9 and task.worker == 1:
    Path("hanging").touch()
    time.sleep(600)
"""
AGAIN = "Note: Ctrl-C again: stopping now\n"
STOPPING = "Note: Ctrl-C: stopping after this round; press again to stop now\n"


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    """Wait until a line with this text is written to stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"{text} was never written")


@TIMED
def test_the_first_ctrl_c_ends_the_round_and_is_called_by_its_name() -> None:
    job = job_of()
    with started(running(job)) as process:
        wait_for(lambda: saved_rounds() >= 5, process)
        process.send_signal(signal.SIGINT)
        out, err = ended(process, job)
    assert process.returncode == 85, err
    assert err.count(STOPPING) == 1
    assert "SIGUSR1" not in out + err
    assert "ended          early, by Ctrl-C\n" in out


@TIMED
def test_the_second_ctrl_c_stops_in_mid_round_with_what_was_saved() -> None:
    job = job_of("sgd uta", run="checkpoint_rounds = 3\ncheckpoint_seconds = 1000.0", body=HANGING)
    with started(running(job)) as process:
        wait_for(Path("hanging").exists, process)
        process.send_signal(signal.SIGINT)
        read_until(process, STOPPING.strip())
        time.sleep(0.5)
        assert process.poll() is None, "the round has not ended"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, err = ended(process, job)
        assert time.monotonic() - began < 20  # well below the grace period and the hanging task
    assert process.returncode in (85, 9), err  # MPICH's mpirun may report instead that it killed a rank
    assert "ended          early, by Ctrl-C" in out
    assert AGAIN in err
    assert "saved          run.h5, up to round 6; resume it with --resume\n" in out
    assert saved_rounds() == 6


@TIMED
def test_a_set_up_that_takes_long_is_explained_and_two_ctrl_c_end_it_with_one_sentence() -> None:
    job = job_of(body="pass")
    (code,) = Path.cwd().glob("*.py")
    hangs = "if 'MPI_ATA_EXIT_REPORT' in os.environ:\n    open('begun', 'w').close()\n    time.sleep(600)\n"
    code.write_text(f"import os, time\n{hangs}time.sleep(3.5)\n{code.read_text()}")
    with started(running(job)) as process:
        read_until(process, "Note: set-up takes long: once here, to find mistakes, then on all ranks")
        wait_for(Path("begun").exists, process)
        process.send_signal(signal.SIGINT)
        read_until(process, STOPPING.strip())
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = ended(process, job)
        assert time.monotonic() - began < 10  # of the 600 seconds
    assert process.returncode == 130
    assert AGAIN in err
    assert err.endswith("Error: stopped by Ctrl-C\n"), "MPI has nothing to add"


@pytest.mark.slow
@TIMED
def test_under_mpirun_progress_is_written_line_by_line() -> None:
    job = job_of(body="time.sleep(0.02)")  # what waits takes no time from other tests
    with started([find_mpirun(), "-n", "4", *running(job)]) as process:
        read_until(process, "round ")  # after 10 seconds
        process.send_signal(signal.SIGUSR1)
        out, err = ended(process, job)
    assert "Note: SIGUSR1: stopping after this round\n" in err
    assert "early, by SIGUSR1" in out
    assert "\x1b" not in err
