"""What a process learns from its launcher, and how ranks are started."""

import sys
from pathlib import Path

import pytest

from mpi_ata import launch
from mpi_ata.errors import UsageError
from mpi_ata.launch import run_script
from mpi_ata.launch.environment import LOCAL_RANK, RANK
from mpi_ata.launch.exit_report import read_report, report_file
from mpi_ata.launch.mpirun import check_rank_memory, run_command, split_command


@pytest.mark.parametrize("name", LOCAL_RANK)
def test_the_local_rank_is_the_one_that_the_launcher_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in LOCAL_RANK:
        monkeypatch.delenv(other, raising=False)
    assert launch.local_rank() == 0
    monkeypatch.setenv(name, "3")
    assert launch.local_rank() == 3


@pytest.mark.parametrize(
    ("rank", "local", "visible", "share", "expected"),
    [
        (0, 0, "0,1,2,3", "", ""),  # the manager computes no task
        (1, 1, "0,1,2,3", "", "1"),
        (4, 4, "0,1,2,3", "", "0"),  # the last of four workers besides the manager
        (5, 0, "0,1,2,3", "", "0"),
        (6, 1, "0,1,2,3", "a100:2", "2,3"),
        (6, 1, "3", "1", "3"),  # already divided by Slurm
        (6, 1, "2,3", "gpu:a100:2", "2,3"),
        (6, 1, "", "", ""),
    ],
)
def test_each_worker_of_a_slurm_job_has_its_own_gpus(
    rank: int, local: int, visible: str, share: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*RANK, *LOCAL_RANK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    monkeypatch.setenv("SLURM_LOCALID", str(local))
    environment = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": visible, "SLURM_GPUS_PER_TASK": share}
    launch.assign_gpus(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == expected


def test_ranks_of_torch_distributed_keep_all_gpus_rank_0_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    environment = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1", "MASTER_ADDR": "node1"}
    launch.assign_gpus(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_outside_slurm_the_visible_gpus_stay_as_they_are() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    launch.assign_gpus(environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_cores_are_counted_over_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "8(x3),4,16(x2)")
    assert launch.allocated_cores() == 60
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE")
    assert launch.allocated_cores() == 0


def test_more_ranks_than_fit_into_memory_are_rejected() -> None:
    check_rank_memory(2)
    with pytest.raises(UsageError, match="1,000,001 ranks would need about 62,500 GB of memory"):
        check_rank_memory(1_000_001)


def test_ranks_do_not_wait_for_a_network_that_nothing_uses_unless_the_user_asks_for_it() -> None:
    environment: dict[str, str] = {}
    launch.set_mpi_defaults(environment)
    assert environment["OMPI_MCA_btl"] == "^ofi"
    environment = {"OMPI_MCA_btl": "tcp,self"}
    launch.set_mpi_defaults(environment)
    assert environment["OMPI_MCA_btl"] == "tcp,self"


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        ("script.py -m 3", "", "script.py -m 3"),
        ("-u -X dev -Wignore -W error script.py a", "-u -X dev -Wignore -W error", "script.py a"),
        ("-m train 3", "", "-m train 3"),
        ("-X importtime -um train 3", "-X importtime -u", "-m train 3"),
        ("-Ximporttime -mtrain 3", "-Ximporttime", "-m train 3"),
    ],
)
def test_options_of_python_are_kept_apart_from_what_it_runs(words: str, options: str, rest: str) -> None:
    assert split_command(words.split()) == (options.split(), rest.split())


SCRIPT = """
import pickle, sys, mpi_ata.launch
from pathlib import Path

def own(): pass

assert pickle.loads(pickle.dumps(own)) is own
assert Path(__file__).is_absolute() and sys.path[0] == str(Path(__file__).parent), sys.path
print(*sys.argv[1:])
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(3)", 3),
        ("sys.exit('text')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 1),
    ],
)
@pytest.mark.parametrize("called", [["script.py"], ["-m", "script"]])
def test_a_script_on_a_rank_runs_as_python_runs_it_and_reports_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[str], last: str, code: int
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    with report_file() as path:
        done = run_command([sys.executable, run_script.__file__, *called, last, "b"])
        assert (done.code, read_report(path).code) == (code, code), done.err
    assert done.out == f"{last} b\n"
    assert "runpy" not in done.err
    assert "run_script" not in done.err
    assert ("Traceback" in done.err) == (last in ("1 / 0", "raise KeyboardInterrupt"))


def test_a_usage_error_on_a_rank_is_reported_as_2(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import mpi_ata\nmpi_ata.minimize(budget=3, rond=2)\n")
    with report_file() as path:
        done = run_command([sys.executable, run_script.__file__, str(tmp_path / "script.py")])
        assert (done.code, read_report(path).code) == (2, 2)
    assert done.err.startswith("Error: minimize() has no argument 'rond'")
    assert f"{tmp_path}/script.py, line 2" in done.err
