"""Jobs avoid nodes that were slow in earlier runs, and nodes that lost workers of their own run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
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
