"""A worker is known by everything that changes the time of its tasks, and by nothing that comes and goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata import DrawnTimes, Linear, Quadratic, VirtualCluster
from mpi_ata.clusters import identity
from mpi_ata.clusters.identity import DRAWN, HARDWARE_BYTES, WorkerIdentity, hardware
from mpi_ata.clusters.mpi.handshake import Rank, identities
from mpi_ata.launch import THREADS


def asked(code: str = "print(hardware())", **variables: str) -> str:
    """Return what a new process reports about its hardware, with these variables set."""
    kept = {name: value for name, value in os.environ.items() if name not in THREADS}
    command = [sys.executable, "-c", f"import os\nfrom mpi_ata.clusters.identity import hardware\n{code}"]
    done = subprocess.run(command, env=kept | variables, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_process_on_the_same_machine_reports_the_same_hardware() -> None:
    """All but the threads, which the environment decides."""
    said = asked(OMP_NUM_THREADS="3")
    assert said.split(", ")[:2] == hardware().split(", ")[:2]
    assert said.endswith("threads OMP=3 OPENBLAS=all MKL=all NUMEXPR=all")
    assert " MHz" not in said


def test_the_number_of_threads_is_part_of_it_and_so_is_each_library_that_differs() -> None:
    one = dict.fromkeys(THREADS, "1")
    assert identity._threads(one) == "1 threads"
    assert identity._threads(one | {"OMP_NUM_THREADS": "2"}) == "threads OMP=2 OPENBLAS=1 MKL=1 NUMEXPR=1"
    assert identity._threads({}) == "all threads"
    assert identity._threads({"MKL_NUM_THREADS": "2"}) == "threads OMP=all OPENBLAS=all MKL=2 NUMEXPR=all"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be bound here")
def test_the_cores_that_a_launcher_leaves_to_a_process_are_part_of_it() -> None:
    bound = asked("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(hardware())")
    assert f", 1 of {os.cpu_count()} cores, " in bound
    assert (bound == asked()) == (len(os.sched_getaffinity(0)) == 1)


CPUINFO = {
    "model name\t: Xeon @ 2.30GHz\ncpu MHz\t: 1234.5\nmodel name\t: Xeon\ncpu MHz\t: 9\n": "Xeon @ 2.30GHz",
    "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nBogoMIPS\t: 50.0\n": "0x41 0xd0c",
}


@pytest.mark.parametrize(("text", "model"), CPUINFO.items())
def test_a_processor_is_its_model_without_its_current_frequency(
    tmp_path: Path, text: str, model: str
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert identity._processor(tmp_path / "cpuinfo").endswith(model)
    assert identity._processor(tmp_path / "nothing")


def gpus(folder: Path, *models: str) -> Path:
    """Write what NVIDIA's driver reports about devices."""
    for number, model in enumerate(models):
        (folder / f"0000:{number:02}:00.0").mkdir()
        (folder / f"0000:{number:02}:00.0" / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t {number}\nGPU UUID: \t GPU-{number}\n"
        )
    return folder


@pytest.mark.parametrize(
    ("visible", "text"),
    [
        (None, "2 A100"),
        ("0", "1 of 2 A100"),
        ("1", "1 of 2 A100"),
        ("0,1", "2 of 2 A100"),
        ("", ""),
        ("-1", ""),
    ],
)
def test_equal_devices_count_by_how_many_a_process_may_use(
    tmp_path: Path, visible: str | None, text: str
) -> None:
    assert identity._gpus(gpus(tmp_path, "A100", "A100"), visible) == text


def test_of_unequal_devices_it_matters_which_a_process_may_use(tmp_path: Path) -> None:
    folder = gpus(tmp_path, "A100", "T4")
    assert identity._gpus(folder, "0") == "devices 0 of 1 A100 + 1 T4"
    assert identity._gpus(folder, "1") == "devices 1 of 1 A100 + 1 T4"
    assert identity._gpus(tmp_path / "none", "0") == ""


def test_a_long_text_is_shortened_and_stays_different_from_others() -> None:
    one, other = ("é" * HARDWARE_BYTES + end for end in "xy")
    assert identity._fitting(one) != identity._fitting(other)
    assert len(identity._fitting(one).encode()) <= HARDWARE_BYTES
    assert identity._fitting("short") == "short"
    assert hardware()


def rank(host: str) -> Rank:
    return Rank(host, b"", "Xeon")


def test_workers_are_numbered_on_their_host_after_the_manager() -> None:
    found = identities([rank(host) for host in ("a", "a", "b", "a", "b")])
    assert found == (
        WorkerIdentity("a", 1, "Xeon", 3),
        WorkerIdentity("b", 0, "Xeon", 2),
        WorkerIdentity("a", 2, "Xeon", 3),
        WorkerIdentity("b", 1, "Xeon", 2),
    )


def test_where_times_are_drawn_a_worker_is_its_index_and_the_law() -> None:
    found = identities([rank(host) for host in ("a", "b", "a", "b")], "Linear")
    hosts = ("b", "a", "b")
    assert found == tuple(
        WorkerIdentity(host, index, DRAWN + "Linear", 2) for index, host in enumerate(hosts)
    )
    cluster = VirtualCluster(Quadratic(dimension=2), DrawnTimes(Linear(3), label="Linear"))
    assert [known[1:3] for known in cluster.identities] == [known[1:3] for known in found]
