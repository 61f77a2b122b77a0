"""Where workers own their data, the loss of one ends the run; the rounds before it are saved."""

from pathlib import Path

import pytest

from mpi_ata import VirtualCluster
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError
from mpi_ata.launch.signals import StopRequest
from tests.driver.driven import driven
from tests.faults.scene import record_of, written


def broken_off(job: Path, out: Path, deaths: dict[int, float]) -> tuple[str, Trace]:
    """Run a job until a worker dies; return the error, and the totals."""
    plan, trace = resolve(job, output=OutputOptions(out)), Trace()
    parts = plan.parts()
    assert parts.times is not None
    cluster = VirtualCluster(parts.problem, parts.times, plan.job.run.seed, deaths)
    with StopRequest(1.0) as stop, pytest.raises(RunError) as error:
        Drive(plan, parts.method, parts.problem, cluster, trace, [], stop).outcome()
    return str(error.value), trace


@pytest.mark.parametrize("method", ["malenia", "heterogeneous-data-sgd"])
def test_the_rounds_before_the_loss_are_saved_and_the_run_can_be_resumed(tmp_path: Path, method: str) -> None:
    job = written(tmp_path / "job.toml", method, rounds=40, run="checkpoint_rounds = 1000")
    out = tmp_path / "run.h5"
    text, trace = broken_off(job, out, {2: 3000.0})
    rounds = trace.round
    assert 0 < rounds < 40
    assert "worker 2 (host virtual, slot 2) is lost (it vanished at 3000 s on the virtual clock)" in text
    assert f"{out} holds it up to round {rounds}; after fixing it, continue with --out {out} --resume" in text
    record = record_of(out)
    assert record.method["k"] == rounds
    assert [event.worker for event in record.events if event.kind == "lost"] == [2]
    delivered, stopped = record.workers["tasks"].sum(), record.cluster["undelivered"].sum()
    assert trace.used + trace.wasted == delivered + stopped, "what the others did in that round is wasted"
    driven(job, output=OutputOptions(out, resume=True))
    assert record_of(out).method["k"] == 40
