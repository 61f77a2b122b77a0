"""The batch script passes on every argument unchanged, whatever it contains."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata.errors import UsageError
from mpi_ata.slurm.launcher import choose_launcher
from mpi_ata.slurm.lead import script_lead
from mpi_ata.slurm.resources import Resources
from mpi_ata.slurm.script import Script
from mpi_ata.slurm.slurm_job import parse_duration, parse_job, parse_timestamp
from mpi_ata.slurm.submission import Sweep

PRINT = ("printf", "%s\\0")
SCRIPT = Script(
    "job", Resources(nodes=4, ntasks_per_node=8, time="02:00:00"), Path("/w d"), Path("/log"), PRINT
)
NASTY = [
    "",
    "a b",
    "it's",
    '"',
    "$HOME",
    "$(id)",
    "`id`",
    ";id",
    "#",
    "*",
    "\\",
    "--",
    "ä",
    "!!",
    "a=b",
    "&& id",
]
ARGUMENTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)


def received_args(script: Script, member: int | None = None) -> list[str]:
    """Return the arguments that the command of a script receives."""
    environment = dict(os.environ) | ({} if member is None else {"SLURM_ARRAY_TASK_ID": str(member)})
    done = subprocess.run(["bash"], input=script.text(), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_the_same_inputs_give_the_same_text() -> None:
    assert SCRIPT.text() == replace(SCRIPT).text()
    assert SCRIPT.text().splitlines()[:10] == [
        "#!/bin/bash",
        "#SBATCH --job-name=job",
        '#SBATCH "--chdir=/w d"',
        "#SBATCH --output=/log-%j.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --time=02:00:00",
    ]


def test_nasty_arguments_arrive_unchanged() -> None:
    assert received_args(replace(SCRIPT, command=(*PRINT, *NASTY))) == NASTY


@settings(max_examples=25, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=5))
def test_any_arguments_arrive_unchanged(arguments: list[str]) -> None:
    assert received_args(replace(SCRIPT, command=(*PRINT, *arguments))) == arguments


def test_each_member_of_an_array_gets_its_own_arguments() -> None:
    members = tuple((argument, f"{number}") for number, argument in enumerate(NASTY))
    script = replace(SCRIPT, command=(*PRINT, "all"), members=members, at_once=3)
    assert f"--array=0-{len(NASTY) - 1}%3" in script.text()
    for number in (0, 4, len(NASTY) - 1):
        assert received_args(script, number) == ["all", NASTY[number], str(number)]
    with pytest.raises(AssertionError, match="no such member: 99"):
        received_args(script, 99)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_passes_shellcheck() -> None:
    more = replace(SCRIPT, command=(*PRINT, *NASTY), members=(("--set", "a.b='x y'"), ("it's",)))
    for script in (SCRIPT, more, replace(more, source=Path("/it's/set up.sh"))):
        done = subprocess.run(["shellcheck", "-"], input=script.text(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\x1b[2J", "a\u2028b", "a\u202eb", "a\x7fb"])
def test_control_characters_are_rejected_everywhere(bad: str) -> None:
    changes: list[dict[str, Any]] = [
        {"command": ("echo", bad)},
        {"members": ((bad,),)},
        {"source": Path(bad)},
        {"workdir": Path(bad)},
        {"name": bad},
        {"log": Path(bad)},
        {"resources": Resources(partition=bad)},
        {"resources": Resources(account=bad)},
        {"resources": Resources(gpus_per_task=bad)},
    ]
    for change in changes:
        with pytest.raises(UsageError, match="control character"):
            replace(SCRIPT, **change).text()
    with pytest.raises(UsageError, match="control character"):
        Resources(more=(f"--comment={bad}",))


def test_options_that_sbatch_cannot_parse_are_rejected() -> None:
    for bad in ('say "hi"', "back\\slash"):
        with pytest.raises(UsageError, match="leave it out"):
            replace(SCRIPT, resources=Resources(partition=bad)).text()


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
        Resources(more=(option,))


def test_further_options_are_passed_on() -> None:
    resources = Resources(nodes=1, more=("--constraint=fast --mem 4G", "--comment='two words'"))
    lines = replace(SCRIPT, resources=resources).text().splitlines()
    assert lines[8:12] == [
        "#SBATCH --constraint=fast",
        "#SBATCH --mem",
        "#SBATCH 4G",
        '#SBATCH "--comment=two words"',
    ]


@pytest.mark.parametrize("time", ["later", "1:2:3:4", "-5", "1h"])
def test_a_time_that_slurm_cannot_parse_is_rejected(time: str) -> None:
    with pytest.raises(UsageError, match="is not a Slurm time"):
        Resources(time=time)


def test_one_rank_is_rejected() -> None:
    with pytest.raises(UsageError, match="a manager and a worker"):
        Resources(ntasks=1)
    with pytest.raises(UsageError, match="a manager and a worker"):
        Resources(nodes=1, ntasks_per_node=1)


def test_gpus_are_requested_per_task() -> None:
    assert (
        "#SBATCH --gpus-per-task=a100:1"
        in replace(SCRIPT, resources=Resources(gpus_per_task="a100:1")).text()
    )


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


def test_the_lead_is_shorter_in_a_short_job() -> None:
    assert script_lead("02:00:00", None) == 60
    assert script_lead("1", None) == 15
    assert script_lead(None, None) == 60
    assert script_lead("1", 40) == 40


def test_a_sweep_has_all_combinations() -> None:
    sweep = Sweep.of(["a.b=1,2", 'c.d="x,y",[1, 2]'])
    assert sweep.members == (
        ("a.b=1", 'c.d="x,y"'),
        ("a.b=1", "c.d=[1, 2]"),
        ("a.b=2", 'c.d="x,y"'),
        ("a.b=2", "c.d=[1, 2]"),
    )
    assert sweep.same_problem
    assert not Sweep.of(["problem.noise=1,2"]).same_problem


@pytest.mark.parametrize("text", ["a.b=", "a.b", "ab=1,2", "a.b=,"])
def test_a_sweep_without_values_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        Sweep.of([text])


LINE = (
    "JobId=11 ArrayJobId=9 ArrayTaskId=3 JobName=to.sh UserId=me(1000) GroupId=me(1000) Priority=42 "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 "
    "RunTime=00:01:18 TimeLimit=1-00:05:00 StartTime=2026-11-16T03:49:29 EndTime=2026-11-16T03:54:29 "
    "NodeList=n[1-2] NumNodes=2 NumCPUs=8 NumTasks=8 "
    "Command=/home/my files/batch.sh WorkDir=/home/my files StdErr=/x"
)


def test_the_output_of_scontrol_is_parsed() -> None:
    job = parse_job(LINE)
    assert (job.id, job.state, job.restarts, job.cores, job.nodes) == ("9_3", "RUNNING", 2, 8, "n[1-2]")
    assert (job.run_time, job.time_limit) == (78.0, 86700.0)
    assert job.command == Path("/home/my files/batch.sh")
    assert job.end_time is not None
    assert job.start_time is not None
    assert job.end_time - job.start_time == 300
    assert parse_timestamp("Unknown") is None
    assert not job.timed_out
    assert parse_job(LINE.replace("RUNNING", "COMPLETING").replace("None", "TimeLimit")).timed_out


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
