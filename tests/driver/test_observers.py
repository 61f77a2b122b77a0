"""Observers see a run from its start to its end; what is said on the way goes to the logger mpi_ata."""

import logging
import signal
from pathlib import Path

import pytest

from mpi_ata import Cluster, Method, Observer, Round, Trace
from mpi_ata.driver.execute import execute
from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import resolve
from tests.driver.driven import driven, logged
from tests.faults.scene import written

OUT = Path("run.h5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Diary(Observer):
    """Writes down what it sees."""

    def __init__(self, stop_at: int = 0) -> None:
        self.seen: list[str] = []
        self._stop_at = stop_at

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        self.seen.append(f"start at {method.k} on {cluster.n} workers")

    def on_round(self, round: Round, trace: Trace) -> None:
        assert trace.round == round.number
        self.seen.append(f"round {round.number}")
        if round.number == self._stop_at:
            signal.raise_signal(signal.SIGTERM)

    def on_end(self, trace: Trace, reason: str | None) -> None:
        self.seen.append(f"end at {trace.round}: {reason}")


def test_an_observer_sees_the_start_every_round_and_the_end(tmp_path: Path) -> None:
    diary = Diary()
    execute(resolve(written(tmp_path / "job.toml", rounds=3, workers=4)), [diary])
    assert diary.seen == ["start at 0 on 4 workers", "round 1", "round 2", "round 3", "end at 3: 3 rounds"]


def test_an_observer_sees_that_a_run_was_stopped_and_then_that_it_is_resumed(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=4, workers=4)
    first, second = Diary(stop_at=2), Diary()
    execute(resolve(job, output=OutputOptions(OUT)), [first])
    assert first.seen[-2:] == ["round 2", "end at 2: None"]
    execute(resolve(job, output=OutputOptions(OUT, resume=True)), [second])
    assert second.seen == ["start at 2 on 4 workers", "round 3", "round 4", "end at 4: 4 rounds"]


def test_what_is_said_on_the_way_goes_to_the_logger_of_the_package(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=2, workers=4)
    driven(job, output=OutputOptions(OUT))
    with logged() as texts:
        driven(job, ["stop.rounds=3"], output=OutputOptions(OUT, resume=True))
    assert texts == ["resumed at round 2 on 4 workers", "changed stop.rounds: 2 -> 3"]


def test_without_a_handler_nothing_but_warnings_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logging.getLogger("mpi_ata").handlers == []
    job = written(tmp_path / "job.toml", rounds=2, workers=4)
    driven(job, output=OutputOptions(OUT))
    driven(job, ["stop.rounds=3"], output=OutputOptions(OUT, resume=True))
    assert capsys.readouterr() == ("", "")
