"""Cores, threads, the doorbell, memory, folders and Slurm: what is found, and what can be wrong with it."""

import os
from pathlib import Path

import pytest

from mpi_ata.doctor import checks
from mpi_ata.doctor.checks import Finding
from mpi_ata.launch.mpirun import Library
from mpi_ata.limits import file_system
from tests.doctor.running import fake_command, in_namespace, machine_finding, problem


def test_binding_to_one_core_is_a_note() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is only one core")
    try:
        os.sched_setaffinity(0, {min(allowed)})
        found = checks.cores()
    finally:
        os.sched_setaffinity(0, allowed)
    assert found.found == f"bound to 1 of {os.cpu_count()}"
    assert found.ok
    assert "share one core" in str(found.remedy)


def test_more_threads_than_cores_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.threads() == Finding("threads", "one per rank by default")
    monkeypatch.setenv("OMP_NUM_THREADS", "1000,2")
    found = checks.threads()
    assert found.found == "OMP_NUM_THREADS=1000,2"
    assert found.ok
    assert "1000 threads" in str(found.remedy)


def test_a_node_without_an_address_is_a_note() -> None:
    finding = machine_finding("doorbell", in_namespace("hostname no-such-host"))
    assert (finding["ok"], finding["found"]) == (True, "works within the node, unreachable over the network")
    assert "give no-such-host an address" in finding["remedy"]


def test_little_shared_memory_is_a_note() -> None:
    finding = machine_finding("shared_memory", in_namespace("mount -t tmpfs -o size=48m tmpfs /dev/shm"))
    assert (finding["ok"], finding["found"]) == (True, "50 MB of 50 MB free in /dev/shm")
    assert "--shm-size" in finding["remedy"]


def test_shared_memory_that_nobody_can_write_to_is_a_note() -> None:
    finding = machine_finding("shared_memory", in_namespace("mount -t tmpfs -o ro tmpfs /dev/shm"))
    assert finding["ok"]
    assert finding["found"].endswith(": Read-only file system")
    assert "that everyone can write to" in finding["remedy"]


def test_an_output_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    finding = problem("output folder", cwd=tmp_path)
    assert finding["found"] == "cannot write to runs: Not a directory"
    assert "a folder with write permission" in finding["remedy"]
    assert not checks.output_folder(tmp_path / "runs/below").ok


def test_a_read_only_file_system_is_a_problem(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o ro tmpfs '{tmp_path}' && cd '{tmp_path}'"
    finding = machine_finding("output_folder", in_namespace(script))
    assert finding["found"] == "cannot write to .: Read-only file system"


def test_runs_is_the_output_folder_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checks.output_folder().found.startswith(f"{tmp_path.resolve()}, ")
    (tmp_path / "runs").mkdir()
    assert checks.output_folder().found.startswith(f"{tmp_path.resolve() / 'runs'}, ")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_full_folder_is_a_note_and_its_file_system_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    script = f"mount -t tmpfs -o size=1m tmpfs '{folder}' && cd '{folder}'"
    finding = machine_finding("output_folder", in_namespace(script))
    assert f"{folder.resolve()}, tmpfs, 1 MB free, writable" == finding["found"]
    assert finding["ok"]
    assert "free space" in finding["remedy"]


def test_slurm_is_reported_if_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun = fake_command(tmp_path, "srun", "slurm-wlm 22.05.8")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    queue = fake_command(tmp_path, "squeue", "7 main job")
    assert checks.slurm() == Finding("Slurm", f"slurm-wlm 22.05.8: {srun}")
    queue.write_text(
        "#!/bin/sh\necho 'squeue: fatal: Could not establish a configuration source' >&2; exit 1\n"
    )
    found = checks.slurm()
    assert found.ok
    assert "it does not answer, so nothing can be submitted: squeue: fatal: Could not" in str(found.remedy)
    assert checks.heterogeneous_jobs(Library("Open MPI v5.0.11")).remedy
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert checks.slurm() == Finding("Slurm", "not installed")


def test_below_no_mount_point_as_in_a_chroot_the_file_system_is_unknown() -> None:
    assert file_system(Path("/")) != "file system unknown"
    assert file_system(Path("below/nothing")) == "file system unknown"


@pytest.mark.parametrize(
    ("step", "overlap", "nested"), [("0", "", True), ("0", "1", False), ("4294967290", "", False)]
)
def test_a_shell_in_a_step_of_srun_is_a_note(
    step: str, overlap: str, nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    fake_command(tmp_path, "srun", "slurm-wlm 22.05.8")
    fake_command(tmp_path, "squeue", "")
    monkeypatch.setenv("SLURM_STEP_ID", step)
    if overlap:
        monkeypatch.setenv("SLURM_OVERLAP", overlap)
    assert ("set SLURM_OVERLAP=1" in str(checks.slurm().remedy)) == nested
