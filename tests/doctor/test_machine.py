"""Cores, threads, the bell, memory, folders and Slurm: what is there, and what can be wrong with it."""

import os
from pathlib import Path

import pytest

from mpi_ata.doctor import machine
from mpi_ata.doctor.finding import Finding
from tests.doctor.asking import apart, command, findings, run_doctor


def test_binding_to_one_core_is_a_note() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core only")
    try:
        os.sched_setaffinity(0, {min(allowed)})
        found = machine.cores()
    finally:
        os.sched_setaffinity(0, allowed)
    assert found.found == f"bound to 1 of {os.cpu_count()}"
    assert found.ok
    assert "share one core" in str(found.remedy)


def test_more_threads_than_cores_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.threads() == Finding("threads", "one a rank by default")
    monkeypatch.setenv("OMP_NUM_THREADS", "1000,2")
    found = machine.threads()
    assert found.found == "OMP_NUM_THREADS=1000,2"
    assert found.ok
    assert "1000 threads" in str(found.remedy)


def test_a_node_without_an_address_is_a_note() -> None:
    done = run_doctor("--json", prefix=apart("hostname no-such-host"))
    told = findings(done)["doorbell"]
    assert told["found"] == "rings within the node, silent over the network"
    assert told["ok"]
    assert "let no-such-host have an address" in told["remedy"]


def test_little_shared_memory_is_a_note() -> None:
    done = run_doctor("--json", prefix=apart("mount -t tmpfs -o size=48m tmpfs /dev/shm"))
    told = findings(done)["shared memory"]
    assert told["found"] == "50 MB of 50 MB free in /dev/shm"
    assert told["ok"]
    assert "--shm-size" in told["remedy"]


def test_an_output_folder_that_takes_nothing_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = run_doctor("--json", cwd=tmp_path)
    told = findings(done)["output folder"]
    assert done.returncode == 1
    assert told["found"] == "cannot write into runs: Not a directory"
    assert "a folder that you may write to" in told["remedy"]
    assert not machine.output_folder(tmp_path / "runs/below").ok


def test_a_read_only_file_system_is_a_problem(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o ro tmpfs '{tmp_path}' && cd '{tmp_path}'"
    told = findings(run_doctor("--json", prefix=apart(script)))["output folder"]
    assert told["found"] == "cannot write into .: Read-only file system"


def test_runs_is_the_output_folder_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert machine.output_folder().found.startswith(f"{tmp_path.resolve()}, ")
    (tmp_path / "runs").mkdir()
    assert machine.output_folder().found.startswith(f"{tmp_path.resolve() / 'runs'}, ")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_full_folder_is_a_note_and_its_file_system_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    script = f"mount -t tmpfs -o size=1m tmpfs '{folder}' && cd '{folder}'"
    told = findings(run_doctor("--json", prefix=apart(script)))["output folder"]
    assert f"{folder.resolve()}, tmpfs, 1 MB free, writable" == told["found"]
    assert told["ok"]
    assert "make room" in told["remedy"]


def test_slurm_is_named_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun = command(tmp_path, "srun", "slurm-wlm 22.05.8")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    queue = command(tmp_path, "squeue", "7 main job")
    assert machine.slurm() == Finding("Slurm", f"slurm-wlm 22.05.8: {srun}")
    queue.write_text(
        "#!/bin/sh\necho 'squeue: fatal: Could not establish a configuration source' >&2; exit 1\n"
    )
    found = machine.slurm()
    assert found.ok
    assert "it does not answer, so nothing can be submitted: squeue: fatal: Could not" in str(found.remedy)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert machine.slurm() == Finding("Slurm", "not here")
