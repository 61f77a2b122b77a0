"""Jobs on a real Slurm of several nodes, through everything that happens to jobs there."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.private import PrivateSlurm
from tests.slurm.site import BOTH, FOUR, MPICH, Site, kinds, record, rounds_of

pytestmark = pytest.mark.cluster


def test_a_time_limit_is_survived(site: Site) -> None:
    job = site.drawn(1100)
    job.write_text(job.read_text().replace('law = "linear"', 'law = "constant"').replace("0.01", "0.025"))
    submitted = site.submit(job, "--nodes", 4, "--ntasks-per-node", 1, "--time", 1)
    assert site.over(submitted["job"], 400) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert kinds(submitted["run"]).count("resumed") >= 1
    assert np.array_equal(found.method["x"], site.virtual_x(job, 3))
    ended = [event.text for event in found.events if event.kind == "ended"]
    assert all("USR1" in text for text in ended[:-1]), ended  # in time, not when it was killed


@BOTH
def test_a_signal_saves_requeues_and_resumes_to_the_same_x(site: Site, command: Path) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, command=command)
    id = str(submitted["job"])
    site.beyond(submitted["run"], 10)
    (row,) = site.status(id)
    assert (row["state"], row["of_rounds"], row["starts"]) == ("running", 300, 1)
    assert row["rate"] > 1
    assert time.time() < row["expected_end"] < time.time() + 290 / row["rate"] + 60
    # What a time limit sends to the script, or preemption to all ranks at some sites.
    signal = ["--signal=TERM"] if command == MPICH else ["--batch", "--signal=USR1"]
    for _ in range(2):  # both may come more than once
        site.slurm.ask("scancel", *signal, id)
    site.restarted(id)
    at = rounds_of(Path(submitted["run"]))
    assert 10 < at < 300
    assert site.over(id) == "COMPLETED", site.story(id)
    assert kinds(submitted["run"]).count("resumed") == 1
    assert np.array_equal(record(submitted["run"]).method["x"], site.virtual_x(job, 3))
    assert f"saved at round {at}, not finished" in site.log(submitted)  # appended, not overwritten
    assert "finished after 300 rounds" in site.log(submitted)
    (row,) = site.status(id)
    assert (row["state"], row["starts"]) == ("finished", 2)


def test_a_preempted_job_comes_back_and_goes_on(site: Site) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, "--partition", "main", "--sbatch", "--exclusive", command=MPICH)
    site.beyond(submitted["run"], 10)
    words = ["--partition=high", "--nodes=4", "--exclusive", "--wrap", "sleep 2"]
    other = site.slurm.ask("sbatch", "--parsable", *words, cwd=site.folder)
    assert site.over(other) == "COMPLETED"
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    assert kinds(submitted["run"]).count("resumed") == 1
    assert np.array_equal(record(submitted["run"]).method["x"], site.virtual_x(job, 3))


@BOTH
def test_a_cancelled_job_leaves_a_file_to_go_on_from_and_no_process(site: Site, command: Path) -> None:
    job, words = site.drawn(100_000), (*FOUR, "--out", "mine.h5")
    submitted = site.submit(job, *words, command=command)
    site.beyond(submitted["run"], 10)
    site.slurm.ask("scancel", str(submitted["job"]))
    assert site.over(submitted["job"]) == "CANCELLED", site.story(submitted["job"])
    site.no_process()
    if command == MPICH:  # Open MPI's mpirun may be quicker to kill its ranks than the manager to save
        assert kinds(submitted["run"])[-1] == "ended"
    time.sleep(8)  # longer than it takes Slurm to start a requeued job
    assert site.state(submitted["job"]) == "CANCELLED"
    assert site.status("mine.h5")[0]["state"] == "unfinished"
    few_more = ("--set", f"stop.rounds={rounds_of(site.folder / 'mine.h5') + 10}")
    again = site.submit(job, *words, *few_more, "--resume", command=command)
    assert site.over(again["job"]) == "COMPLETED", site.story(again["job"])
    assert np.array_equal(record(again["run"]).method["x"], site.virtual_x(job, 3, *few_more))


def test_a_stopped_run_is_saved_and_not_started_again(site: Site) -> None:
    submitted = site.submit(site.drawn(100_000), *FOUR)
    site.beyond(submitted["run"], 10)
    told = site.ata("status")
    line = r"^job-\S+ +\d+ +running +\d+ of 100,000 +[\d.]+ +\d+ (h|min) .*\d$"
    assert re.search(line, told, re.MULTILINE), told
    site.ata("stop", submitted["job"])
    assert site.over(submitted["job"]) == "FAILED", site.story(submitted["job"])
    assert site.slurm.job(submitted["job"])["ExitCode"] == "85:0"
    (row,) = site.status(submitted["run"])
    assert (row["state"], row["starts"]) == ("stopped", 1), site.log(submitted)
    assert kinds(submitted["run"])[-1] == "ended"


def test_a_waiting_run_that_is_stopped_leaves_the_queue(site: Site) -> None:
    told = site.ata("submit", site.drawn(10), *FOUR, "--sbatch", "--hold", "--chain", 2)
    assert "submitted  Slurm job 1 and 1 that continue it" in re.sub(r"job \d+", "job 1", told)
    (first,) = re.findall(r"^watch it   mpi-ata status (\d+)$", told, re.MULTILINE)
    site.ata("stop", first)
    assert [site.over(id) for id in (first, int(first) + 1)] == ["CANCELLED", "CANCELLED"]
    assert site.status(int(first) + 1)[0]["state"] == "stopped"


def test_a_node_that_goes_down_is_left_behind(site: Site) -> None:
    job = site.drawn(250)
    submitted = site.submit(job, "--nodes", 3, "--ntasks-per-node", 1, "--time", 10)
    site.beyond(submitted["run"], 10)
    id = str(submitted["job"])
    lost = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(id)["NodeList"]).split()[-1]
    site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    try:
        site.restarted(id)
        assert site.over(id) == "COMPLETED", site.story(id)
    finally:
        site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=RESUME")
    found = record(submitted["run"])
    assert np.array_equal(found.method["x"], site.virtual_x(job, 2))
    assert lost not in {place.host for place in found.identities}
    assert kinds(submitted["run"]).count("resumed") == 1


@BOTH
def test_a_node_that_dies_is_survived_and_what_was_learned_of_the_others_is_kept(
    fresh_slurm: PrivateSlurm, tmp_path: Path, command: Path
) -> None:
    site = Site(fresh_slurm, tmp_path)
    job = site.measured(250)
    submitted = site.submit(job, "--nodes", 3, "--ntasks-per-node", 1, "--time", 10, command=command)
    site.beyond(submitted["run"], 10)
    site.slurm.kill_node("n3")
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert {place.host for place in found.identities} == {"n2", "n4"}
    assert found.summary["rounds"] == 250
    assert kinds(submitted["run"]).count("resumed") == 1
    (text,) = [event.text for event in found.events if event.kind == "warm-started"]
    assert "1 of 2 workers recognised, 1 starts from others with the same hardware" in text


def test_starts_that_lead_nowhere_come_to_an_end(site: Site) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, MPI_ATA_LAUNCHER="false")
    assert site.over(submitted["job"], 200) == "FAILED"
    (row,) = site.status(submitted["job"])
    assert row["starts"] == 3
    assert row["state"] == "failed"
    assert "3 starts in a row got no further than round 0" in row["why"]
