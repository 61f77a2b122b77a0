"""Jobs on a real Slurm of several nodes, from submission to their end; also several that belong together."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.conftest import missing
from tests.slurm.private import CORES, ROOT, paths, until
from tests.slurm.site import (
    BOTH,
    FOUR,
    MPICH,
    OPEN_MPI,
    SYSTEM,
    Site,
    final_x,
    hosts,
    kinds,
    record,
    rounds_of,
    size,
)

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH, SYSTEM], ids=["openmpi", "mpich", "system"])
def test_a_job_runs_on_four_nodes_to_its_end(site: Site, command: Path) -> None:
    if command == SYSTEM and not (SYSTEM.exists() and shutil.which("mpirun", path=paths())):
        missing("the system has no MPI: apt-get install openmpi-bin && make system-mpi")
    job, large = site.drawn(20), ("--set", "problem.dimension=100_000")
    sent = site.slurm.traffic()
    submitted = site.complete(job, *FOUR, "--cpus-per-task", 2, *large, command=command)
    found = record(submitted["run"])
    assert np.array_equal(found.method["x"], site.virtual_x(job, 3, *large))
    nodes = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(submitted["job"])["NodeList"])
    assert hosts(submitted["run"]) == nodes.split()[1:]  # the manager is on the first
    assert site.slurm.traffic() - sent > 20 * 2 * found.method["x"].nbytes
    assert "cannot be rung" not in site.log(submitted)
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["rounds"], row["of_rounds"], row["starts"]) == ("finished", 20, 20, 1)
    assert 0 < row["worker_hours"] < row["billed_core_hours"]
    assert found.summary["billed"] == pytest.approx(2 * 4 * found.summary["elapsed"], rel=0.01)
    assert found.slurm_jobs == (str(submitted["job"]),)


def test_editing_files_while_queued_changes_nothing(site: Site) -> None:
    job, words = site.measured(20), (*FOUR, "--sbatch", "--hold", "--out", site.folder / "mine.h5")
    promised = json.loads(site.ata("submit", job, *words, "--dry-run", "--json").splitlines()[-1])["script"]
    submitted = site.submit(job, *words)
    assert Path(submitted["script"]).read_text() == promised
    for path in (job, site.folder / "own.py", site.folder / "neighbour.py"):
        path.write_text("this is neither TOML nor Python")
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["why"]) == ("queued", "JobHeldUser")
    site.slurm.ask("scontrol", "release", str(submitted["job"]))
    site.wait_completed(submitted["job"])
    assert rounds_of(site.folder / "mine.h5") == 20


@BOTH
def test_the_example_script_works(site: Site, command: Path) -> None:
    job, script, fewer = site.drawn(200), ROOT / "slurm" / "run.sbatch", ("--set", "stop.rounds=140")
    words = ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2"]
    path = f"{command.parent}:{site.slurm.environment()['PATH']}"
    id = site.slurm.ask(*words, script, job, *fewer, cwd=site.folder, PATH=path)
    run = site.folder / "runs" / f"job-{id}.h5"
    site.wait_beyond(run, 5)
    site.slurm.ask("scancel", "--batch", f"--signal={'USR1' if command == MPICH else 'TERM'}", id)
    site.wait_completed(id)
    assert rounds_of(run) == 140
    assert kinds(run).count("resumed") == 1
    assert np.array_equal(final_x(run), site.virtual_x(job, 3, *fewer))
    assert site.state_of(id) == ("finished", 2)


@BOTH
def test_a_sourced_file_sets_up_the_environment_if_slurm_passes_on_none(site: Site, command: Path) -> None:
    job = site.own(setup='Path(f"greeted-{worker}").write_text(os.environ["GREETING"])')
    lines = {"GREETING": "it's me", **site.slurm.environment()}
    file = site.folder / "env.sh"
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items()))
    words = [*size(2), "--source", file, "--no-check", "--sbatch", "--export=NONE"]
    submitted = site.submit(job, *words, command=command)
    file.write_text("exit 1")
    site.wait_completed(submitted["job"])
    greeted = {path.name: path.read_text() for path in site.folder.glob("greeted-*")}
    assert greeted == {"greeted-None": "it's me", "greeted-0": "it's me"}


def test_a_job_that_slurm_rejects_is_reported_and_leaves_nothing_behind(site: Site) -> None:
    job = site.drawn(10)
    printed = site.ata("submit", job, *FOUR, "--partition", "nowhere", "--chain", 2, code=2)
    reason = "Batch job submission failed: Invalid partition name specified"
    assert printed == f"Error: Slurm rejected the job: {reason}\n"
    assert [path for path in site.folder.rglob("*") if path.is_file()] == [job]
    assert site.slurm.ask("squeue", "--noheader") == ""


def test_a_job_that_is_larger_than_the_cluster_is_reported_before_it_waits_for_ever(site: Site) -> None:
    job, sentence = site.drawn(10), "Slurm cannot start this job on any nodes as they are now (Requested node"
    for words in (["-n", 4000], ["--nodes", 6], ["-n", 4, "--cpus-per-task", 5]):
        (note,) = site.submit(job, *words, "--no-check", "--dry-run")["notes"]
        assert note.startswith(sentence)
    assert site.submit(job, *size(5, CORES), "--dry-run")["notes"] == []
    assert len(site.submit(job, "-n", 4000, "--no-check")["notes"]) == 1


@pytest.mark.parametrize(
    ("command", "wrong"), [(MPICH, "none"), (OPEN_MPI, "pmi2")], ids=["mpich-none", "openmpi-pmi2"]
)
def test_a_wrong_launcher_is_explained_and_not_retried(site: Site, command: Path, wrong: str) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, command=command, MPI_ATA_LAUNCHER=f"srun --mpi={wrong}")
    assert site.wait_over(submitted["job"]) == "FAILED"
    assert site.state_of(submitted["job"]) == ("failed", 1)
    (row,) = site.status(submitted["job"])
    assert "srun started 4 tasks, but each is an MPI world of its own" in row["why"]
    assert "use srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or mpirun" in row["why"]


def test_a_failed_run_says_why_and_is_not_retried(site: Site) -> None:
    submitted = site.submit(site.drawn(1000), *FOUR, "--set", "method.step_size=1e200", "--chain", 2)
    assert [site.wait_over(job) for job in submitted["jobs"]] == ["FAILED", "CANCELLED"]
    assert site.state_of(submitted["job"]) == ("failed", 1)
    assert "try a smaller step_size" in site.status(submitted["job"])[0]["why"]


def test_a_note_says_when_fewer_ranks_run_than_slurm_allocated(site: Site) -> None:
    job = site.drawn(5)
    words = ["--nodes=2", "--ntasks-per-node=2", "--output=log.out", "--wrap"]
    id = site.slurm.ask("sbatch", "--parsable", *words, f"{OPEN_MPI} run {job} --workers 1", cwd=site.folder)
    site.wait_completed(id)
    log = (site.folder / "log.out").read_text()
    assert "Slurm has given 4 tasks to this job, but 2 ranks were started" in log


DEVICES = """\
text = f"{os.environ['SLURMD_NODENAME']} {os.environ['CUDA_VISIBLE_DEVICES']}".strip()
Path(f"seen-{worker}").write_text(text)
"""


@pytest.mark.parametrize(
    ("command", "options"),
    [(MPICH, ["--gpus-per-task", 1]), (OPEN_MPI, ["--sbatch", "--gpus-per-node=2"])],
    ids=["assigned-by-slurm", "assigned-by-mpi-ata"],
)
def test_each_worker_has_a_gpu_of_its_own_and_the_manager_none(
    site: Site, command: Path, options: list[object]
) -> None:
    words = [site.own(setup=DEVICES), *size(2, 2), "--sbatch", "--nodelist=n1,n2"]
    site.complete(*words, *options, command=command)
    seen = {path.name: path.read_text() for path in site.folder.glob("seen-*")}
    assert seen == {"seen-None": "n1", "seen-0": "n1 1", "seen-1": "n2 0", "seen-2": "n2 1"}


@BOTH
def test_the_doctor_checks_the_nodes_and_leaves_nothing_behind(site: Site, command: Path) -> None:
    words = ["--nodes=2", "--ntasks-per-node=2", "--time=5"]
    done = site.slurm.run("salloc", *words, command, "doctor", cwd=site.folder)
    assert done.returncode == 0, done.stdout
    assert "two ranks, 3 rounds, correct results" in done.stdout
    assert list(site.folder.iterdir()) == []


def test_a_sweep_has_a_run_per_value_and_later_runs_warm_start_from_earlier_ones(site: Site) -> None:
    words = ["--array", "method.step_size=0.1,0.2,0.3", "--at-once", 1, "--out", "sweep.h5"]
    submitted = site.submit(site.measured(15), *size(2, 2), *words)
    first, second, third = (f"{submitted['job']}_{number}" for number in range(3))
    site.ata("stop", third)
    runs = [Path(run) for run in submitted["runs"]][:2]
    until(lambda: all(rounds_of(run) == 15 for run in runs), 200, lambda: site.story(submitted["job"]))
    assert site.wait_over(first) == site.wait_over(second) == "COMPLETED", site.story(second)
    assert site.slurm.ask("squeue", "--noheader") == ""
    states = [(row["job"], row["state"]) for row in site.status(submitted["job"])]
    assert states == [(first, "finished"), (second, "finished"), (third, "stopped")]
    settings = [record(run).job.settings for run in runs]
    assert settings == [("method.step_size=0.1",), ("method.step_size=0.2",)]
    assert ["warm-started" in kinds(run) for run in runs] == [False, True]


def test_a_chain_resumes_in_each_job_and_ends_with_the_run(site: Site) -> None:
    job = site.drawn(250)
    submitted = site.submit(job, *FOUR, "--chain", 3, "--signal", "USR2")
    first, second, third = submitted["jobs"]
    site.wait_beyond(submitted["run"], 10)
    site.slurm.ask("scancel", "--batch", "--signal=USR2", str(first))
    assert site.wait_over(first) == "FAILED"
    site.wait_completed(second)
    assert site.wait_over(third) == "CANCELLED"
    assert site.slurm.job(first)["Restarts"] == "0"
    assert np.array_equal(final_x(submitted["run"]), site.virtual_x(job, 3))
    assert site.status(second)[0]["state"] == "finished"


def test_a_warm_start_recognises_hosts_that_are_allocated_again(site: Site) -> None:
    words = [site.measured(15), *size(2, 2), "--sbatch"]
    first = site.complete(*words, "--nodelist=n1,n2", "--out", "a.h5")
    second = site.complete(*words, "--nodelist=n2,n3", "--out", "b.h5", "--warm-start", "a.h5")
    assert (hosts(first["run"]), hosts(second["run"])) == (["n1", "n2", "n2"], ["n2", "n3", "n3"])
    (text,) = [event.text for event in record(second["run"]).events if event.kind == "warm-started"]
    assert "1 of 3 workers recognised, 2 start from others with the same hardware" in text


@BOTH
def test_jobs_share_the_ranks_of_one_slurm_job_and_survive_its_requeueing(site: Site, command: Path) -> None:
    job, folder = site.drawn(140), site.folder / "sweep"
    words = ("--array", "run.seed=1,2,3", "--shared", "--out", folder)
    submitted = site.submit(job, *FOUR, *words, command=command)
    runs = [folder / f"{job.stem}-seed={seed}.h5" for seed in (1, 2, 3)]
    for run in runs:
        site.wait_beyond(run, 5)
    site.slurm.ask("scancel", "--batch", "--signal=TERM", str(submitted["job"]))
    site.wait_completed(submitted["job"])
    assert [rounds_of(run) for run in runs] == [140, 140, 140]
    assert all(kinds(run).count("resumed") == 1 for run in runs)
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["rounds"], row["of_rounds"], row["starts"]) == ("finished", 420, 420, 2)


def test_a_heterogeneous_job_runs_on_all_its_kinds_of_nodes_and_is_requeued_as_a_whole(site: Site) -> None:
    job, kinds_of_nodes = (
        site.drawn(300),
        ("--nodes", 1, "--ntasks", 1, "--and", "--nodes=2 --ntasks-per-node=2"),
    )
    found = site.submit(job, *kinds_of_nodes, "--time", 10, command=MPICH)
    site.wait_beyond(found["run"], 20)
    site.slurm.ask("scancel", "--batch", "--signal=USR1", str(found["job"]))
    site.wait_requeued(found["job"])
    site.wait_completed(found["job"])
    assert sorted(hosts(found["run"])) == ["n2", "n2", "n3", "n3"]
    assert np.array_equal(final_x(found["run"]), site.virtual_x(job, 4))
    (status,) = site.status(found["run"])
    assert (status["state"], status["starts"]) == ("finished", 2)
