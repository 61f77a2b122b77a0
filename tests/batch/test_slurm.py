"""What Slurm's options and commands mean, and which launcher its jobs need."""

import time
from pathlib import Path

import pytest

from mpi_ata.batch.interface import Resources
from mpi_ata.batch.slurm import (
    check_resources,
    choose_launcher,
    members,
    parse_duration,
    parse_job,
    parse_timestamp,
    placement,
    sbatch_args,
)
from mpi_ata.errors import UsageError


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


def test_one_rank_is_rejected() -> None:
    with pytest.raises(UsageError, match="a manager and a worker"):
        check_resources(Resources(ntasks=1))
    with pytest.raises(UsageError, match="a manager and a worker"):
        check_resources(Resources(nodes=1, ntasks_per_node=1))


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


def test_without_any_launcher_the_error_says_what_to_do() -> None:
    with pytest.raises(
        UsageError, match="there is no mpirun, and srun --mpi offers none, pmi2; load the module"
    ):
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
