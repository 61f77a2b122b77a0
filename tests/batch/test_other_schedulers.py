"""PBS and Flux: the text of their batch scripts, what their commands print, and scripts that run as they are.

Neither can be installed here.  Stand-ins on PATH print what the manuals say; no job of either was ever run.
"""

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.batch import flux, pbs, slurm
from mpi_ata.batch.interface import Resources, Scheduler, Script, scheduler
from mpi_ata.batch.submit import script_text
from mpi_ata.errors import UsageError
from mpi_ata.launch import find_mpirun
from mpi_ata.runfile.load import load
from tests.cli.commands import JOB, call

FOUR = Resources(nodes=4, ntasks_per_node=8, time="02:00:00", partition="main", account="me", cpus_per_task=2)
SCRIPT = Script("job", FOUR, Path("/w d"), Path("/logs/slurm"), ("true",))
PBS, FLUX = pbs.PBS(), flux.Flux()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin outside all batch jobs, and restore PATH after each test."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "PBS_NODEFILE", "FLUX_URI", "NCPUS", "MPI_ATA_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    flux.batch_id.cache_clear()


def stand_in(command: str, body: str) -> None:
    """Put a command on PATH that writes down its arguments and does this."""
    here = Path("bin").absolute()
    here.mkdir(exist_ok=True)
    (here / command).write_text(f'#!/bin/sh\necho "{command} $*" >> {here}/asked\n{body}\n')
    (here / command).chmod(0o755)
    os.environ["PATH"] = f"{here}:{os.environ['PATH']}"


def asked() -> list[str]:
    return Path("bin/asked").read_text().splitlines()


def test_the_scheduler_is_the_one_named_that_of_this_job_or_the_one_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert scheduler().NAME == "Slurm"
    stand_in("pbsnodes", "true")
    assert scheduler().NAME == "PBS"
    monkeypatch.setenv("FLUX_URI", "local:///run/flux")
    assert scheduler().NAME == "Flux"
    monkeypatch.setenv("MPI_ATA_SCHEDULER", "slurm")
    assert scheduler() is slurm
    monkeypatch.setenv("MPI_ATA_SCHEDULER", "lsf")
    with pytest.raises(UsageError, match="MPI_ATA_SCHEDULER=lsf must be one of slurm, pbs, flux"):
        scheduler()


def test_the_script_begins_with_the_options_of_qsub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI_ATA_SCHEDULER", "pbs")
    more = replace(
        SCRIPT, resources=replace(FOUR, more=("-l place=scatter",)), members=(("a",), ("b",)), at_once=1
    )
    assert script_text(more).splitlines()[1:14] == [
        "#PBS -N job",
        "#PBS -V",
        "#PBS -j oe",
        "#PBS -o /dev/null",
        "#PBS -r y",
        "#PBS -l select=4:ncpus=16:mpiprocs=8",
        "#PBS -l walltime=02:00:00",
        "#PBS -q main",
        "#PBS -A me",
        "#PBS -J 0-1%1",
        "#PBS -l place=scatter",
        "cd '/w d' || exit 1",
        'exec >>/logs/slurm-"${PBS_JOBID%%.*}.out" 2>&1',
    ]
    assert 'case "${PBS_ARRAY_INDEX:?}" in' in script_text(more)
    with pytest.raises(UsageError, match="conflicts with the batch script"):
        PBS.check_resources(Resources(more=("-J 0-3",)))


@pytest.mark.parametrize(
    ("resources", "chunks"),
    [
        (Resources(ntasks=9, nodes=2), "1:ncpus=5:mpiprocs=5+1:ncpus=4:mpiprocs=4"),
        (Resources(ntasks=5, gpus_per_task="a100:2"), "5:ncpus=1:mpiprocs=1:ngpus=2"),
        (Resources(ntasks=8, ntasks_per_node=4), "2:ncpus=4:mpiprocs=4"),
    ],
)
def test_ranks_are_divided_into_chunks(resources: Resources, chunks: str) -> None:
    assert pbs.select(resources) == chunks


def test_the_script_begins_with_the_options_of_flux_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI_ATA_SCHEDULER", "flux")
    text = script_text(replace(SCRIPT, resources=replace(FOUR, time="2h", account="us")))
    options = [line.removeprefix("# flux: ") for line in text.splitlines() if line.startswith("# flux: ")]
    assert {"--nodes=4", "--nslots=32", "--cores-per-slot=2", "--time-limit=2h", "--queue=main"} < {*options}
    assert {"--bank=us", "--job-name=job"} < {*options}
    assert "\nexport MPI_ATA_TASKS=32\n" in text
    with pytest.raises(UsageError, match="no arrays: use --shared"):
        script_text(replace(SCRIPT, members=(("a",), ("b",))))


@pytest.mark.parametrize(
    ("system", "text", "seconds"),
    [
        (PBS, "02:00:30", 7230),
        (PBS, "90", 5400),
        (PBS, "1-12", None),
        (FLUX, "30", 1800),
        (FLUX, "1.5h", 5400),
    ],
)
def test_durations_are_parsed_as_the_scheduler_does(
    system: Scheduler, text: str, seconds: float | None
) -> None:
    assert system.parse_duration(text) == seconds


