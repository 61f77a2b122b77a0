"""What the process that started the ranks learns from the manager."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.errors import RunError
from mpi_ata.launch.exit_report import (
    ExitReport,
    LostWorker,
    leaving,
    note_exit,
    note_lost_worker,
    note_signal,
    note_start,
    read_report,
    report_file,
    report_so_far,
)
from mpi_ata.launch.mpirun import exit_code


def test_the_manager_leaves_its_exit_code_and_whom_it_lost() -> None:
    with report_file() as path:
        assert read_report(path) == ExitReport()
        note_start()
        note_lost_worker("node7", "worker 2 has died")
        note_signal("SIGINT")
        note_exit(85)
        note_exit(143)  # by a signal while it was leaving
        lost = LostWorker("node7", "worker 2 has died")
        assert read_report(path) == ExitReport(os.getpid(), 85, (lost,), ("SIGINT",))
        assert report_so_far() == read_report(path)
    assert not path.exists()
    note_exit(0)  # nobody asks: nothing is written


def test_a_manager_is_leaving_only_while_it_waits_for_others() -> None:
    with report_file() as path:
        note_exit(0)
        assert not read_report(path).leaving, "its own code may take long at its exit"
        with leaving():
            assert read_report(path).leaving
        assert not read_report(path).leaving


@pytest.mark.parametrize("mpirun", [0, 3, 137])
def test_the_exit_code_of_a_run_is_its_managers(mpirun: int) -> None:
    assert exit_code(mpirun, ExitReport(7, 0, (LostWorker("node7", "worker 1 has died"),))) == 0
    assert exit_code(mpirun, ExitReport(7, 85, ())) == 85


def test_a_manager_that_ended_with_0_before_the_ranks_met_does_not_hide_the_error_of_another_rank() -> None:
    assert exit_code(0, ExitReport(code=0)) == 0
    assert exit_code(1, ExitReport(code=2)) == 2
    with pytest.raises(RunError, match=r"before they had found each other \(mpirun exited with 2\)"):
        exit_code(2, ExitReport(code=0))


def test_a_killed_mpirun_is_reported_as_a_shell_does() -> None:
    assert exit_code(-15, ExitReport(7, None, ())) == 143


def test_ctrl_c_before_the_ranks_have_met_is_no_failure_to_meet() -> None:
    for mpirun in (1, -signal.SIGUSR1):  # which it does not know yet
        assert exit_code(mpirun, ExitReport(signals=("SIGINT", "SIGINT"))) == 130


TWO_RUNS = """
from mpi_ata.launch.signals import StopRequest
for number in range(2):
    with StopRequest(1.0, on_ranks=True) as request:
        print(number, bool(request), request.word)
"""


def test_ctrl_c_that_was_passed_on_before_a_rank_existed_reaches_its_first_run_alone() -> None:
    with report_file():
        note_signal("SIGINT")
        done = subprocess.run([sys.executable, "-c", TWO_RUNS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0 True Ctrl-C"
    assert done.stdout.splitlines()[1].startswith("1 False")


def test_ranks_that_end_without_a_word_are_an_error_even_if_mpirun_exits_with_0() -> None:
    with pytest.raises(RunError, match=r"worker 1 has died, and this MPI has ended all ranks; .* resumed"):
        exit_code(0, ExitReport(7, None, (LostWorker("node7", "worker 1 has died"),)))
    with pytest.raises(RunError, match=r"a rank has died, and all have ended; what it saved"):
        exit_code(0, ExitReport(7, None, ()))


def test_an_unreadable_place_for_the_report_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MPI_ATA_EXIT_REPORT", str(tmp_path / "missing" / "report"))
    note_exit(0)
    assert read_report(tmp_path / "missing" / "report") == ExitReport()
