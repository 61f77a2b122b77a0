"""What Slurm's options and commands mean, which launcher its jobs need, and what energy it has counted."""

import json
import os
import time
from pathlib import Path

import pytest

from mpi_ata.batch.interface import Resources
from mpi_ata.batch.slurm import (
    check_resources,
    choose_launcher,
    consumed_energy,
    inside,
    members,
    parse_duration,
    parse_job,
    parse_timestamp,
    placement,
    sbatch_args,
)
from mpi_ata.errors import UsageError
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from tests.cli.commands import JOB, call


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore PATH after each test."""
    monkeypatch.setenv("PATH", os.environ["PATH"])


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--signal=USR1@5", "--signal and --lead"),
        ("--array=0-3", "--array of mpi-ata submit"),
        ("-a 0-3", "--array of mpi-ata submit"),
        ("--wrap=id", "a job file"),
        ("--no-requeue", "--chain"),
        ("-o log.txt", "--out of mpi-ata submit"),
        ("--wait", "mpi-ata status"),
        ("--open-mode=truncate", "nothing"),
    ],
)
def test_options_that_the_script_sets_itself_are_rejected(option: str, instead: str) -> None:
    with pytest.raises(UsageError, match=f"use {instead}"):
        check_resources(Resources(more=(option,)))


@pytest.mark.parametrize("time", ["later", "1:2:3:4", "-5", "1h"])
def test_a_time_that_slurm_cannot_parse_is_rejected(time: str) -> None:
    with pytest.raises(UsageError, match="is not a Slurm time"):
        check_resources(Resources(time=time))


@pytest.mark.parametrize("resources", [Resources(ntasks=1), Resources(nodes=1, ntasks_per_node=1)])
def test_one_rank_is_rejected(resources: Resources) -> None:
    with pytest.raises(UsageError, match="a manager and a worker"):
        check_resources(resources)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("2-00:00:05", 172805),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_durations_are_parsed_as_slurm_does(text: str, expected: float | None) -> None:
    assert parse_duration(text) == expected


LINE = (
    "JobId=11 ArrayJobId=9 ArrayTaskId=3 JobName=to.sh UserId=me(1000) GroupId=me(1000) Priority=42 "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 "
    "RunTime=00:01:18 TimeLimit=1-00:05:00 StartTime=2026-11-16T03:49:29 EndTime=2026-11-16T03:54:29 "
    "Partition=main,long ExcNodeList=n7 NodeList=n[1-2] NumNodes=2 NumCPUs=8 NumTasks=8 "
    "Command=/home/my files/batch.sh WorkDir=/home/my files StdErr=/x"
)


def test_the_output_of_scontrol_is_parsed() -> None:
    job = parse_job(LINE)
    assert (job.id, job.state, job.phase) == ("9_3", "RUNNING", "running")
    assert (job.restarts, job.nodes, job.placement) == (2, "n[1-2]", (2, ("main", "long"), "n7"))
    assert (job.time_limit, job.script) == (86700.0, Path("/home/my files/batch.sh"))
    assert job.end_time == parse_timestamp("2026-11-16T03:54:29")
    assert parse_timestamp("Unknown") is None
    assert (job.timed_out, job.cancelled, job.preempted) == (False, False, False)


@pytest.mark.parametrize(
    ("old", "new", "timed_out", "cancelled"),
    [
        ("Reason=None", "Reason=TimeLimit", True, False),
        ("RunTime=00:01:18", "RunTime=1-00:05:01", True, False),
        ("Reason=None", "Reason=None", False, True),
        ("Restarts=2", "Restarts=3", False, True),
    ],
)
def test_a_job_that_slurm_ends_has_run_out_of_time_or_was_cancelled(
    old: str, new: str, timed_out: bool, cancelled: bool
) -> None:
    job = parse_job(LINE.replace("RUNNING", "COMPLETING").replace(old, new))
    assert (job.phase, job.timed_out, job.cancelled) == ("held", timed_out, cancelled)


def test_the_time_left_is_that_until_the_end_or_the_time_limit() -> None:
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 100))
    assert parse_job(LINE.replace("2026-11-16T03:54:29", end)).time_left == pytest.approx(100, abs=5)
    unknown = LINE.replace("2026-11-16T03:54:29", "Unknown")
    assert parse_job(unknown).time_left == pytest.approx(86700 - 78, abs=5)
    assert parse_job(unknown.replace("1-00:05:00", "UNLIMITED")).time_left is None


def test_ids_of_array_members_are_parsed() -> None:
    assert members("12_3") == [3]
    assert members("12_[4-6,9%2]") == [4, 5, 6, 9]
    assert members("12") == []


PMI2 = ["srun", "--mpi=pmi2", "--kill-on-bad-exit=0", "--ntasks", "8"]


@pytest.mark.parametrize(
    ("library", "offered", "mpirun", "expected"),
    [
        ("Open MPI v5.0.11", ["pmix", "pmi2"], "/bin/mpirun", ["/bin/mpirun", "-n", "8"]),
        ("Open MPI v5.0.11", ["pmix", "pmi2"], None, ["srun", "--mpi=pmix", *PMI2[2:]]),
        ("MPICH Version: 5.0.2", ["pmix", "pmi2"], "/bin/mpirun", PMI2),
        ("MPICH Version: 5.0.2", ["none"], "/bin/mpirun", ["/bin/mpirun", "-n", "8"]),
        ("CRAY MPICH version 8", ["cray_shasta", "pmi2"], None, ["srun", "--mpi=cray_shasta", *PMI2[2:]]),
        ("Intel(R) MPI Library 2021", ["pmi2"], "/bin/mpirun", ["/bin/mpirun", "-n", "8"]),
    ],
)
def test_the_launcher_depends_on_the_mpi_library(
    library: str, offered: list[str], mpirun: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "I_MPI_PMI_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    assert choose_launcher(library, offered, mpirun, 8) == expected


def test_a_heterogeneous_job_starts_on_all_components_by_srun_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert choose_launcher("MPICH Version: 5.0.2", ["pmi2"], "/bin/mpirun", 8) == [
        *PMI2[:3],
        "--het-group=0-1",
    ]
    with pytest.raises(UsageError, match="needs srun --mpi=pmix, but srun offers pmi2"):
        choose_launcher("Open MPI v5.0.11", ["pmi2"], "/bin/mpirun", 8)
    sizes = {"SLURM_NTASKS": ("1", "4"), "SLURM_JOB_CPUS_PER_NODE": ("1", "2(x2)")}
    sizes |= {"SLURM_TASKS_PER_NODE": ("1", "2(x2)"), "SLURM_JOB_NODELIST": ("n1", "n[2-3]")}
    for name, values in sizes.items():
        for number, value in enumerate(values):
            monkeypatch.setenv(f"{name}_HET_GROUP_{number}", value)
    assert (inside().tasks, inside().cores, inside().nodes) == (5, 5, "n1,n[2-3]")


def test_without_any_launcher_the_error_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="no mpirun, and srun --mpi offers none, pmi2; load the module"):
        choose_launcher("Open MPI v5", ["none", "pmi2"], None, 8)


@pytest.mark.parametrize("own", ["-x c1", "-xc1", "--exclude c1", "--exclude=c1"])
def test_nodes_that_the_user_excludes_stay_excluded(own: str) -> None:
    resources = Resources(nodes=2, more=("--mem=1", f"{own} --constraint=fast"), exclude=("n1", "n2"))
    *others, last = sbatch_args(resources)
    assert last == "--exclude=c1,n1,n2"  # sbatch reads the last one
    assert {"--nodes=2", "--mem=1", "--constraint=fast"} <= {*others}


def test_a_file_of_excluded_nodes_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match=r"--exclude=./nodes is a file"):
        sbatch_args(Resources(more=("--exclude=./nodes",), exclude=("n1",)))


@pytest.mark.parametrize(
    ("resources", "nodes"),
    [
        (Resources(nodes=4), 4),
        (Resources(ntasks=9, ntasks_per_node=4), 3),
        (Resources(ntasks=9, more=("-N 2-3",)), 2),
        (Resources(ntasks=9), 1),
    ],
)
def test_the_number_of_nodes_that_a_job_needs_is_known_from_its_options(
    resources: Resources, nodes: int
) -> None:
    assert placement(resources).nodes == nodes


def sacct(*lines: str, code: int = 0) -> None:
    """Let sacct print these lines, and write down what it was asked: energy needs sensors and a database."""
    Path("answer").write_text("".join(f"{line}\n" for line in lines))
    here = Path().absolute()
    Path("sacct").write_text(f'#!/bin/sh\necho "$@" > {here}/asked\ncat {here}/answer\nexit {code}\n')
    Path("sacct").chmod(0o755)
    os.environ["PATH"] = f"{here}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("lines", "joules"),
    [
        (["12|5000", "12.batch|2000", "12.0|3000"], 5000.0),
        (["12|", "12.batch|2000", "12.extern|1", "12.0|3000"], 3000.0),
        (["12|5000", "12|700", "12.batch|200"], 5700.0),  # it was requeued
        (["12|5000", "13|"], None),
        (["12|0", "12.batch|0"], None),  # as where no plugin gathers energy
        ([], None),
    ],
)
def test_the_lines_of_jobs_are_added_up_and_those_of_steps_are_not(
    lines: list[str], joules: float | None
) -> None:
    sacct(*lines)
    assert consumed_energy(["12", "13"]) == joules
    assert Path("asked").read_text().endswith(" --format=JobID,ConsumedEnergyRaw --jobs=12,13\n")


def test_where_there_is_no_accounting_the_energy_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sacct("Slurm accounting storage is disabled", code=1)
    assert consumed_energy(["12"]) is None
    monkeypatch.setenv("PATH", "")
    assert consumed_energy(["12"]) is None


@pytest.mark.parametrize(("jobs", "joules"), [(("12", "15_3"), 7000.0), ((), None)])
def test_show_and_report_ask_for_the_energy_of_the_slurm_jobs_of_a_run(
    jobs: tuple[str, ...], joules: float | None
) -> None:
    Path("job.toml").write_text(JOB)
    assert call("run", "job.toml", "--virtual", "--out", "run.h5").exit_code == 0
    record, _ = load_record(file := RunFile(Path("run.h5")))
    record.slurm_jobs, record.summary["billed"] = jobs, 100.0  # as if it had been on ranks of these
    file.save(*to_tree(record))
    sacct("12|5000", "15_3|2000")
    shown = json.loads(call("show", "run.h5", "--json").stdout)
    assert (shown["slurm_jobs"], shown["slurm_energy"]) == (list(jobs), joules)
    assert Path("asked").exists() == bool(jobs)
    text = call("show", "run.h5").stdout
    assert call("report", "run.h5", "-o", "x.html").exit_code == 0
    assert ("\nenergy         7,000 J: of Slurm job 12, 15_3, with all" in text) == bool(jobs)
    used = "Its Slurm jobs (12 and 15_3) used 7,000 J, 20 J per used task"
    assert (used in Path("x.html").read_text()) == bool(jobs)
