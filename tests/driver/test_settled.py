"""What workers had begun when a run ended, or broke off, is counted once."""

from pathlib import Path

import numpy as np
import pytest

from mpi_ata import Trace, VirtualCluster
from mpi_ata.clusters.accounts import in_flight
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.driver.restore import begin
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.driver.driven import driven
from tests.faults.scene import written

OUT = Path("run.h5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tasks_under_way_at_the_end_of_a_run_are_wasted(tmp_path: Path) -> None:
    summary = driven(
        written(tmp_path / "job.toml", "ringmaster", rounds=5), output=OutputOptions(OUT)
    ).summary()
    record = load_record(RunFile(OUT))[0]
    begun = int(in_flight(record.cluster).sum())
    assert begun > 0
    assert summary["tasks_wasted"] == int(record.totals["wasted"]) + begun
    assert record.summary["tasks_wasted"] == summary["tasks_wasted"]


class Losing(VirtualCluster):
    """Books a lost task when it is restored, as real ranks do for those then in flight."""

    def restore(self, state: object, workers: object = None) -> None:
        self.ledger.lose(np.array([1]), np.array([3]))


def test_tasks_lost_at_a_break_are_in_the_totals_of_the_resumed_run(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", "ringmaster", rounds=5)
    driven(job, output=OutputOptions(OUT))
    plan = resolve(job, ["stop.rounds=9"], OutputOptions(OUT, resume=True))
    problem, times, method = plan.parts()
    assert times is not None
    trace = Trace()
    begin(plan, method, Losing(problem, times, plan.job.run.seed), trace)
    assert trace.lost == 3
