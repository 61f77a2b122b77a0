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

from mpi_ata.batch.interface import Resources, Script
from mpi_ata.batch.slurm import check_resources
from mpi_ata.batch.submit import Submission, Sweep, script_text
from mpi_ata.errors import UsageError

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
    done = subprocess.run(
        ["bash"], input=script_text(script), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_the_same_inputs_give_the_same_text() -> None:
    assert script_text(SCRIPT) == script_text(replace(SCRIPT))
    assert script_text(SCRIPT).splitlines()[:10] == [
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
    assert f"--array=0-{len(NASTY) - 1}%3" in script_text(script)
    for number in (0, 4, len(NASTY) - 1):
        assert received_args(script, number) == ["all", NASTY[number], str(number)]
    with pytest.raises(AssertionError, match="no such member: 99"):
        received_args(script, 99)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_passes_shellcheck() -> None:
    more = replace(SCRIPT, command=(*PRINT, *NASTY), members=(("--set", "a.b='x y'"), ("it's",)))
    for script in (SCRIPT, more, replace(more, source=Path("/it's/set up.sh"))):
        done = subprocess.run(["shellcheck", "-"], input=script_text(script), capture_output=True, text=True)
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
            script_text(replace(SCRIPT, **change))
    with pytest.raises(UsageError, match="control character"):
        check_resources(Resources(more=(f"--comment={bad}",)))


def test_options_that_sbatch_cannot_parse_are_rejected() -> None:
    for bad in ('say "hi"', "back\\slash"):
        with pytest.raises(UsageError, match="leave it out"):
            script_text(replace(SCRIPT, resources=Resources(partition=bad)))


def test_further_options_are_passed_on() -> None:
    resources = Resources(nodes=1, more=("--constraint=fast --mem 4G", "--comment='two words'"))
    lines = script_text(replace(SCRIPT, resources=resources)).splitlines()
    assert lines[8:12] == [
        "#SBATCH --constraint=fast",
        "#SBATCH --mem",
        "#SBATCH 4G",
        '#SBATCH "--comment=two words"',
    ]


def test_the_lead_is_shorter_in_a_short_job() -> None:
    for time, lead, expected in (("02:00:00", None, 60), ("1", None, 15), (None, None, 60), ("1", 40, 40)):
        assert Submission(Path("job.toml"), Resources(time=time), lead=lead).script_lead == expected


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
