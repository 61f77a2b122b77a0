"""Jobs on a real Slurm of several nodes, from submission to their end."""

import json
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.conftest import missing
from tests.slurm.private import paths
from tests.slurm.site import BOTH, FOUR, MPICH, OPEN_MPI, ROOT, SYSTEM, Site, kinds, record, rounds_of

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH, SYSTEM], ids=["openmpi", "mpich", "system"])
def test_a_job_runs_on_four_nodes_to_its_end(site: Site, command: Path) -> None:
    if command == SYSTEM and not (SYSTEM.exists() and shutil.which("mpirun", path=paths())):
        missing("the system has no MPI: apt-get install openmpi-bin && make system-mpi")
    job, large = site.drawn(20), ("--set", "problem.dimension=100_000")
    sent = site.slurm.traffic()
    submitted = site.submit(job, *FOUR, "--cpus-per-task", 2, *large, command=command)
    assert site.wait_over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert np.array_equal(found.method["x"], site.virtual_x(job, 3, *large))
    nodes = site.slurm.ask("scontrol", "show", "hostnames", site.slurm.job(submitted["job"])["NodeList"])
    assert [worker.host for worker in found.identities] == nodes.split()[1:]  # the manager is on the first
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
    assert site.wait_over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
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
    assert site.wait_over(id) == "COMPLETED", site.story(id)
    assert rounds_of(run) == 140
    assert kinds(run).count("resumed") == 1
    assert np.array_equal(record(run).method["x"], site.virtual_x(job, 3, *fewer))
    (row,) = site.status(id)
    assert (row["state"], row["starts"]) == ("finished", 2)


GREETING = """
import os
import numpy as np
from pathlib import Path

class Own:
    x0 = np.ones(3)

    def setup(self, worker, n):
        Path(f"greeted-{worker}").write_text(os.environ["GREETING"])

    def gradient(self, x, task):
        return x
"""


@BOTH
def test_a_sourced_file_sets_up_the_environment_if_slurm_passes_on_none(site: Site, command: Path) -> None:
    job = site.own(GREETING)
    lines = {"GREETING": "it's me", **site.slurm.environment()}
    file = site.folder / "env.sh"
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items()))
    words = ["--nodes", 2, "--ntasks-per-node", 1, "--time", 10, "--source", file]
    submitted = site.submit(job, *words, "--no-check", "--sbatch", "--export=NONE", command=command)
    file.write_text("exit 1")
    assert site.wait_over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    assert {path.name: path.read_text() for path in site.folder.glob("greeted-*")} == {
        "greeted-None": "it's me",
        "greeted-0": "it's me",
    }


def test_jobs_submitted_in_the_same_second_have_their_own_files(site: Site) -> None:
    job = site.drawn(10)
    with ThreadPoolExecutor() as at_once:
        futures = [at_once.submit(site.submit, job, *FOUR, "--sbatch", "--hold") for _ in range(6)]
    found = [each.result() for each in futures]
    for name in ("job", "run", "log"):
        assert len({each[name] for each in found}) == 6, found
    assert {row["state"] for each in found for row in site.status(each["run"])} == {"queued"}


def test_a_job_that_slurm_rejects_is_reported_and_leaves_nothing_behind(site: Site) -> None:
    job = site.drawn(10)
    printed = site.ata("submit", job, *FOUR, "--partition", "nowhere", "--chain", 2, code=2)
    assert printed.splitlines() == [
        "Error: Slurm rejected the job: Batch job submission failed: Invalid partition name specified"
    ]
    assert [path for path in site.folder.rglob("*") if path.is_file()] == [job]
    assert site.slurm.ask("squeue", "--noheader") == ""


@pytest.mark.parametrize(
    ("command", "wrong"), [(MPICH, "none"), (OPEN_MPI, "pmi2")], ids=["mpich-none", "openmpi-pmi2"]
)
def test_a_wrong_launcher_is_explained_and_not_retried(site: Site, command: Path, wrong: str) -> None:
    submitted = site.submit(site.drawn(10), *FOUR, command=command, MPI_ATA_LAUNCHER=f"srun --mpi={wrong}")
    assert site.wait_over(submitted["job"]) == "FAILED"
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["starts"]) == ("failed", 1)
    assert "srun started 4 tasks, but each is an MPI world of its own" in row["why"]
    assert "use srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or mpirun" in row["why"]


def test_a_failed_run_says_why_and_is_not_retried(site: Site) -> None:
    submitted = site.submit(site.drawn(1000), *FOUR, "--set", "method.step_size=1e200", "--chain", 2)
    assert [site.wait_over(job) for job in submitted["jobs"]] == ["FAILED", "CANCELLED"]
    (row,) = site.status(submitted["job"])
    assert (row["state"], row["starts"]) == ("failed", 1)
    assert "try a smaller step_size" in row["why"]


def test_a_note_says_when_fewer_ranks_run_than_slurm_allocated(site: Site) -> None:
    job = site.drawn(5)
    words = ["--nodes=2", "--ntasks-per-node=2", "--output=log.out", "--wrap"]
    id = site.slurm.ask("sbatch", "--parsable", *words, f"{OPEN_MPI} run {job} --workers 1", cwd=site.folder)
    assert site.wait_over(id) == "COMPLETED", site.story(id)
    log = (site.folder / "log.out").read_text()
    assert "Slurm has given 4 tasks to this job, but 2 ranks were started" in log


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
    ids=["assigned-by-slurm", "assigned-by-mpi-ata"],
)
def test_each_worker_has_a_gpu_of_its_own_and_the_manager_none(
    site: Site, command: Path, options: list[object]
) -> None:
    job = site.own(DEVICES)
    words = ["--nodes", 2, "--ntasks-per-node", 2, "--time", 10, "--sbatch", "--nodelist=n1,n2"]
    submitted = site.submit(job, *words, *options, command=command)
    assert site.wait_over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    seen = {path.name: path.read_text() for path in site.folder.glob("seen-*")}
    assert seen == {"seen-None": "n1", "seen-0": "n1 1", "seen-1": "n2 0", "seen-2": "n2 1"}


@BOTH
def test_the_doctor_checks_the_nodes_and_leaves_nothing_behind(site: Site, command: Path) -> None:
    words = ["--nodes=2", "--ntasks-per-node=2", "--time=5"]
    done = site.slurm.run("salloc", *words, command, "doctor", cwd=site.folder)
    assert done.returncode == 0, done.stdout
    assert "two ranks, 3 rounds, correct results" in done.stdout
    assert list(site.folder.iterdir()) == []
