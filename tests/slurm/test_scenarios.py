"""Jobs on a real Slurm of several nodes, through everything that happens to jobs there."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.private import PrivateSlurm, until
from tests.slurm.site import MPICH, OPEN_MPI, ROOT, Site, kinds, record, retried, rounds_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(slurm: PrivateSlurm, tmp_path: Path) -> Site:
    return Site(slurm, tmp_path)


FOUR = ("--nodes", 4, "--ntasks-per-node", 1, "--time", 10)


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_a_job_runs_on_four_nodes_to_its_end(site: Site, command: Path) -> None:
    job = site.drawn(60)
    submitted = site.submit(job, *FOUR, command=command)
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert np.array_equal(found.method["x"], site.virtual_x(job, 3))
    assert len({place.host for place in found.places}) == 3
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["rounds"], row["of_rounds"], row["starts"]) == ("finished", 60, 60, 1), (
        site.log(submitted)
    )
    assert 0 < row["worker_hours"] < row["billed_core_hours"]


def test_editing_files_while_queued_changes_nothing(site: Site) -> None:
    job = site.measured(20)
    submitted = site.submit(job, *FOUR, "--sbatch", "--hold", "--out", site.folder / "kept.h5")
    for path in (job, site.folder / "own.py", site.folder / "neighbour.py"):
        path.write_text("this is neither TOML nor Python")
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["why"]) == ("queued", "JobHeldUser")
    site.slurm.ask("scontrol", "release", str(submitted["job"]))
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    assert rounds_of(site.folder / "kept.h5") == 20


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_a_signal_saves_requeues_and_resumes_to_the_same_x(site: Site, command: Path) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, command=command)
    id = str(submitted["job"])
    site.beyond(submitted["run"], 10)
    # What a time limit sends to the script, or preemption to all ranks at some sites.
    site.slurm.ask("scancel", *(["--signal=TERM"] if command == MPICH else ["--batch", "--signal=USR1"]), id)
    until(lambda: site.slurm.job(id)["Restarts"] == "1", 60, lambda: site.story(id))
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


def test_a_cancelled_job_leaves_a_file_to_go_on_from_and_no_process(site: Site) -> None:
    job = site.drawn(300)
    submitted = site.submit(job, *FOUR, "--out", "mine.h5", command=MPICH)
    site.beyond(submitted["run"], 10)
    site.slurm.ask("scancel", str(submitted["job"]))
    assert site.over(submitted["job"]) == "CANCELLED", site.story(submitted["job"])
    at = rounds_of(site.folder / "mine.h5")
    assert 10 < at < 300
    assert kinds(submitted["run"])[-1] == "ended"  # saved when it was told, not only the last time before
    retried(lambda: no_process(site))
    time.sleep(8)  # longer than it takes Slurm to start a requeued job
    assert site.state(submitted["job"]) == "CANCELLED"
    assert site.status("mine.h5")[0]["state"] == "unfinished"
    again = site.submit(job, *FOUR, "--out", "mine.h5", "--resume")
    assert site.over(again["job"]) == "COMPLETED", site.story(again["job"])
    assert record(again["run"]).summary["rounds"] == 300


def no_process(site: Site) -> None:
    assert site.slurm.processes(str(site.folder)) == []


def test_a_stopped_run_is_saved_and_not_started_again(site: Site) -> None:
    submitted = site.submit(site.drawn(100_000), *FOUR)
    site.beyond(submitted["run"], 10)
    site.ata("stop", submitted["job"])
    assert site.over(submitted["job"]) == "FAILED", site.story(submitted["job"])
    assert site.slurm.job(str(submitted["job"]))["ExitCode"] == "85:0"
    (row,) = site.status(submitted["run"])
    assert (row["state"], row["starts"]) == ("stopped", 1), site.log(submitted)
    assert kinds(submitted["run"])[-1] == "ended"
    retried(lambda: no_process(site))


def test_a_waiting_run_that_is_stopped_leaves_the_queue(site: Site) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, "--sbatch", "--hold", "--chain", 2)
    assert len(submitted["jobs"]) == 2
    site.ata("stop", submitted["job"])
    assert [site.over(id) for id in submitted["jobs"]] == ["CANCELLED", "CANCELLED"]
    assert site.status(submitted["jobs"][1])[0]["state"] == "stopped"


def test_a_node_that_goes_down_is_left_behind(site: Site) -> None:
    job = site.drawn(400)
    submitted = site.submit(job, "--nodes", 3, "--ntasks-per-node", 1, "--time", 10)
    site.beyond(submitted["run"], 10)
    id = str(submitted["job"])
    lost = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(id)["NodeList"]).split()[-1]
    site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    try:
        until(lambda: site.slurm.job(id)["Restarts"] == "1", 60, lambda: site.story(id))
        assert site.over(id) == "COMPLETED", site.story(id)
    finally:
        site.slurm.ask("scontrol", "update", f"NodeName={lost}", "State=RESUME")
    found = record(submitted["run"])
    assert np.array_equal(found.method["x"], site.virtual_x(job, 2))
    assert lost not in {place.host for place in found.places}
    assert kinds(submitted["run"]).count("resumed") == 1


def test_a_node_that_dies_is_survived_and_what_was_learned_of_the_others_is_kept(
    fresh_slurm: PrivateSlurm, tmp_path: Path
) -> None:
    site = Site(fresh_slurm, tmp_path)
    job = site.measured(250)
    submitted = site.submit(job, "--nodes", 3, "--ntasks-per-node", 1, "--time", 10)
    site.beyond(submitted["run"], 10)
    site.slurm.kill_node("n3")
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert {place.host for place in found.places} == {"n2", "n4"}
    assert found.summary["rounds"] == 250
    assert kinds(submitted["run"]).count("resumed") == 1
    (text,) = [event.text for event in found.events if event.kind == "warm-started"]
    assert "1 of 2 workers recognised, 1 starts from others with the same hardware" in text


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


def test_a_sweep_has_a_run_for_each_value_and_later_ones_learn_from_earlier_ones(site: Site) -> None:
    job = site.measured(15)
    words = ["--array", "method.step_size=0.1,0.2,0.3", "--at-once", 1, "--out", "sweep.h5"]
    submitted = site.submit(job, "--nodes", 2, "--ntasks-per-node", 2, "--time", 10, *words)
    id = submitted["job"]
    until(lambda: all(rounds_of(Path(run)) == 15 for run in submitted["runs"]), 200, lambda: site.story(id))
    assert [site.over(f"{id}_{number}") for number in range(3)] == ["COMPLETED"] * 3
    assert [row["state"] for row in site.status(id)] == ["finished"] * 3
    settings = [record(run).job.settings for run in submitted["runs"]]
    assert settings == [(f"method.step_size={value}",) for value in ("0.1", "0.2", "0.3")]
    assert ["warm-started" in kinds(run) for run in submitted["runs"]] == [False, True, True]
    assert [row["job"] for row in site.status(id)] == [f"{id}_{number}" for number in range(3)]


def test_a_chain_goes_on_from_job_to_job_and_ends_when_the_run_does(site: Site) -> None:
    job = site.drawn(250)
    submitted = site.submit(job, *FOUR, "--chain", 3)
    first, second, third = submitted["jobs"]
    site.beyond(submitted["run"], 10)
    site.slurm.ask("scancel", "--batch", "--signal=USR1", str(first))
    assert site.over(first) == "FAILED"
    assert site.over(second) == "COMPLETED", site.story(second)
    assert site.over(third) == "CANCELLED"
    assert site.slurm.job(str(first))["Restarts"] == "0"
    assert np.array_equal(record(submitted["run"]).method["x"], site.virtual_x(job, 3))
    assert site.status(second)[0]["state"] == "finished"


def test_a_warm_start_recognises_the_hosts_that_come_back(site: Site) -> None:
    job = site.measured(15)
    words = ["--ntasks-per-node", 2, "--time", 10]
    first = site.submit(job, "--nodes", 2, *words, "--sbatch", "--nodelist=n1,n2", "--out", "a.h5")
    assert site.over(first["job"]) == "COMPLETED", site.story(first["job"])
    second = site.submit(
        job, "--nodes", 2, *words, "--sbatch", "--nodelist=n2,n3", "--out", "b.h5", "--warm-start", "a.h5"
    )
    assert site.over(second["job"]) == "COMPLETED", site.story(second["job"])
    assert [(place.host, place.slot) for place in record(first["run"]).places] == [
        ("n1", 1),
        ("n2", 0),
        ("n2", 1),
    ]
    assert [(place.host, place.slot) for place in record(second["run"]).places] == [
        ("n2", 1),
        ("n3", 0),
        ("n3", 1),
    ]
    (text,) = [event.text for event in record(second["run"]).events if event.kind == "warm-started"]
    assert "1 of 3 workers recognised, 2 start from others with the same hardware" in text


def test_a_launcher_that_does_not_fit_is_explained_and_not_tried_again(site: Site) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, command=MPICH, MPI_ATA_LAUNCHER="srun --mpi=none")
    assert site.over(submitted["job"]) == "FAILED"
    (row,) = site.status(submitted["job"])
    assert row["state"] == "failed"
    assert "srun started 4 tasks, but each is an MPI world of its own" in row["why"]
    assert "--mpi=pmi2" in row["why"]
    assert row["starts"] == 1


def test_a_run_that_cannot_go_on_says_why_and_is_not_tried_again(site: Site) -> None:
    submitted = site.submit(site.drawn(1000), *FOUR, "--set", "method.step_size=1e200")
    assert site.over(submitted["job"]) == "FAILED"
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["starts"]) == ("failed", 1)
    assert "try a smaller step_size" in row["why"]


def test_starts_that_lead_nowhere_come_to_an_end(site: Site) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, MPI_ATA_LAUNCHER="false")
    assert site.over(submitted["job"], 200) == "FAILED"
    (row,) = site.status(submitted["job"])
    assert row["starts"] == 3
    assert row["state"] == "failed"
    assert "3 starts in a row got no further than round 0" in row["why"]


def test_the_script_for_use_by_hand_works(site: Site) -> None:
    job = site.drawn(40)
    words = ["--nodes=2", "--ntasks-per-node=2", str(ROOT / "slurm" / "run.sbatch"), str(job)]
    path = f"{OPEN_MPI.parent}:{site.slurm.environment()['PATH']}"
    done = site.slurm.run(
        "sbatch", "--parsable", *words, "--set", "stop.rounds=30", cwd=site.folder, PATH=path
    )
    assert done.returncode == 0, done.stderr
    id = done.stdout.strip()
    assert site.over(id) == "COMPLETED", site.story(id)
    assert rounds_of(site.folder / "runs" / f"job-{id}.h5") == 30
    assert json.loads(site.ata("status", id, "--json"))[0]["state"] == "finished"


DEVICES = """
import os
import numpy as np
from pathlib import Path

