"""The runs of an experiment: on all cores, told while they run, ended by anybody, gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpi_ata.cli import main
from mpi_ata.driver.recorder import load
from mpi_ata.errors import RunError
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import TABLE1, Plan, Request
from mpi_ata.paper.progress import Board, Standing
from mpi_ata.paper.runs import Note, execute_plan, on_cores
from mpi_ata.runfile.store import RunFile
from tests.paper.called import called

ROOT = Path(__file__).parent.parent.parent
MPI_ATA = Path(sys.executable).with_name("mpi-ata")
MANY = 1_000_000_000  # rounds
PLANS = [Plan("sqrt", 3, "gta", seed, 10, Path("x.toml")) for seed in (1, 2, 3)]


def slow_for_small_seeds(plan: Plan, note: Note) -> int:
    time.sleep(0.3 / plan.seed)
    note(plan.seed)
    return plan.seed


def failing_for_seed_two(plan: Plan, note: Note) -> int:
    if plan.seed == 2:
        raise RunError("seed 2 failed")
    while True:
        time.sleep(0.01)
        note(1)


def interrupted_for_seed_two(plan: Plan, note: Note) -> None:
    if plan.seed == 2:
        raise KeyboardInterrupt


def hanging_for_seed_two(plan: Plan, note: Note) -> None:
    while plan.seed == 2:
        time.sleep(1)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_plans_however_long_each_takes(processes: int) -> None:
    seen: list[Standing] = []
    assert on_cores(slow_for_small_seeds, PLANS, processes, seen.append) == [1, 2, 3]
    assert seen
    assert all(len(standing.rounds) == len(standing.finished) == 3 for standing in seen)
    assert all(done == 0 or done == k + 1 for standing in seen for k, done in enumerate(standing.rounds))


def test_a_run_that_fails_ends_the_others_and_is_told() -> None:
    with pytest.raises(RunError, match="seed 2 failed"):
        on_cores(failing_for_seed_two, PLANS, 2)
    with pytest.raises(RunError, match="seed 2 failed"):
        on_cores(failing_for_seed_two, PLANS[1:], 1)


@pytest.mark.parametrize(("processes", "done"), [(1, 1), (2, 2)])
def test_runs_of_which_one_was_interrupted_are_not_taken_for_whole(processes: int, done: int) -> None:
    with pytest.raises(RunError, match=f"interrupted after {done} of 3 runs"):
        on_cores(interrupted_for_seed_two, PLANS, processes)


def test_processes_make_the_same_runs_as_one_does() -> None:
    plans = TABLE1.asked(Request(workers=(4,), allocators=("ofta",), rounds=30)).plans()
    one, two = (on_cores(execute_plan, plans, processes) for processes in (1, 2))
    assert [(r.plan, r.figures["clock"], r.figures["loss"]) for r in one] == [
        (r.plan, r.figures["clock"], r.figures["loss"]) for r in two
    ]


def test_progress_says_how_many_runs_are_done_and_how_long_the_rest_takes() -> None:
    standing = Standing([100, 100, 40, 0], [True, True, False, False], most=900, made=240, elapsed=2.0)
    assert (
        standing.text() == "[############........] 2 of 4 runs, 240 rounds, 120 rounds/s, about 1.33 s to go"
    )
    early = Standing([0, 5], [False, False], most=10, made=5, elapsed=1.0)
    assert early.text() == "[#####...............] 0 of 2 runs, 5 rounds, 5 rounds/s, at most 3 s to go"
    assert Standing([0, 0], [False, False], 10, 0, 1.0).text() == f"[{'.' * 20}] 0 of 2 runs, 0 rounds"


def test_rounds_that_were_kept_before_do_not_count_for_the_speed() -> None:
    board = Board(3, most=1000)
    board.note(0, 1000)
    board.note(1, 500)
    board.note(1, 510)
    standing = board.standing([True, False, False])
    assert (standing.rounds, standing.made) == ([1000, 510, 0], 10)
    board.stop()
    with pytest.raises(KeyboardInterrupt):
        board.note(2, 1)


@contextmanager
def running(folder: Path | None, processes: int) -> "Iterator[subprocess.Popen[str]]":
    """The command with two runs that would last for ever, once all of its processes are at work."""
    command = [str(MPI_ATA), "paper", "table1", "--workers", "7", "--allocators", "uta"]
    command += ["--cores", str(processes), *(["--out", str(folder)] if folder else [])]
    with started([*command, "--rounds", str(MANY), "--budget", "500"]) as process:
        while process.poll() is None and (
            len(children(process.pid)) < 3 * (processes - 1)  # one of them keeps track of what is shared
            or (folder and len(list(folder.glob("*.h5"))) < processes)
        ):
            time.sleep(0.05)
        time.sleep(0.5)
        yield process


@contextmanager
def started(command: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """A command in a process group of its own."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C is ignored in what a shell script starts in the background, such as these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rounds_kept(folder: Path) -> list[int]:
    """How far the runs in a folder are."""
    return [int(load(RunFile(file))[0].method["k"]) for file in folder.glob("*.h5")]


