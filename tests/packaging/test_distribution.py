"""The sdist is the repository, the wheel is the package, and both are the same whoever builds them."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from mpi_ata.version import __version__
from tests.packaging.distribution import ROOT, build, run_setuptools, tracked

pytest.importorskip("build.__main__", reason="needs the extra 'release'; `make dist` runs these tests")
if not (ROOT / ".git").exists():
    pytest.skip("needs the repository: the sdist is compared with what git lists", allow_module_level=True)

GENERATED = ("PKG-INFO", "mpi_ata.egg-info/")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_another_user_builds_the_same_bytes(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "dist")
    finally:
        os.umask(before)
    assert [path.name for path in again] == [path.name for path in built]
    for one, other in zip(built, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_the_sdist_holds_the_whole_repository(built: list[Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    assert sorted(name for name in names if not name.startswith(GENERATED)) == sorted(tracked())


def test_the_wheel_holds_the_package_its_data_and_nothing_else(built: list[Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = archive.namelist()
    package = [name for name in names if not name.startswith(f"mpi_ata-{__version__}.dist-info/")]
    assert sorted(package) == sorted(name for name in tracked() if name.startswith("mpi_ata/"))
    assert "mpi_ata/py.typed" in package


def test_the_sdist_builds_the_same_wheel(built: list[Path], tmp_path: Path) -> None:
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="tar")
    run_setuptools(tmp_path / f"mpi_ata-{__version__}", tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.read_bytes() == built[1].read_bytes()


def test_the_package_index_would_accept_both(built: list[Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
