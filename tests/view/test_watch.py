"""mpi-ata watch shows a run from its file, until it ends."""

import io
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from mpi_ata import Plain, Quadratic, Sqrt, Trace, minimize
from mpi_ata.driver.output import OutputOptions
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.snapshot import snapshot_of_record
from mpi_ata.view.snapshot_text import snapshot_text
from mpi_ata.view.watch import watch
from tests.cli.commands import ENDLESS, JOB, MPI_ATA, call
from tests.driver.driven import driven
from tests.faults.scene import written


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_finished_run_is_printed_and_watching_ends() -> None:
    minimize(Quadratic(5), 4, update=Plain(0.4), rounds=20, times=Sqrt(3), out="run.h5")
    for options in ([], ["--once"]):
        done = call("watch", "run.h5", *options)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert lines[:2] == ["Quadratic, SGD, ATAAuto on 3 workers", "finished at 20 rounds"]
        assert lines[3].startswith("round        20 of 20, 100.0 %, ")
        assert "\x1b" not in done.stdout
        assert lines[-1].endswith(" ended: 20 rounds")


def unfinished() -> Path:
    """The file of a run that was stopped after its first round."""

    def stop(trace: Trace) -> None:
        signal.raise_signal(signal.SIGTERM)

    driven(written(Path("job.toml")), look=stop, output=OutputOptions(Path("early.h5")))
    return Path("early.h5")


def test_a_run_that_was_stopped_is_printed_without_a_forecast() -> None:
    printed = call("watch", str(unfinished()), "--once").stdout
    assert "\nstopped early by SIGTERM; resume it with --resume\n" in printed
    assert "\nround        1 of 40, 2.5 %, " in printed
    assert "to go" not in printed


def test_watching_a_run_that_was_stopped_ends_at_once() -> None:
    done = call("watch", str(unfinished()))
    assert done.exit_code == 0
    assert "\nstopped early by SIGTERM; resume it with --resume\n" in done.stdout


def test_watching_a_run_that_was_killed_ends_and_says_so() -> None:
    file = RunFile(unfinished())
    record, _ = load_record(file)
    record.event(0.0, "resumed", "at round 1 on 5 workers")
    file.save(*to_tree(record))
    long_ago = time.time() - 700  # runs are saved every five minutes, at least
    os.utime(file.path, (long_ago, long_ago))
    done = call("watch", str(file.path))
    assert done.exit_code == 0
    assert "\nnot saved since " in done.stdout
    assert "to go" not in done.stdout


def test_a_run_that_goes_on_is_printed_as_it_was_saved() -> None:
    record, _ = load_record(RunFile(unfinished()))
    record.event(0.0, "resumed", "at round 1 on 5 workers")
    printed = snapshot_text(snapshot_of_record(record, time.time()))
    assert "\nas saved at " in printed
    assert "to go, until " in printed


def test_a_run_that_was_not_saved_since_its_start_is_said_to_be_one() -> None:
    Path("job.toml").write_text(JOB)
    rarely = ["--set", "run.checkpoint_seconds=1000"]
    command = [str(MPI_ATA), "run", "job.toml", "--virtual", "--out", "run.h5", *ENDLESS, *rarely]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        try:
            while not Path("run.h5").exists():
                assert run.poll() is None
                time.sleep(0.05)
            done = call("watch", "run.h5", "--once")
        finally:
            run.kill()
    state = done.stdout.splitlines()[1]
    assert re.fullmatch(r"saved at .*, before the first round; progress is shown once .* again", state)


def test_a_run_is_watched_while_it_runs_until_it_is_finished() -> None:
    Path("job.toml").write_text(JOB)
    command = [str(MPI_ATA), "run", "job.toml", "--virtual", "--out", "run.h5", *ENDLESS]
    with subprocess.Popen(
        [*command, "--set", "stop.elapsed=3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        while not Path("run.h5").exists():
            time.sleep(0.05)
        done = call("watch", "run.h5")
        run.wait(60)
    assert done.exit_code == 0
    assert "finished at elapsed 3" in done.stdout


def test_workers_that_do_nothing_any_more_are_listed() -> None:
    driven(written(Path("job.toml"), "sgd ofta", workers=40), output=OutputOptions(Path("run.h5")))
    printed = call("watch", "run.h5", "--once").stdout
    idle = re.search(r"\nidle +(\d+) of 40: .*, since round (\d+)\n", printed)
    assert idle is not None
    assert int(idle[1]) >= 33, "seven tasks per round keep seven workers busy at most"
    assert 30 <= int(idle[2]) <= 36, "the last tenth of 40 rounds"


class SmallTerminal(io.StringIO):
    """A terminal with room for one line."""

    def isatty(self) -> bool:
        return True


def test_a_run_that_was_stopped_is_followed_if_asked_and_a_small_terminal_shows_one_line_while_the_run_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "5")
    minimize(Quadratic(5), 4, update=Plain(0.4), rounds=20, times=Sqrt(3), out="done.h5")
    shutil.copy(unfinished(), "run.h5")
    terminal = SmallTerminal()
    later = threading.Timer(0.3, lambda: Path("done.h5").replace("run.h5"))
    later.start()
    watch(Path("run.h5"), terminal, follow=True, look=0.05)
    later.join()
    assert terminal.getvalue().startswith("\rround 1 of 40, ")
    assert "finished at 20 rounds" in terminal.getvalue()


def test_codes_for_terminals_in_names_are_not_printed() -> None:
    record, _ = load_record(RunFile(unfinished()))
    record.event(0.0, "started", "on \x1b[2J hosts")
    assert "\x1b" not in snapshot_text(snapshot_of_record(record, 0.0))


def test_a_file_that_is_no_run_is_named() -> None:
    assert "nothing.h5: cannot be read: No such file or directory" in call("watch", "nothing.h5").output
