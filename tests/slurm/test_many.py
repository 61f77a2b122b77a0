"""Several jobs on a real Slurm that depend on each other: sweeps, chains, warm starts."""

from pathlib import Path

import numpy as np
import pytest

from tests.slurm.private import until
from tests.slurm.site import FOUR, Site, kinds, record, rounds_of

pytestmark = pytest.mark.cluster


def test_a_sweep_has_a_run_per_value_and_later_runs_warm_start_from_earlier_ones(site: Site) -> None:
    job = site.measured(15)
    words = ["--array", "method.step_size=0.1,0.2,0.3", "--at-once", 1, "--out", "sweep.h5"]
    submitted = site.submit(job, "--nodes", 2, "--ntasks-per-node", 2, "--time", 10, *words)
    first, second, third = (f"{submitted['job']}_{number}" for number in range(3))
    site.ata("stop", third)
    runs = [Path(run) for run in submitted["runs"]][:2]
    until(lambda: all(rounds_of(run) == 15 for run in runs), 200, lambda: site.story(submitted["job"]))
    assert site.wait_over(first) == site.wait_over(second) == "COMPLETED", site.story(second)
    assert site.slurm.ask("squeue", "--noheader") == ""
    rows = site.status(submitted["job"])
    assert [(row["job"], row["state"]) for row in rows] == [
        (first, "finished"),
        (second, "finished"),
        (third, "stopped"),
    ]
    assert [record(run).job.settings for run in runs] == [
        ("method.step_size=0.1",),
        ("method.step_size=0.2",),
    ]
    assert ["warm-started" in kinds(run) for run in runs] == [False, True]


def test_a_chain_resumes_in_each_job_and_ends_with_the_run(site: Site) -> None:
    job = site.drawn(250)
    submitted = site.submit(job, *FOUR, "--chain", 3, "--signal", "USR2")
    first, second, third = submitted["jobs"]
    site.wait_beyond(submitted["run"], 10)
    site.slurm.ask("scancel", "--batch", "--signal=USR2", str(first))
    assert site.wait_over(first) == "FAILED"
    assert site.wait_over(second) == "COMPLETED", site.story(second)
    assert site.wait_over(third) == "CANCELLED"
    assert site.slurm.job(first)["Restarts"] == "0"
    assert np.array_equal(record(submitted["run"]).method["x"], site.virtual_x(job, 3))
    assert site.status(second)[0]["state"] == "finished"


def test_a_warm_start_recognises_hosts_that_are_allocated_again(site: Site) -> None:
    job = site.measured(15)
    words = ["--ntasks-per-node", 2, "--time", 10]
    first = site.submit(job, "--nodes", 2, *words, "--sbatch", "--nodelist=n1,n2", "--out", "a.h5")
    assert site.wait_over(first["job"]) == "COMPLETED", site.story(first["job"])
    second = site.submit(
        job, "--nodes", 2, *words, "--sbatch", "--nodelist=n2,n3", "--out", "b.h5", "--warm-start", "a.h5"
    )
    assert site.wait_over(second["job"]) == "COMPLETED", site.story(second["job"])
    assert [(place.host, place.local_index) for place in record(first["run"]).identities] == [
        ("n1", 1),
        ("n2", 0),
        ("n2", 1),
    ]
    assert [(place.host, place.local_index) for place in record(second["run"]).identities] == [
        ("n2", 1),
        ("n3", 0),
        ("n3", 1),
    ]
    (text,) = [event.text for event in record(second["run"]).events if event.kind == "warm-started"]
    assert "1 of 3 workers recognised, 2 start from others with the same hardware" in text
