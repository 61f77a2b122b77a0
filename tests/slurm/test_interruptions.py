"""Jobs on a real Slurm of several nodes survive time limits, signals, preemption and lost nodes."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.private import PrivateSlurm
from tests.slurm.site import BOTH, FOUR, MPICH, Site, final_x, hosts, kinds, record, rounds_of, size

pytestmark = pytest.mark.cluster


def test_a_time_limit_is_survived(site: Site) -> None:
    job = site.drawn(1100)
    job.write_text(job.read_text().replace('law = "linear"', 'law = "constant"').replace("0.01", "0.025"))
    submitted = site.submit(job, "--nodes", 4, "--ntasks-per-node", 1, "--time", 1)
    site.wait_completed(submitted["job"], 400)
    found = record(submitted["run"])
    assert kinds(submitted["run"]).count("resumed") >= 1
    assert np.array_equal(found.method["x"], site.virtual_x(job, 3))
    ended = [event.text for event in found.events if event.kind == "ended"]
    assert all("USR1" in text for text in ended[:-1]), ended  # in time, not when Slurm killed it


@BOTH
def test_a_signal_saves_requeues_and_resumes_to_the_same_x(site: Site, command: Path) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, command=command)
    id = str(submitted["job"])
    site.wait_beyond(submitted["run"], 10)
    (row,) = site.status(id)
    assert (row["state"], row["of_rounds"], row["starts"]) == ("running", 300, 1)
    assert row["rate"] > 1
    assert time.time() < row["expected_end"] < time.time() + 290 / row["rate"] + 60
    # A time limit signals the script; preemption, at some sites, all ranks.
    signal = ["--signal=TERM"] if command == MPICH else ["--batch", "--signal=USR1"]
    for _ in range(2):  # both may come more than once
        site.slurm.ask("scancel", *signal, id)
    site.wait_requeued(id)
    at = rounds_of(Path(submitted["run"]))
    assert 10 < at < 300
    site.wait_completed(id)
    assert kinds(submitted["run"]).count("resumed") == 1
    assert np.array_equal(final_x(submitted["run"]), site.virtual_x(job, 3))
    assert f"saved at round {at}, not finished" in site.log(submitted)  # appended, not overwritten
    assert "finished after 300 rounds" in site.log(submitted)
    assert site.state_of(id) == ("finished", 2)


def test_a_preempted_job_is_requeued_and_resumes(site: Site) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, "--partition", "main", "--sbatch", "--exclusive", command=MPICH)
    site.wait_beyond(submitted["run"], 10)
    words = ["--partition=high", "--nodes=4", "--exclusive", "--wrap", "sleep 2"]
    other = site.slurm.ask("sbatch", "--parsable", *words, cwd=site.folder)
    assert site.wait_over(other) == "COMPLETED"
    site.wait_completed(submitted["job"])
    assert kinds(submitted["run"]).count("resumed") == 1
    assert np.array_equal(final_x(submitted["run"]), site.virtual_x(job, 3))


@BOTH
def test_a_cancelled_job_can_be_resumed_and_leaves_no_process(site: Site, command: Path) -> None:
    job, words = site.drawn(100_000), (*FOUR, "--out", "mine.h5")
    submitted = site.submit(job, *words, command=command)
    site.wait_beyond(submitted["run"], 10)
    site.slurm.ask("scancel", str(submitted["job"]))
    assert site.wait_over(submitted["job"]) == "CANCELLED", site.story(submitted["job"])
    site.check_no_process_left()
    if command == MPICH:  # Open MPI's mpirun may be quicker to kill its ranks than the manager to save
        assert kinds(submitted["run"])[-1] == "ended"
    time.sleep(8)  # longer than it takes Slurm to start a requeued job
    assert site.state(submitted["job"]) == "CANCELLED"
    assert site.status("mine.h5")[0]["state"] == "stopped"
    few_more = ("--set", f"stop.rounds={rounds_of(site.folder / 'mine.h5') + 10}")
    again = site.submit(job, *words, *few_more, "--resume", command=command)
    site.wait_completed(again["job"])
    assert np.array_equal(final_x(again["run"]), site.virtual_x(job, 3, *few_more))


def test_a_stopped_run_is_saved_and_not_requeued(site: Site) -> None:
    submitted = site.submit(site.drawn(100_000), *FOUR)
    site.wait_beyond(submitted["run"], 10)
    printed = site.ata("status")
    line = r"^job-\S+ +\d+ +running +\d+ of 100,000 +[\d.]+ rounds/s +\d+ (h|min) .*\d$"
    assert re.search(line, printed, re.MULTILINE), printed
    site.ata("stop", submitted["job"])
    assert site.wait_over(submitted["job"]) == "FAILED", site.story(submitted["job"])
    assert site.slurm.job(submitted["job"])["ExitCode"] == "85:0"
    assert site.state_of(submitted["run"]) == ("stopped", 1), site.log(submitted)
    assert kinds(submitted["run"])[-1] == "ended"


def test_a_suspended_run_is_reported_as_such_and_can_be_stopped(site: Site) -> None:
    submitted = site.submit(site.drawn(100_000), *FOUR)
    site.wait_beyond(submitted["run"], 10)
    site.slurm.ask("scontrol", "suspend", str(submitted["job"]))
    assert site.state_of(submitted["run"]) == ("suspended", 1)
    site.ata("stop", submitted["job"])
    assert site.state_of(submitted["run"]) == ("suspended", 1)
    site.slurm.ask("scontrol", "resume", str(submitted["job"]))
    assert site.wait_over(submitted["job"]) == "FAILED", site.story(submitted["job"])
    assert site.state_of(submitted["run"]) == ("stopped", 1), site.log(submitted)
    assert kinds(submitted["run"])[-1] == "ended"


def test_a_pending_run_that_is_stopped_leaves_the_queue(site: Site) -> None:
    printed = site.ata("submit", site.drawn(10), *FOUR, "--sbatch", "--hold", "--chain", 2)
    assert "submitted  Slurm job 1 and 1 that continue it" in re.sub(r"job \d+", "job 1", printed)
    (first,) = re.findall(r"^watch it   mpi-ata status (\d+)$", printed, re.MULTILINE)
    site.ata("stop", first)
    assert [site.wait_over(id) for id in (first, int(first) + 1)] == ["CANCELLED", "CANCELLED"]
    assert site.status(int(first) + 1)[0]["state"] == "stopped"


def test_a_run_moves_away_from_a_node_that_goes_down(site: Site) -> None:
    job = site.drawn(250)
    submitted = site.submit(job, *size(3))
    site.wait_beyond(submitted["run"], 10)
    id = str(submitted["job"])
    lost = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(id)["NodeList"]).split()[-1]
    site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    try:
        site.wait_requeued(id)
        site.wait_completed(id)
    finally:
        site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=RESUME")
    assert np.array_equal(final_x(submitted["run"]), site.virtual_x(job, 2))
    assert lost not in hosts(submitted["run"])
    assert kinds(submitted["run"]).count("resumed") == 1


@BOTH
def test_a_run_survives_a_dead_node_and_keeps_the_speeds_of_the_others(
    fresh_slurm: PrivateSlurm, tmp_path: Path, command: Path
) -> None:
    site = Site(fresh_slurm, tmp_path)
    job = site.measured(250)
    submitted = site.submit(job, *size(3), command=command)
    site.wait_beyond(submitted["run"], 10)
    site.slurm.kill_node("n3")
    site.wait_completed(submitted["job"])
    found = record(submitted["run"])
    assert found.summary["rounds"] == 250
    if "resumed" not in kinds(submitted["run"]):  # it was done before Slurm noticed that the node is down
        (lost,) = [event for event in found.events if event.kind == "lost"]
        assert found.identities[lost.worker].host == "n3"
        assert found.summary["tasks_used"] == 250 * 6
        return
    assert {*hosts(submitted["run"])} == {"n2", "n4"}
    assert kinds(submitted["run"]).count("resumed") == 1
    (text,) = [event.text for event in found.events if event.kind == "warm-started"]
    assert "1 of 2 workers recognised, 1 starts from others with the same hardware" in text


def test_starts_without_progress_come_to_an_end(site: Site) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, MPI_ATA_LAUNCHER="false")
    assert site.wait_over(submitted["job"], 200) == "FAILED"
    assert site.state_of(submitted["job"]) == ("failed", 3)
    assert "3 starts in a row got no further than round 0" in site.status(submitted["job"])[0]["why"]
