"""When a run is saved, what a save costs, and what its file may weigh."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpi_ata import Trace
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.driver.evaluation import Evaluation
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import RunDescription
from mpi_ata.runfile.checkpoints import LONGEST, Checkpoints, fresh_path
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile, read
from tests.driver.driven import driven, logged
from tests.faults.scene import written
from tests.marks import slow
from tests.mpi.starting import environment


def record(k: int = 0, trace: Trace | None = None) -> Record:
    """What would be saved of a run on one worker."""
    trace, speeds = trace or Trace(), TaskTimeStats(1)
    return Record(
        run="0123456789",
        job=RunDescription("[problem]"),
        identities=(WorkerIdentity("here", 1, "wood"),),
        workers=speeds.state() | {"unfinished": np.zeros(1)},
        method={"k": np.array(k), "x": np.zeros(10)},
        totals=trace.totals(),
        trace=trace.history(),
        metrics=trace.evaluations(),
        summary=trace.summary() | {"workers": 1},
    )


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now, self.cost = 1000.0, 0.0

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("mpi_ata.runfile.checkpoints.time.monotonic", clock)
    return clock


@pytest.fixture
def notes() -> Iterator[list[str]]:
    with logged() as texts:
        yield texts


def checkpoints(rounds: int | None = None, seconds: float | None = None) -> Checkpoints:
    return Checkpoints(RunFile(Path("run.h5")), rounds, seconds)


def test_a_run_is_saved_every_so_many_rounds_or_seconds(clock: Clock, notes: list[str]) -> None:
    made = checkpoints(rounds=3)
    made.save_first(record(0))
    due = []
    for k in range(1, 11):
        if made.due(k):
            due.append(k)
            made.save(record(k))
    assert due == [3, 6, 9]
    clock.now += LONGEST  # rounds that never end are no reason for saving rarely
    assert made.due(10)
    made = Checkpoints(RunFile(Path("2.h5")), seconds=7.0)
    made.save_first(record())
    clock.now += 6.9
    assert not made.due(1000)
    clock.now += 0.1
    assert made.due(1000)


@pytest.mark.parametrize(("cost", "interval"), [(0.001, 1.0), (0.02, 2.0), (0.5, 50.0), (60.0, LONGEST)])
def test_unless_told_saving_takes_a_hundredth_of_the_time_and_five_minutes_are_the_longest(
    clock: Clock, notes: list[str], cost: float, interval: float
) -> None:
    made = checkpoints()
    clock.cost = cost
    made.save_first(record())
    clock.cost = 0.0
    clock.now += 0.99 * interval
    assert not made.due(1)
    clock.now += 0.02 * interval
    assert made.due(1)


LOADED = """
import sys
from types import SimpleNamespace
from mpi_ata.runfile import checkpoints
from tests.runfile.test_checkpoints import checkpoints as made, record

loaded = ["h5py" in sys.modules]  # before a run, and whenever the cost of its first save is measured

def look():
    loaded.append("h5py" in sys.modules)
    return 0.0