class Own:
    x0 = np.ones(3)

    def setup(self, worker, n):
        text = f"{os.environ['SLURMD_NODENAME']} {os.environ['CUDA_VISIBLE_DEVICES']}".strip()
        Path(f"seen-{worker}").write_text(text)

    def gradient(self, x, task):
        return x
"""


@pytest.mark.parametrize(
    ("command", "options"),
    [(MPICH, ["--gpus-per-task", 1]), (OPEN_MPI, ["--sbatch", "--gpus-per-node=2"])],
    ids=["divided-by-slurm", "divided-by-us"],
)
def test_each_worker_has_a_gpu_of_its_own_and_the_manager_none(
    site: Site, command: Path, options: list[object]
) -> None:
    job = site.measured(3)
    job.write_text(job.read_text().replace("seconds = 0.01\n", ""))
    (site.folder / "own.py").write_text(DEVICES)
    words = ["--nodes", 2, "--ntasks-per-node", 2, "--time", 10, "--sbatch", "--nodelist=n1,n2"]
    submitted = site.submit(job, *words, *options, command=command)
    assert site.over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    seen = {path.name: path.read_text() for path in site.folder.glob("seen-*")}
    assert seen == {"seen-None": "n1", "seen-0": "n1 1", "seen-1": "n2 0", "seen-2": "n2 1"}


def test_fewer_ranks_than_slurm_has_given_are_noticed(site: Site) -> None:
    job = site.drawn(5)
    words = ["--nodes=2", "--ntasks-per-node=2", "--output=log.out", "--wrap"]
    id = site.slurm.ask("sbatch", "--parsable", *words, f"{OPEN_MPI} run {job} --workers 1", cwd=site.folder)
    assert site.over(id) == "COMPLETED", site.story(id)
    log = (site.folder / "log.out").read_text()
    assert "Slurm has given 4 tasks to this job, but 2 ranks were started" in log


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_the_doctor_looks_at_the_nodes_and_leaves_nothing_behind(site: Site, command: Path) -> None:
    words = ["--nodes=2", "--ntasks-per-node=2", "--time=5"]
    done = site.slurm.run("salloc", *words, command, "doctor", cwd=site.folder)
    assert done.returncode == 0, done.stdout
    assert "two ranks, 3 rounds, the right figures" in done.stdout
    assert list(site.folder.iterdir()) == []