@pytest.mark.parametrize(
    ("wish", "kept", "processes"),
    [("SIGINT", False, 2), ("SIGINT", True, 2), ("SIGINT", True, 1), ("SIGTERM", True, 2)],
)
def test_who_is_asked_to_end_saves_what_is_kept_and_says_so_in_one_sentence(
    tmp_path: Path, wish: str, kept: bool, processes: int
) -> None:
    with running(tmp_path if kept else None, processes) as process:
        os.kill(process.pid, signal.Signals[wish])
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (85 if kept else 1, "")
    goes_on = "; the same command goes on with them" if kept else ""
    assert err == f"Error: interrupted after 0 of 2 runs{goes_on}\n"
    assert all(0 < rounds < MANY for rounds in rounds_kept(tmp_path))
    assert len(rounds_kept(tmp_path)) == kept * processes


@pytest.mark.parametrize("processes", [2, 3])  # one of them keeps track of what is shared
def test_ctrl_c_is_told_in_one_sentence_even_while_processes_start(processes: int) -> None:
    command = [str(MPI_ATA), "paper", "table1", "--workers", "7", "--allocators", "uta", "--cores", "2"]
    with started([*command, "--rounds", str(MANY)]) as process:
        while process.poll() is None and len(children(process.pid)) < processes:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "Error: interrupted after 0 of 2 runs\n")


def test_what_was_only_kept_for_a_while_is_not_said_to_go_on() -> None:
    command = [str(MPI_ATA), "paper", "prior", "--workers", "7", "--allocators", "ata", "--prior", "0"]
    with started([*command, "--cores", "2", "--rounds", str(MANY), "--budget", "500"]) as process:
        while process.poll() is None and len(children(process.pid)) < 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "Error: interrupted after 0 of 2 runs\n")


def test_a_command_that_is_killed_takes_its_processes_with_it_and_they_save_first(tmp_path: Path) -> None:
    with running(tmp_path, 2) as process:
        orphans = children(process.pid)
        process.kill()
        assert ended(orphans)
    assert all(rounds > 0 for rounds in rounds_kept(tmp_path))
    assert len(rounds_kept(tmp_path)) == 2


def test_processes_that_have_nothing_to_do_or_hang_do_not_outlive_a_kill_either() -> None:
    here = "from tests.paper.test_runs import *; on_cores(hanging_for_seed_two, PLANS, 2)"
    with started([sys.executable, "-c", here]) as process:
        while process.poll() is None and len(children(process.pid)) < 3:
            time.sleep(0.05)
        time.sleep(2)  # until one idles
        orphans = children(process.pid)
        process.kill()
        assert ended(orphans)


def ended(pids: Sequence[int], patience: float = 30) -> bool:
    """Whether these processes end in time; none is left."""
    until = time.monotonic() + patience
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    left = list(filter(alive, pids))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_runs_in_a_folder_are_shown_taken_as_they_are_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)  # they take longer than the runs
    arguments = ["--workers", "4", "--allocators", "uta", "--json"]
    command = ["table1", *arguments, "--out", str(tmp_path), "--rounds"]
    file = tmp_path / "sqrt-n4-B23-uta-seed1.h5"
    first, written = called(*command, "30"), file.stat().st_mtime_ns
    again, read = called(*command, "30"), file.stat().st_mtime_ns
    longer = called(*command, "50")
    assert [done.exit_code for done in (first, again, longer)] == [0, 0, 0]
    assert (first.stdout, written) == (again.stdout, read)
    afresh = called("table1", *arguments, "--rounds", "50")
    assert longer.stdout == afresh.stdout
    shown = json.loads(CliRunner().invoke(main, ["show", str(file), "--json"]).stdout.splitlines()[-1])
    assert (shown["rounds"], shown["finished"]) == (50, True)
    shorter = called(*command, "40")
    assert shorter.exit_code == 2
    assert "has 50 rounds, but at most 40 were asked for; choose another folder" in shorter.stderr
