"""The runs of an experiment: on all cores, with progress, interrupted and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpi_ata.cli import main
from mpi_ata.errors import RunError
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import TABLE1, PaperRequest, Trial
from mpi_ata.paper.trials import Board, ReportRounds, execute_trial, on_cores, progress_text
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.marks import slow
from tests.paper.called import called

ROOT = Path(__file__).parent.parent.parent
MPI_ATA = Path(sys.executable).with_name("mpi-ata")
MANY = 1_000_000_000  # rounds
ENDLESS = ["--workers", "7", "--rounds", str(MANY)]
TABLE = [str(MPI_ATA), "paper", "table1", *ENDLESS, "--allocators", "uta"]
PRIOR = [str(MPI_ATA), "paper", "prior", *ENDLESS, "--allocators", "ata", "--prior", "0"]
PLANS = [Trial("sqrt", 3, "gta", seed, 10, Path("x.toml")) for seed in (1, 2, 3)]


def slow_for_small_seeds(trial: Trial, report: ReportRounds) -> int:
    time.sleep(0.3 / trial.seed)
    report(trial.seed)
    return trial.seed


def failing_for_seed_two(trial: Trial, report: ReportRounds) -> int:
    if trial.seed == 2:
        raise RunError("seed 2 failed")
    while True:
        time.sleep(0.01)
        report(1)


def interrupted_for_seed_two(trial: Trial, report: ReportRounds) -> None:
    if trial.seed == 2:
        raise KeyboardInterrupt


def hanging_for_seed_two(trial: Trial, report: ReportRounds) -> None:
    while trial.seed == 2:
        time.sleep(1)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_plans_however_long_each_takes(processes: int) -> None:
    seen: list[str] = []
    assert on_cores(slow_for_small_seeds, PLANS, processes, seen.append) == [1, 2, 3]
    assert seen
    assert all(re.search(r"\] [0-3] of 3 runs, [0-6] rounds", text) for text in seen)


@pytest.mark.parametrize(("processes", "trials"), [(1, PLANS[1:]), (2, PLANS)])
def test_a_run_that_fails_ends_the_others_and_is_reported(processes: int, trials: list[Trial]) -> None:
    with pytest.raises(RunError, match="seed 2 failed"):
        on_cores(failing_for_seed_two, trials, processes)


@pytest.mark.parametrize(("processes", "done"), [(1, 1), (2, 2)])
def test_an_interrupted_run_does_not_count_as_completed(processes: int, done: int) -> None:
    with pytest.raises(RunError, match=f"interrupted after {done} of 3 runs"):
        on_cores(interrupted_for_seed_two, PLANS, processes)


def test_several_processes_do_the_same_runs_as_one() -> None:
    trials = TABLE1.with_request(PaperRequest(workers=(4,), allocators=("ofta",), rounds=30)).trials()
    one, two = (on_cores(execute_trial, trials, processes) for processes in (1, 2))
    assert [r.trial for r in one] == [r.trial for r in two] == trials
    assert [r.history["gap"].tolist() for r in one] == [r.history["gap"].tolist() for r in two]


def test_progress_shows_how_many_runs_are_done_and_how_long_the_rest_takes() -> None:
    some, none = [True, True, False, False], [False, False]
    assert (
        progress_text([100, 100, 40, 0], some, max_rounds=900, new_rounds=240, elapsed=2.0)
        == "[############........] 2 of 4 runs, 240 rounds, 120 rounds/s, about 1.33 s to go"
    )
    early = progress_text([0, 5], none, max_rounds=10, new_rounds=5, elapsed=1.0)
    assert early == "[#####...............] 0 of 2 runs, 5 rounds, 5 rounds/s, at most 3 s to go"
    assert progress_text([0, 0], none, 10, 0, 1.0) == f"[{'.' * 20}] 0 of 2 runs, 0 rounds"


def test_rounds_saved_earlier_do_not_count_for_the_rate_and_a_stopped_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board(3, max_rounds=1000)
    for number, rounds in ((0, 1000), (1, 500), (1, 510)):
        board.report(number, rounds)
    seen = list[Any]()
    monkeypatch.setattr("mpi_ata.paper.trials.progress_text", lambda *known: seen.append(known))
    board.progress([True, False, False])
    assert seen[0][:4] == ([1000, 510, 0], [True, False, False], 1000, 10)
    board.stop()
    with pytest.raises(KeyboardInterrupt):
        board.report(2, 1)


@contextmanager
def running(folder: Path | None, processes: int) -> "Iterator[subprocess.Popen[str]]":
    """Start the command with two endless runs, and wait until all of its processes are at work."""
    out = ["--out", str(folder)] if folder else []
    command = [*TABLE, "--cores", str(processes), *out, "--budget", "500"]
    with started(command, 3 * (processes - 1)) as process:
        while process.poll() is None and folder and len(list(folder.glob("*.h5"))) < processes:
            time.sleep(0.05)
        time.sleep(0.5)
        yield process


@contextmanager
def started(command: Sequence[str], count: int = 3) -> "Iterator[subprocess.Popen[str]]":
    """Start a command in its own process group, and wait until it has so many children.

    One of them is the resource tracker.
    """
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell script that runs these tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        process_group=0,
    ) as process:
        while process.poll() is None and len(children(process.pid)) < count:
            time.sleep(0.001)
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def acknowledged(name: str) -> str:
    """Return the line that says at once that a signal has come."""
    again = {"SIGINT": "Ctrl-C: stopping after this round; press again to stop now"}
    return again.get(name, f"{name}: stopping after this round") + "\n"


def rounds_saved(folder: Path) -> list[int]:
    """Return how many rounds the runs in a folder have done."""
    return [int(load_record(RunFile(file))[0].method["k"]) for file in folder.glob("*.h5")]


@pytest.mark.parametrize(
    ("name", "saved", "processes"),
    [("SIGINT", True, 2), *slow(("SIGINT", False, 2), ("SIGINT", True, 1), ("SIGTERM", True, 2))],
)
def test_a_signal_saves_the_runs_and_ends_with_one_sentence(
    tmp_path: Path, name: str, saved: bool, processes: int
) -> None:
    with running(tmp_path if saved else None, processes) as process:
        os.kill(process.pid, signal.Signals[name])
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (85 if saved else 1, "")
    hint = "; run the same command again to resume" if saved else ""
    assert err == acknowledged(name) + f"Error: interrupted after 0 of 2 runs{hint}\n"
    assert all(0 < rounds < MANY for rounds in rounds_saved(tmp_path))
    assert len(rounds_saved(tmp_path)) == saved * processes


@pytest.mark.parametrize(("command", "count"), [(TABLE, 2), (TABLE, 3), (PRIOR, 3)], ids=str)
def test_ctrl_c_ends_with_one_sentence_even_while_processes_start(command: list[str], count: int) -> None:
    """Runs of `prior` are saved for the moment only, so nothing can be resumed there either."""
    with started([*command, "--cores", "2"], count) as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, acknowledged("SIGINT") + "Error: interrupted after 0 of 2 runs\n")


def test_the_processes_of_a_killed_command_save_and_end(tmp_path: Path) -> None:
    with running(tmp_path, 2) as process:
        orphans = children(process.pid)
        process.kill()
        assert ended(orphans)
    assert all(rounds > 0 for rounds in rounds_saved(tmp_path))
    assert len(rounds_saved(tmp_path)) == 2


@pytest.mark.slow
def test_idle_and_hanging_processes_of_a_killed_command_end_too() -> None:
    here = "from tests.paper.test_runs import *; on_cores(hanging_for_seed_two, PLANS, 2)"
    with started([sys.executable, "-c", here]) as process:
        time.sleep(2)  # until one idles
        orphans = children(process.pid)
        process.kill()
        assert ended(orphans)


def ended(pids: Sequence[int], timeout: float = 30) -> bool:
    """Return whether these processes end in time, and kill those that do not."""
    until = time.monotonic() + timeout
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    left = list(filter(alive, pids))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_saved_runs_can_be_shown_reused_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)  # they take longer than the runs
    arguments = ["--workers", "4", "--allocators", "uta", "--json"]
    command = ["table1", *arguments, "--out", str(tmp_path), "--rounds"]
    file = tmp_path / "sqrt-n4-B23-uta-seed1.h5"
    first, written = called(*command, "30"), file.stat().st_mtime_ns
    again, read = called(*command, "30"), file.stat().st_mtime_ns
    assert (again.exit_code, again.stdout, read) == (0, first.stdout, written)
    longer, fresh = called(*command, "50"), called("table1", *arguments, "--rounds", "50")
    assert (longer.exit_code, longer.stdout) == (0, fresh.stdout)
    shown = json.loads(CliRunner().invoke(main, ["show", str(file), "--json"]).stdout.splitlines()[-1])
    assert (shown["rounds"], shown["finished"]) == (50, True)
    shorter = called(*command, "40")
    assert shorter.exit_code == 2
    assert "has 50 rounds, but at most 40 were asked for; choose another folder" in shorter.stderr
