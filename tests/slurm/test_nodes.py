"""Jobs go on without a worker that dies, and avoid nodes that were slow before or have lost workers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from tests.slurm.site import BOTH, FOUR, MPICH, Site, hosts, kinds, record, rounds_of, size

pytestmark = pytest.mark.cluster

SLOW_NODE, DEADLY_NODE = "n4", "n3"
UNEQUAL = f"""\
time.sleep(0.04 * (2.2 if os.environ["SLURMD_NODENAME"] == "{SLOW_NODE}" else 1))
"""
DEADLY = f"""\
time.sleep(0.02)
if task.round >= 20 and os.environ["SLURMD_NODENAME"] == "{DEADLY_NODE}":
    time.sleep(1.5)  # the run is saved meanwhile
    os.kill(os.getpid(), signal.SIGKILL)
"""
DYING = """\
time.sleep(0.02)
if task.round >= 10 and task.worker == 1:
    {death}
"""
ALL_END = "srun --mpi=pmi2 --kill-on-bad-exit=1"  # a dead rank ends all of them


@BOTH
@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"], ids=["kill", "exit"]
)
def test_the_others_finish_a_run_whose_worker_dies(site: Site, command: Path, death: str) -> None:
    submitted = site.complete(site.own(DYING.format(death=death), rounds=60), *FOUR, command=command)
    found = record(submitted["run"])
    assert (found.summary["rounds"], found.summary["tasks_used"]) == (60, 60 * 6)
    assert found.method["x"] == pytest.approx((1 - 0.03) ** 60)  # all tasks give the same gradient
    assert found.summary["tasks_lost"] == kinds(submitted["run"]).count("lost") == 1
    assert "resumed" not in kinds(submitted["run"])
    assert f"lost worker 1 (host {found.identities[1].host}, slot 0)" in site.log(submitted)


def with_hosts(run: Path, *names: str) -> Path:
    """Save a copy of a run in which the slow host has these names, one copy each, and return the folder."""
    folder = run.parent / "renamed"
    folder.mkdir()
    for number, name in enumerate(names):
        found = record(run)
        found.identities = tuple(
            who._replace(host=name) if who.host == SLOW_NODE else who for who in found.identities
        )
        RunFile(folder / f"{number}.h5").save(*to_tree(replace(found, run=str(number))))
    return folder


def test_a_slow_node_is_flagged_within_50_rounds_and_the_next_job_avoids_it(site: Site) -> None:
    job, out = site.own(UNEQUAL, rounds=50), site.folder / "first.h5"
    first = site.complete(job, *size(5), "--out", out)
    # Sleeping takes a little longer than asked for, on a busy machine by a few milliseconds.
    line = r"^hosts +n4 slow \(2\.[0-3] x\); see mpi-ata show \S*first.h5$"
    assert re.search(line, site.log(first), re.MULTILINE)
    reason = r"n4: 2\.[0-3] times slower than the median of 4 hosts"
    assert re.search(rf"\n{reason}\n3 other hosts not flagged\n", site.ata("show", out))
    second = site.complete(job, *FOUR, "--exclude-slow", out)
    assert second["excluded"] == [SLOW_NODE]
    assert re.fullmatch(f"excluding {reason} in {re.escape(str(out))}", *second["notes"])
    assert hosts(second["run"]) == ["n2", "n3", "n5"]
    check_script(site, job, out)


def check_script(site: Site, job: Path, out: Path) -> None:
    """Check what is excluded along with nodes of the user's, what is left out, and what is rejected."""
    script = site.ata(
        "submit", job, *size(3), "--exclude-slow", out, "--sbatch", "-x n5 --mem=1", "--dry-run"
    )
    assert script.index("#SBATCH --exclude=n5,n4\n") > script.index("#SBATCH -x\n")  # the last one counts
    few = site.ata("submit", job, *FOUR, "--exclude-slow", out, "--sbatch", "--exclude=n[1,5]", code=2)
    assert "without n1, n4, n5, 2 of 5 nodes are left, but 4 are needed" in few
    others = with_hosts(out, "n4.cluster.example", "c17", "n4\n#SBATCH --wrap=id")
    found = site.submit(job, *FOUR, "--exclude-slow", others, "--dry-run")
    assert found["excluded"] == [SLOW_NODE]
    assert "not excluding 'c17': Slurm has no such node" in found["notes"]
    assert "wrap" not in found["script"]


def test_where_a_dead_worker_ends_all_ranks_the_job_is_requeued_without_its_node(site: Site) -> None:
    words = (site.own(DEADLY, rounds=40), *size(3), "--sbatch", "--exclude=n5")
    found = site.complete(*words, command=MPICH, MPI_ATA_LAUNCHER=ALL_END)
    assert f"requeued without {DEADLY_NODE}, where workers were lost" in site.log(found)
    excluded = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(found["job"])["ExcNodeList"])
    assert set(excluded.split()) == {DEADLY_NODE, "n5"}
    assert hosts(found["run"]) == ["n2", "n4"]
    assert rounds_of(Path(found["run"])) == 40
