"""The tables [[times.changes]] of a job: strict, felt by the run, and the same after an interruption."""

import re
from pathlib import Path

import numpy as np
import pytest

from mpi_ata.allocators.change_detection import SpeedChange
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.driver.recorder import SpeedNotes
from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts, load_job
from tests.driver.driven import driven
from tests.faults.scene import differing, record_of, substance, written
from tests.marks import slow

METHODS = ["sgd ata-empirical", "sgd forget", "sgd gta", "asgd ata-empirical", "ringmaster", "malenia"]
CHANGES = """
[[times.changes]]
round = 13
workers = [0, 1]
factor = 5.0
[[times.changes]]
round = 25
workers = 0.4
factor = 0.5
"""


def changing(folder: Path, changes: str = CHANGES, method: str = "sgd ata-empirical") -> Path:
    return written(folder / "job.toml", method, run="checkpoint_rounds = 40", times=changes)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("half", [15, *slow(12, 30)])
def test_resumed_before_between_and_after_changes_it_is_the_same_bit_for_bit(
    tmp_path: Path, method: str, half: int
) -> None:
    job, whole, broken = changing(tmp_path, method=method), Path("whole.h5"), Path("broken.h5")
    driven(job, output=OutputOptions(whole))
    driven(job, [f"stop.rounds={half}"], output=OutputOptions(broken))
    assert record_of(broken).method["k"] == half
    driven(job, ["stop.rounds=40"], output=OutputOptions(broken, resume=True))
    assert set(differing(substance(broken), substance(whole))) <= {"job/settings"}


def test_a_noticed_change_is_an_event_of_the_worker_in_the_run_file(tmp_path: Path) -> None:
    job, out = changing(tmp_path, method="sgd forget"), Path("run.h5")
    driven(job, output=OutputOptions(out))
    noticed = [event for event in record_of(out).events if event.kind == "changed-speed"]
    assert {0, 1} <= {event.worker for event in noticed}
    first = noticed[0]
    assert re.fullmatch(rf"worker {first.worker} is now \d\.\d × slower than before", first.text)


def test_a_change_that_lasts_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change = "[[times.changes]]\nround = 60\nworkers = [0]\nfactor = 5.0\n"
    driven(
        changing(tmp_path, change, "sgd forget"), ["stop.rounds=200"], output=OutputOptions(Path("run.h5"))
    )
    texts = [entry.getMessage() for entry in caplog.records]
    assert len([text for text in texts if re.match(r"worker 0 is now \d.\d × slower", text)]) == 1


def test_a_few_lines_say_whose_speed_has_changed_and_stayed_so(caplog: pytest.LogCaptureFixture) -> None:
    notes = SpeedNotes(simulated=True)
    for start in (100, 1000, 10_000, 100_000):
        notes.note([SpeedChange(worker, 3.0) for worker in range(6)], start)
        notes.note([SpeedChange(5, 1 / 3.0)], start + 1)
        notes.note([], 2 * start)
    assert [entry.getMessage().count("3.0 × slower") for entry in caplog.records] == [4, 4, 4]
    assert caplog.records[0].getMessage().endswith("; and more"), "the changes of worker 5 cancel"
    assert caplog.records[-1].getMessage().endswith("; further changes are only recorded")


def test_a_run_is_the_same_up_to_the_change_and_another_from_there_on(tmp_path: Path) -> None:
    plain, changed = list[float](), list[float]()  # worker time after each round
    driven(changing(tmp_path, "", "sgd uta"), look=lambda trace: plain.append(trace.worker_time))
    driven(changing(tmp_path, CHANGES, "sgd uta"), look=lambda trace: changed.append(trace.worker_time))
    assert plain[:12] == changed[:12]
    assert all(before != after for before, after in zip(plain[12:], changed[12:], strict=True))


def test_the_oracle_knows_only_the_original_law_and_warm_starts_tell_the_two_apart(tmp_path: Path) -> None:
    jobs = [load_job(changing(tmp_path, changes, "sgd ofta")) for changes in ("", CHANGES)]
    plain, changed = (build_parts(job) for job in jobs)
    assert plain.times
    assert changed.times
    assert plain.times.means.tolist() == changed.times.means.tolist()
    everyone = np.ones(5, np.bool_)
    quotas = [parts.method.allocator.allocate(everyone).tolist() for parts in (plain, changed)]  # type: ignore[union-attr]
    assert quotas[0] == quotas[1]
    assert plain.times.label == "Sqrt {} x 1 s" != changed.times.label


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("round = 3\nworkers = [0]", "[times.changes] Change needs the key 'factor' (a number)"),
        ("round = 3\nworkers = [0]\nfactor = 2\nfrom = 1", "unknown key 'from' in [times.changes]; valid"),
        ("round = 3.5\nworkers = [0]\nfactor = 2", "round = 3.5 in [times.changes] must be a whole number"),
        ("round = 3\nworkers = 'all'\nfactor = 2", "workers = 'all' in [times.changes] must be a list or"),
        ("round = 3\nworkers = [7]\nfactor = 2", "[[times.changes]] workers=[7] must be indices from 0 to 4"),
        ("round = 3\nworkers = 1.0\nfactor = 1e300", "[times] the times overflow or vanish; choose another"),
    ],
)
def test_wrong_changes_are_rejected_in_one_sentence(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        build_parts(load_job(changing(tmp_path, f"[[times.changes]]\n{keys}")))


@pytest.mark.parametrize("value", ["5", "[5]"])
def test_changes_that_are_no_tables_are_rejected(tmp_path: Path, value: str) -> None:
    with pytest.raises(UsageError, match=r"in \[times\] must be tables \[\[times.changes\]\]"):
        load_job(changing(tmp_path, f"changes = {value}"))


def test_changes_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    setting = "times.changes=[{round = 3, workers = [0], factor = 2.0}]"
    times = load_job(changing(tmp_path, ""), [setting]).times
    assert times is not None
    assert times.changes[0].factor == 2.0