checkpoints.time = SimpleNamespace(monotonic=look)
made().save_first(record())
print(*loaded)
"""


def test_loading_hdf5_is_no_part_of_what_a_save_costs() -> None:
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


def test_a_failure_is_told_once_each_and_the_next_try_waits_ever_longer(
    clock: Clock, notes: list[str], tmp_path: Path
) -> None:
    made = checkpoints(rounds=1)
    made.save_first(record())
    (tmp_path / "run.h5.previous").mkdir()  # nothing can take its place
    tries = 0
    for k in range(1, 1001):
        clock.now += 0.5
        if made.due(k):
            tries += 1
            made.save(record(k))
    assert len(notes) == tries == 9  # with 1, 2, 4, ... 128 s in between, of 500
    assert notes[0].startswith("run.h5 could not be saved: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.h5", "run.h5.previous"]
    assert read(Path("run.h5"))[1]["method"]["k"] == 0
    (tmp_path / "run.h5.previous").rmdir()
    clock.now += LONGEST
    made.save(record(2000))
    assert made.due(2001)
    assert len(notes) == tries


def test_a_last_save_that_fails_is_done_elsewhere_and_its_place_is_told(
    notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    made = Checkpoints(RunFile(tmp_path / "gone" / "run.h5"))
    with pytest.raises(RunError, match=r"No such file or directory; the run was saved to .*/run-01234567.h5"):
        made.save_last(record(9))
    here = tmp_path / "run-01234567.h5"
    assert read(here)[1]["method"]["k"] == 9
    with pytest.raises(RunError, match=str(home)):  # since there is one here already
        made.save_last(record(10))
    assert read(here)[1]["method"]["k"] == 9
    assert read(home / here.name)[1]["method"]["k"] == 10


def test_a_file_that_another_run_has_taken_over_ends_this_one(notes: list[str], tmp_path: Path) -> None:
    made = checkpoints()
    made.save_first(record())
    other = RunFile(Path("run.h5"))
    other.load()
    other.save({"run": "other"}, {})
    with pytest.raises(RunError, match=r"run.h5 was saved by another process in the meantime"):
        made.save(record(5))
    with pytest.raises(RunError, match=r"from there; the run was saved to .*run-01234567.h5"):
        made.save_last(record(6))
    assert read(Path("run.h5"))[0] == {"run": "other"}


def after(rounds: int) -> Trace:
    """The trace of so many rounds, each evaluated."""
    trace = Trace()
    for k in range(rounds):
        trace.round = trace.used = k
        trace.record(Evaluation(1.0 / (k + 1), 0.1, {"accuracy": 0.5}))
    return trace


def bytes_written() -> int:
    """How many bytes this process has handed to write() so far."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def test_the_millionth_round_costs_no_more_than_the_four_thousandth(notes: list[str]) -> None:
    made, cost = checkpoints(), dict[int, int]()
    for rounds in (1_000, 4_096, 1_000_000):
        trace = after(rounds)
        assert len(trace.rows) <= 4096
        saved = record(rounds, trace)
        before = bytes_written()
        made.save(saved)
        cost[rounds] = bytes_written() - before
    size = Path("run.h5").stat().st_size
    assert size <= cost[1_000_000] < size + 1000  # a save writes the file, and nothing else
    assert cost[1_000_000] <= cost[4_096]  # when the trace is full for the first time
    # 14 columns and one figure of 8 bytes: what 4096 rows may cost more than 1000.
    assert cost[1_000_000] - cost[1_000] < 3100 * 15 * 8 + 1000
    assert notes == []


@pytest.mark.parametrize("method", ["sgd ata-empirical", *slow("sgd gta", "ringmaster")])
def test_the_file_of_a_hundred_thousand_workers_is_small(tmp_path: Path, method: str) -> None:
    # At most 32 columns of 8 bytes a worker: what is known of each, and of its order if it has one.
    # Beside that the sample of task times, 2 MB, and a trace that is not full yet.
    n = 100_000
    job = written(tmp_path / "job.toml", method, rounds=3, workers=n)
    driven(job, output=OutputOptions(tmp_path / "run.h5"))
    assert (tmp_path / "run.h5").stat().st_size < 256 * n + 2**21 + 100_000


def test_very_many_and_very_long_events_make_no_large_file() -> None:
    made = record()
    for number in range(3000):
        made.event(time.time(), "changed", f"{number} " + "x" * 100_000)
    assert len(made.events) == 1000
    assert made.events[-1].text.startswith("2999 xxx")
    assert max(len(event.text) for event in made.events) <= 1000


def test_a_fresh_name_is_nobody_elses_and_needs_a_folder(tmp_path: Path) -> None:
    names = {fresh_path(Path("jobs/some.toml")) for _ in range(100)}
    assert len(names) == 100
    assert all(str(name).startswith("runs/some-2") and name.suffix == ".h5" for name in names)
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").touch()
    with pytest.raises(UsageError, match=r"runs: File exists; use --out RUN.h5"):
        fresh_path(Path("some.toml"))