def test_a_time_that_is_a_mere_number_is_minutes_on_pbs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI_ATA_SCHEDULER", "pbs")
    text = script_text(replace(SCRIPT, resources=replace(FOUR, time="90")))
    assert "#PBS -l walltime=01:30:00\n" in text


def qstat(**fields: object) -> None:
    """Let qstat know of a job."""
    known: dict[str, object] = {
        "job_state": "R",
        "Resource_List": {"walltime": "01:00:00"},
        "exec_host": "n1/0*4+n2/0*4",
    }
    known |= {"Submit_arguments": "-W depend=afterany:8 /runs/a.job/batch.sh", **fields}
    text = json.dumps({"Jobs": {"12[].host": {"job_state": "B"}, "12[3].host": known}})
    stand_in("qstat", f"cat <<'EOF'\n{text}\nEOF")


def test_the_output_of_qstat_is_parsed() -> None:
    began = time.time() - 600
    qstat(stime=time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(began)))
    (job,) = PBS.jobs("12[]")
    assert (job.id, job.phase, job.nodes, job.script) == (
        "12[3]",
        "running",
        "n1,n2",
        Path("/runs/a.job/batch.sh"),
    )
    assert job.time_left == pytest.approx(3000, abs=5)
    assert (PBS.array_id(job.id), PBS.member_id("12[]", 3), PBS.members(job.id)) == ("12[]", "12[3]", [3])
    assert (job.timed_out, job.cancelled) == (False, False)
    qstat(job_state="E", stime=time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(began - 3600)))
    assert PBS.jobs("12[]")[0].timed_out
    stand_in("qstat", "echo 'qstat: Unknown Job Id 12.host' >&2; exit 153")
    assert PBS.jobs("12") == []


def test_where_only_operators_may_requeue_the_script_is_submitted_again() -> None:
    stand_in("qrerun", "true")
    assert PBS.requeue("12", Path("/s.sh")) == ("12", "")
    stand_in("qrerun", "echo 'qrerun: Unauthorized Request 12.host' >&2; exit 159")
    stand_in("qsub", "echo 13.host")
    assert PBS.requeue("12", Path("/s.sh")) == ("13", "")
    assert asked()[-1] == "qsub -W depend=afterany:12 /s.sh"
    assert PBS.requeue("12[3]", Path("/s.sh")).error == "Unauthorized Request 12.host"


FLUX_OUTSIDE = """
case "$*" in
  *"getattr jobid") echo fABC ;;
  *"getattr hostlist") echo localhost ;;
  "job id --to=dec fABC") echo 77 ;;
  "job id --to=dec fDEF") echo 78 ;;
  *"resource list"*) echo 6 ;;
  *batch" "*) echo fDEF ;;
  *" jobs "*) echo "77|RUN||{end}|3600.0|n[1-2]" ;;
  run*) shift 4; exec {mpirun} --oversubscribe "$@" ;;
esac
"""


def test_the_output_of_flux_is_parsed_and_a_run_is_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("flux", FLUX_OUTSIDE.replace("{end}", str(time.time() + 100)))
    monkeypatch.setenv("FLUX_URI", "local:///run/flux")
    monkeypatch.setenv("MPI_ATA_TASKS", "3")
    assert FLUX.inside()[:5] == ("77", 0, "localhost", 6, 3)
    (job,) = FLUX.jobs("77")
    assert (job.id, job.phase, job.nodes, job.time_limit) == ("77", "running", "n[1-2]", 3600.0)
    assert job.time_left == pytest.approx(100, abs=5)
    assert FLUX.requeue("77", Path("/s.sh")) == ("78", "")
    assert "flux --parent batch --dependency=afterany:77 /s.sh" in asked()


@pytest.mark.parametrize("system", ["pbs", "flux"])
def test_a_script_runs_as_it_is_on_the_ranks_of_its_job(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is a stand-in that starts the script; script, launcher, ranks and log are real."""
    monkeypatch.setenv("MPI_ATA_SCHEDULER", system)
    Path("job.toml").write_text(
        JOB.replace("rounds = 50", "rounds = 5").replace("[times]", "[times]\nunit = 1e-5")
    )
    Path("nodes").write_text("localhost\n" * 3)
    environment = {"PBS_JOBID": "77.host", "PBS_NODEFILE": str(Path("nodes").absolute()), "NCPUS": "6"}
    if system == "flux":
        environment = {"FLUX_URI": "local:///run/flux"}
        stand_in("flux", FLUX_OUTSIDE.replace("{mpirun}", find_mpirun()))
    stand_in("qsub", "echo 77.host")
    stand_in("qstat", "echo 'Unknown Job Id' >&2; exit 153")
    words = ("--ntasks", "3", "--set=run.workers=2", "--out", "run.h5", "--json")
    result = call("submit", "job.toml", *words)
    if system == "flux":  # the id that a submission from outside prints
        assert json.loads(result.stdout)["job"] == 78
    log = Path(f"run.job/slurm-{77}.out")
    done = subprocess.run(["bash", "run.job/batch.sh"], env=os.environ | environment, timeout=60)
    assert done.returncode == 0, log.read_text()
    assert load("run.h5").summary["rounds"] == 5
    assert "finished after 5 rounds" in log.read_text()
