"""However a simulated run was interrupted, it goes on as if nothing had been; also with other workers."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mpi_ata import Trace
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError, UsageError
from tests.driver.driven import driven, logged
from tests.faults.scene import METHODS, differing, own_problem, record_of, substance, written

HALF, WHOLE = 21, 42
OUT = Path("run.h5")
FAILING = f"if task.round == {HALF + 1} and not Path('mended').exists(): raise ValueError('broken')"
OWNING_DATA = ("heterogeneous-data-sgd", "malenia", "ringleader", "rescaled-asgd")
INTERRUPTIONS = ["end of run", "USR1", "TERM", "INT", "KILL", "exception"]


def job_of(folder: Path, method: str) -> Path:
    return written(
        folder / "job.toml",
        method,
        rounds=WHOLE,
        run="checkpoint_rounds = 7",
        problem=own_problem(folder, FAILING),
    )


def run(
    job: Path,
    out: Path = OUT,
    *settings: str,
    progress: Callable[[Trace], None] | None = None,
    notes: list[str] | None = None,
) -> Outcome:
    """Run a job on the virtual clock, or go on with it."""
    with logged() as texts:
        outcome = driven(job, settings, progress, OutputOptions(out, resume=True))
    if notes is not None:
        notes += texts
    return outcome


@cache
def undisturbed(method: str) -> dict[str, Any]:
    """What a run comes to that was never interrupted."""
    with TemporaryDirectory() as name:
        job = job_of(Path(name), method)
        before = Path.cwd()
        os.chdir(name)
        Path("mended").touch()
        try:
            assert run(job, OUT).reason == f"{WHOLE} rounds"
            return substance(OUT)
        finally:
            os.chdir(before)


def at_half_time(action: Callable[[], object]) -> Callable[[Trace], None]:
    def progress(trace: Trace) -> None:
        if trace.round == HALF:
            action()

    return progress


def interrupted(job: Path, how: str) -> None:
    """Run a job until something happens to it around its 21st round."""
    if how == "end of run":
        assert run(job, OUT, f"stop.rounds={HALF}").reason == f"{HALF} rounds"
    elif how == "exception":
        with pytest.raises(RunError, match=r"a task of worker .* failed in round 22"):
            run(job)
    elif how == "KILL":  # what stands there at any moment is what a kill leaves; kills.py does it for real
        Path("mended").touch()
        run(job, OUT, progress=at_half_time(lambda: shutil.copy(OUT, "killed.h5")))
        os.replace("killed.h5", OUT)
    else:
        number = signal.Signals[f"SIG{how}"]
        outcome = run(job, OUT, progress=at_half_time(partial(os.kill, os.getpid(), number)))
        assert (outcome.reason, outcome.signal, outcome.resumable) == (None, f"SIG{how}", True)
        assert outcome.trace.round == HALF
    Path("mended").touch()


# The paper's; others differ from these only in how they choose quotas.
QUICK = [name for name in METHODS if name.split()[-1] not in ("m-sync", "bandit", "proportional", "forget")]
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]
MOVABLE = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in METHODS
    if name not in OWNING_DATA
]


SLOW = pytest.mark.slow
# A kill is tried with each method here; how else a run is interrupted, with one method, and in `make slow`.
KINDS = [pytest.param(how, marks=() if how == "KILL" else SLOW) for how in INTERRUPTIONS]
# Where a run is saved is checked bit for bit; on other workers two kinds of saves are enough, one for each
# number of workers.
TWO_KINDS = (("TERM", 3), ("KILL", 7))
MOVES = [
    pytest.param(how, workers, marks=() if (how, workers) in TWO_KINDS else SLOW)
    for how in INTERRUPTIONS
    for workers in (3, 7)
]


@pytest.mark.parametrize("how", [how for how in INTERRUPTIONS if how != "KILL"])
def test_however_it_was_interrupted_it_is_the_same(tmp_path: Path, how: str) -> None:
    check_same(tmp_path, "sgd ata-empirical", how)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("method", ALL)
def test_interrupted_and_resumed_is_the_same_bit_for_bit(tmp_path: Path, method: str, how: str) -> None:
    check_same(tmp_path, method, how)


def check_same(tmp_path: Path, method: str, how: str) -> None:
    """Interrupt a run, resume it, and compare with one that was not interrupted."""
    job = job_of(tmp_path, method)
    interrupted(job, how)
    saved = int(record_of(OUT).method["k"])
    assert saved == {"KILL": HALF - 7}.get(how, HALF)
    notes: list[str] = []
    outcome = run(job, OUT, f"stop.rounds={WHOLE}", notes=notes)
    assert outcome.reason == f"{WHOLE} rounds"
    assert notes[0] == f"resumed at round {saved} on 5 workers"
    assert set(differing(substance(OUT), undisturbed(method))) <= {"job/settings"}


@pytest.mark.parametrize(("how", "workers"), MOVES)
@pytest.mark.parametrize("method", MOVABLE)
def test_with_fewer_or_more_workers_it_goes_on_and_every_task_is_accounted_for(
    tmp_path: Path, method: str, how: str, workers: int
) -> None:
    job = job_of(tmp_path, method)
    interrupted(job, how)
    before = record_of(OUT)
    notes: list[str] = []
    outcome = run(job, OUT, f"stop.rounds={WHOLE}", f"run.workers={workers}", notes=notes)
    after = record_of(OUT)
    assert outcome.reason == f"{WHOLE} rounds"
    assert notes[0] == f"resumed at round {int(before.method['k'])} on {workers} workers"
    assert f"changed run.workers: 5 -> {workers}" in notes
    budget = 6 if method == "ringmaster" else 7
    summary = after.summary
    assert summary["tasks_used"] == WHOLE * budget
    assert summary["tasks_lost"] == (5 if method == "ringmaster" else 0)  # what each had under way
    assert summary["worker_time"] > before.summary["worker_time"]
    assert len(after.identities) == len(after.workers["tasks"]) == workers
    both = min(workers, 5)
    for column in ("tasks", "seconds", "arrivals", "unfinished"):
        assert (after.workers[column][:both] >= before.workers[column][:both]).all()
    assert (after.workers["tasks"][:both] > before.workers["tasks"][:both]).any()
    if method != "ringmaster":
        assert any(f"{both} of {workers} workers recognised" in note for note in notes)


@pytest.mark.parametrize("how", ["TERM", "exception"])
@pytest.mark.parametrize("method", OWNING_DATA)
def test_where_workers_own_their_data_their_number_cannot_change(
    tmp_path: Path, method: str, how: str
) -> None:
    job = job_of(tmp_path, method)
    interrupted(job, how)
    before = OUT.read_bytes()
    for workers in (4, 6):
        with pytest.raises(UsageError, match="each worker owns its part of the data, and there were 5 work"):
            run(job, OUT, f"run.workers={workers}")
    assert OUT.read_bytes() == before
    run(job)
    assert not differing(substance(OUT), undisturbed(method))


def test_interrupted_ten_times_it_still_is_the_same(tmp_path: Path) -> None:
    job = job_of(tmp_path, "sgd ata-empirical")
    Path("mended").touch()
    for number in range(1, 11):

        def progress(trace: Trace, last: int = 4 * number) -> None:
            if trace.round == last:
                os.kill(os.getpid(), signal.SIGUSR1)

        assert run(job, OUT, progress=progress).trace.round == 4 * number
    assert run(job).reason == f"{WHOLE} rounds"
    assert not differing(substance(OUT), undisturbed("sgd ata-empirical"))
    assert [event.kind for event in record_of(OUT).events].count("resumed") == 10


def test_elapsed_time_goes_on_and_the_clock_too(tmp_path: Path) -> None:
    job = job_of(tmp_path, "sgd gta")
    interrupted(job, "TERM")
    before = record_of(OUT).summary
    run(job)
    after = record_of(OUT).summary
    assert after["elapsed"] > before["elapsed"] > 0
    assert after["clock"] > before["clock"] > 0


def test_a_round_that_does_not_end_within_the_time_of_grace_is_given_up(tmp_path: Path) -> None:
    body = "if task.round == 9 and not Path('mended').exists(): time.sleep(0.1)"
    job = written(
        tmp_path / "job.toml",
        "sgd gta",
        run="checkpoint_rounds = 1\ngrace = 0.05",
        problem=own_problem(tmp_path, body),
    )

    def progress(trace: Trace) -> None:
        if trace.round == 8:
            signal.setitimer(signal.ITIMER_REAL, 0.12)

    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        outcome = run(job, OUT, progress=progress)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (outcome.reason, outcome.signal) == (None, "SIGTERM")
    assert int(record_of(OUT).method["k"]) == 8
    Path("mended").touch()
    assert run(job).trace.round == 40
