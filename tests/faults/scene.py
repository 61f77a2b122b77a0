"""What the tests of interrupted runs share: small jobs, ways to run them, and what must not change."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record, to_tree
from mpi_ata.runfile.store import RunFile

ROOT = Path(__file__).parent.parent.parent
COMMAND = Path(sys.executable).with_name("mpi-ata")
METHODS: dict[str, str] = {
    "sgd ata-empirical": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "ata-empirical"\nbudget = 7',
    "sgd forget": 'name = "sgd"\nstep_size = 0.4\n'
    '[allocator]\nname = "ata-empirical"\nbudget = 7\nforget = true',
    "sgd ata": 'name = "sgd"\nstep_size = 0.02\nupdate = "momentum"\n'
    '[allocator]\nname = "ata"\nbudget = 7\nalpha = 4.0',
    "sgd gta": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "gta"\nbudget = 7',
    "sgd uta": 'name = "sgd"\nstep_size = 0.05\nupdate = "adam"\n[allocator]\nname = "uta"\nbudget = 7',
    "sgd ofta": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "ofta"\nbudget = 7',
    "asgd ata-empirical": 'name = "asgd"\nstep_size = 0.05\n[allocator]\nname = "ata-empirical"\nbudget = 7',
    "sgd m-sync": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "m-sync"\nbudget = 7',
    "sgd bandit": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "bandit"\nbudget = 7',
    "sgd proportional": 'name = "sgd"\nstep_size = 0.4\n[allocator]\nname = "proportional"\nbudget = 7',
    "mindflayer": 'name = "mindflayer"\nstep_size = 0.4\n[allocator]\nname = "ata-empirical"\nbudget = 7',
    "ringmaster": 'name = "ringmaster"\nstep_size = 0.05\ndelay = 9\nbudget = 6',
    "heterogeneous-data-sgd": 'name = "heterogeneous-data-sgd"\nstep_size = 0.4\n'
    '[allocator]\nname = "ata-empirical"\nbudget = 7',
    "malenia": 'name = "malenia"\nstep_size = 0.4\nS = 9.0',
    "ringleader": 'name = "ringleader"\nstep_size = 0.05',
    "rescaled-asgd": 'name = "rescaled-asgd"\nstep_size = 0.05\nbudget = 6',
    "rennala-mvr": 'name = "rennala-mvr"\nstep_size = 0.4\na = 0.3\n'
    '[allocator]\nname = "ata-empirical"\nbudget = 7',
}
JOB = """
[problem]
{problem}

[method]
{method}

[times]
law = "sqrt"
{times}

[stop]
rounds = {rounds}

[run]
workers = {workers}
seed = 5
evaluate_every = 3
{run}
"""
QUADRATIC = 'name = "quadratic"\ndimension = 10\nnoise = 0.1'
PASSING = ("elapsed", "saving", "time", "run")  # what no two runs have in common


def written(
    path: Path,
    method: str = "sgd ata-empirical",
    rounds: int = 40,
    workers: int = 5,
    run: str = "checkpoint_rounds = 2",
    problem: str = QUADRATIC,
    times: str = "",
) -> Path:
    """A job file."""
    keys = {"problem": problem, "rounds": rounds, "workers": workers, "run": run, "times": times}
    path.write_text(JOB.format(method=METHODS[method], **keys))
    return path


def own_problem(folder: Path, body: str) -> str:
    """The table of a quadratic problem of one's own, in a file; `body` is what a task does before."""
    lines = [line for line in body.splitlines() if line.strip()]
    source = [
        "import os, resource, shutil, signal, time",
        "from pathlib import Path",
        "from mpi_ata import Quadratic",
        "class Own(Quadratic):",
        "    def __init__(self):",
        "        super().__init__(10, noise=0.1)",
        "    def gradient(self, x, task):",
        *(f"        {line}" for line in lines),
        "        return super().gradient(x, task)",
        "    def gradients(self, x, tasks):",
        "        return sum(self.gradient(x, task) for task in tasks)",
    ]
    (folder / "own.py").write_text("\n".join([*source, ""]))
    return 'file = "own.py"\nclass = "Own"'


def mpi_ata(*arguments: str | Path, before: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """A command, run as users do."""
    words = [*before, str(COMMAND), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def record_of(path: Path) -> Record:
    """What a run file says; its newest generation must be whole."""
    record, complaint = load_record(RunFile(path))
    assert not complaint
    return record


def saved_again(path: Path) -> None:
    """Save a run once more, so that there is a save before the newest one, as while it is under way."""
    file = RunFile(path)
    attributes, groups, _ = file.load()
    file.save(attributes, groups)


def substance(path: Path) -> dict[str, Any]:
    """All of a run that does not depend on when, where and in how many parts it ran; bit for bit."""
    attributes, groups = to_tree(record_of(path))
    found: dict[str, Any] = {name: value for name, value in attributes.items() if name not in PASSING}
    for group, arrays in groups.items():
        for name, array in arrays.items():
            if group != "events" and name not in PASSING:
                found[f"{group}/{name}"] = (array.shape, array.dtype.str, array.tobytes())
    return found


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    return [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
