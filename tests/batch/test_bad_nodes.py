"""Hosts that were slow, flaky or lost in earlier runs are found, and excluded by the names of their nodes."""

from pathlib import Path

import pytest

from mpi_ata.batch.bad_nodes import bad_hosts, node_name
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.runfile.schema import Record
from tests.runfile.test_checkpoints import record as saved_record

NODES = {"": ["n1", "n2"], "main": ["n1", "n2"], "other": ["c3"]}


def ended(time: float, seconds: list[float], *lost: int) -> tuple[Path, Record]:
    """Return a run that ended at some time, with the seconds of each worker's tasks, and those it lost."""
    run, stats = saved_record(), TaskTimeStats(len(seconds))
    for worker, each in enumerate(seconds):
        stats.add(worker, [each] * 20)
    run.identities = tuple(WorkerIdentity(f"n{worker}", 0, "wood") for worker in range(len(seconds)))
    run.workers = stats.state()
    for worker in lost:
        run.event(time, "lost", "killed", worker)
    run.event(time, "ended", "10 rounds")
    return Path(f"{time:g}.h5"), run


def test_the_latest_run_that_knows_a_host_decides_in_whatever_order_runs_are_read() -> None:
    slow, fine, few = ended(1, [1, 1, 3.0], 0), ended(2, [1, 1, 1]), ended(3, [1.0, 1.0], 1)
    assert bad_hosts([slow]) == {
        "n0": "1 worker died in 1.h5",
        "n2": "3.0 times slower than the median of 3 hosts in 1.h5",
    }
    assert bad_hosts([slow, fine]) == bad_hosts([fine, slow]) == {}
    assert bad_hosts([few, slow]) == bad_hosts([slow]) | {"n1": "1 worker died in 3.h5"}


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("n1", "n1"),
        ("n2.cluster.example", "n2"),
        ("c3", "c3"),
        ("n9", ""),
        ("n1;id", ""),
        ("n1\n", ""),
        ("", ""),
    ],
)
def test_only_nodes_that_slurm_knows_are_excluded(host: str, node: str) -> None:
    assert node_name(host, NODES) == node
