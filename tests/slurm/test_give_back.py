"""Nodes that cost more than they save are given back to Slurm, and the run continues on the others."""

from pathlib import Path

import pytest

from mpi_ata.batch.submission_dir import SubmissionDir
from tests.slurm.private import PrivateSlurm, until
from tests.slurm.site import BOTH, Site, hosts, kinds, record, size

pytestmark = pytest.mark.cluster

ROUNDS = 700
USELESS = """\
time.sleep(0.01 * (12 if os.environ["SLURMD_NODENAME"] in ("n3", "n4") else 1))
"""


@BOTH
def test_nodes_that_a_run_can_do_without_are_released_and_billed_no_longer(site: Site, command: Path) -> None:
    job = site.own(USELESS, rounds=ROUNDS)
    words = (*size(4), "--give-back", "--set", "allocator.name=ata-auto")
    found = site.complete(job, *words, command=command)
    log, run = site.log(found), record(found["run"])
    assert "gave back n3, n4" in log or "gave back n4, n3" in log, log
    assert hosts(found["run"]) == ["n2"]
    assert (kinds(found["run"]).count("released"), kinds(found["run"]).count("lost")) == (1, 0)
    assert (run.summary["rounds"], run.summary["tasks_used"]) == (ROUNDS, ROUNDS * 6)
    assert run.method["x"] == pytest.approx((1 - 0.03) ** ROUNDS)  # the same as without a release
    assert site.slurm.job(found["job"])["NumNodes"] == "2"
    first, second = SubmissionDir.of_run(Path(found["run"])).attempts(Path(found["run"]))
    assert (first.cores, first.end, second.cores, second.end) == (4, "released", 2, "finished")
    billed, elapsed = run.summary["billed"], run.summary["elapsed"]
    assert 2 * elapsed < billed < 4 * elapsed
    (status,) = site.status(found["run"])
    assert billed / 3600 == pytest.approx(status["billed_core_hours"], rel=0.2)
    again = site.submit(job, *size(2), "--exclude-slow", found["run"], "--dry-run")
    assert again["excluded"] == []  # released is not lost


def test_where_the_site_refuses_the_requeued_job_has_fewer_nodes_tasks_and_cores(
    fresh_slurm: PrivateSlurm, tmp_path: Path
) -> None:
    conf = fresh_slurm.folder / "slurm.conf"
    conf.write_text(conf.read_text().replace("batch_sched_delay", "disable_job_shrink,batch_sched_delay"))
    fresh_slurm.ask("scontrol", "reconfigure")
    site = Site(fresh_slurm, tmp_path, frozenset(fresh_slurm.processes()))
    words = (*size(4), "--give-back", "--set", "allocator.name=ata-auto")
    found = site.submit(site.own(USELESS, rounds=ROUNDS), *words)
    until(lambda: "takes no nodes back, so 2 must do" in site.log_so_far(found), 60)
    fresh_slurm.ask("scancel", "--batch", "--signal=USR1", str(found["job"]))
    site.wait_completed(found["job"])
    assert hosts(found["run"]) in (["n2"], ["n3"])
    fields = fresh_slurm.job(found["job"])
    assert (fields["NumNodes"], fields["NumTasks"], fields["NumCPUs"]) == ("2", "2", "2")
    assert record(found["run"]).summary["tasks_used"] == ROUNDS * 6
