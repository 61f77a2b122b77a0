"""What a process learns from its launcher, and how ranks are started."""

import pytest

from mpi_ata import launch
from mpi_ata.errors import UsageError
from mpi_ata.launch.environment import LOCAL_RANK, RANK
from mpi_ata.launch.mpirun import check_rank_memory


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
