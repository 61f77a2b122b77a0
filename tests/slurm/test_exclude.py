"""Jobs avoid nodes that were slow in earlier runs, and nodes that lost workers of their own run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.errors import UsageError
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.slurm.exclude import bad_hosts, node_name
from mpi_ata.slurm.resources import Resources
from tests.runfile.test_checkpoints import record as saved_record
from tests.slurm.site import MPICH, Site, record, rounds_of

SLOW_NODE, FACTOR = "n4", 2.2
UNEQUAL = f"""
import os
import time
import numpy as np

class Own:
    x0 = np.ones(3)

    def gradient(self, x, task):
        time.sleep(0.04 * ({FACTOR} if os.environ["SLURMD_NODENAME"] == "{SLOW_NODE}" else 1))
        return 0.1 * x
"""
DEADLY_NODE = "n3"
DEADLY = f"""
import os
import signal
import time
import numpy as np

class Own:
    x0 = np.ones(3)

    def gradient(self, x, task):
        time.sleep(0.02)
        if task.round >= 20 and os.environ["SLURMD_NODENAME"] == "{DEADLY_NODE}":
            time.sleep(1.5)  # the run is saved meanwhile
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.1 * x
"""
ALL_END = "srun --mpi=pmi2 --kill-on-bad-exit=1"  # a dead rank ends all of them
NODES = {"": ["n1", "n2"], "main": ["n1", "n2"], "other": ["c3"]}


def unequal(site: Site) -> Path:
    """Write a job of 50 rounds with tasks that take longer on one node."""
    path = site.own(UNEQUAL)
    path.write_text(path.read_text().replace("rounds = 3\n", "rounds = 50\n"))
    return path


def with_hosts(run: Path, *hosts: str) -> Path:
    """Save a copy of a run in which the slow host has these names, one copy each, and return the folder."""
    folder = run.parent / "renamed"
    folder.mkdir()
    for number, host in enumerate(hosts):
        found = record(run)
        found.identities = tuple(
            who._replace(host=host) if who.host == SLOW_NODE else who for who in found.identities
        )
        RunFile(folder / f"{number}.h5").save(*to_tree(replace(found, run=str(number))))
    return folder


@pytest.mark.cluster
def test_a_slow_node_is_flagged_within_50_rounds_and_the_next_job_avoids_it(site: Site) -> None:
    job, out = unequal(site), site.folder / "first.h5"
    first = site.submit(job, "--nodes", 5, "--ntasks-per-node", 1, "--time", 10, "--out", out)
    assert site.wait_over(first["job"]) == "COMPLETED", site.story(first["job"])
    # Sleeping takes a little longer than asked for, on a busy machine by a few milliseconds.
    assert re.search(r"^hosts +n4 slow \(2\.[0-3] x\); see mpi-ata show$", site.log(first), re.MULTILINE)
    reason = r"n4: 2\.[0-3] times slower than the median of 4 hosts"
    assert re.search(rf"\n{reason}\n3 other hosts not flagged\n", site.ata("show", out))
    four = ("--nodes", 4, "--ntasks-per-node", 1, "--time", 10, "--exclude-slow", out)
    second = site.submit(job, *four)
    assert second["excluded"] == [SLOW_NODE]
    assert re.fullmatch(f"excluding {reason} in {re.escape(str(out))}", *second["notes"])
    assert site.wait_over(second["job"]) == "COMPLETED", site.story(second["job"])
    assert [worker.host for worker in record(second["run"]).identities] == ["n2", "n3", "n5"]
    check_script(site, job, out)


def check_script(site: Site, job: Path, out: Path) -> None:
    """Check what is excluded along with nodes of the user's, what is left out, and what is rejected."""
    words = ("submit", job, "--ntasks-per-node", 1, "--time", 10, "--exclude-slow", out)
    script = site.ata(*words, "--nodes", 3, "--sbatch", "-x n5 --mem=1", "--dry-run")
    assert "#SBATCH --exclude=n5,n4\n" in script
    few = site.ata(*words, "--nodes", 4, "--sbatch", "--exclude=n[1,5]", code=2).splitlines()
    left = "without n1, n4, n5, 2 of 5 nodes are left, but 4 are needed"
    assert few == [f"Error: {left}: use fewer --nodes, or omit --exclude-slow"]
    others = with_hosts(out, "n4.cluster.example", "c17", "n4\n#SBATCH --wrap=id")
    found = site.submit(*words[1:-1], others, "--nodes", 4, "--dry-run")
    assert found["excluded"] == [SLOW_NODE]
    assert "not excluding 'c17': Slurm has no such node" in found["notes"]
    assert "wrap" not in found["script"]


@pytest.mark.cluster
def test_where_a_dead_worker_ends_all_ranks_the_job_is_requeued_without_its_node(site: Site) -> None:
    job, out = site.own(DEADLY), site.folder / "mine.h5"
    words = (
        job,
        "--nodes",
        3,
        "--ntasks-per-node",
        1,
        "--time",
        10,
        "--out",
        out,
        "--sbatch",
        "--exclude=n5",
    )
    found = site.submit(*words, "--set", "stop.rounds=40", command=MPICH, MPI_ATA_LAUNCHER=ALL_END)
    id = found["job"]
    assert site.wait_over(id) == "COMPLETED", site.story(id)
    assert f"requeued without {DEADLY_NODE}, where workers were lost" in site.log(found)
    excluded = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(id)["ExcNodeList"])
    assert set(excluded.split()) == {DEADLY_NODE, "n5"}
    assert [worker.host for worker in record(out).identities] == ["n2", "n4"]
    assert rounds_of(out) == 40


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


@pytest.mark.parametrize("own", ["-x c1", "-xc1", "--exclude c1", "--exclude=c1"])
def test_nodes_that_the_user_excludes_stay_excluded(own: str) -> None:
    resources = Resources(nodes=2, more=("--mem=1", f"{own} --constraint=fast"), exclude=("n1", "n2"))
    assert resources.sbatch_args() == ["--nodes=2", "--mem=1", "--constraint=fast", "--exclude=c1,n1,n2"]


def test_a_file_of_excluded_nodes_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match=r"--exclude=./nodes is a file"):
        Resources(more=("--exclude=./nodes",), exclude=("n1",)).sbatch_args()


@pytest.mark.parametrize(
    ("resources", "nodes"),
    [
        (Resources(nodes=4), 4),
        (Resources(ntasks=9, ntasks_per_node=4), 3),
        (Resources(ntasks=9, more=("-N 2-3",)), 2),
        (Resources(ntasks=9), 1),
    ],
)
def test_the_number_of_nodes_that_a_job_needs_is_known_from_its_options(
    resources: Resources, nodes: int
) -> None:
    assert resources.min_nodes == nodes
