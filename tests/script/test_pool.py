"""Pool: what samplers and optimizers ask of a pool, simulated."""

import operator
from collections.abc import Iterator

import pytest

import mpi_ata
from mpi_ata import Constant, Pool, RunError, UsageError


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(times=Constant(3, (1.0, 2.0, 3.0))) as pool:
        yield pool


def test_a_pool_maps_like_multiprocessing(pool: Pool) -> None:
    seen: list[int] = []
    assert pool.map(abs, (-i for i in range(9)), callback=seen.append) == list(range(9)) == seen
    assert pool.map(abs, [-1], None, 1) == [1]
    assert pool.starmap(operator.sub, [(5, 1), [6, 3]], chunksize=2) == [4, 3]
    assert pool.starmap(max, [(1, 2), (3, 4, 5)]) == [2, 5]
    assert pool.starmap(max, []) == pool.map(abs, []) == []
    assert list(pool.imap(abs, [-1, -2])) == [1, 2]
    assert sorted(pool.imap_unordered(abs, [-1, -2, -3])) == [1, 2, 3]


def test_a_pool_says_what_libraries_ask(pool: Pool) -> None:
    assert pool.size == pool._processes == 3
    assert (pool.rank, pool.comm, pool.is_master(), pool.is_worker()) == (0, None, True, False)
    assert not Pool.enabled()
    pool.wait()


@pytest.mark.parametrize("way", ["close", "terminate", "__exit__"])
def test_a_pool_cannot_be_used_after_its_end(way: str) -> None:
    pool = Pool(times=Constant(1, (1.0,)))
    pool.__exit__(None, None, None) if way == "__exit__" else getattr(pool, way)()
    pool.close()
    pool.join()
    with pytest.raises(RunError, match=r"^a pool cannot be used after close\(\)"):
        pool.map(abs, [1])


class Sampler:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def likelihood(self, value: float) -> float:
        return -value

    def nested(self, value: float) -> list[float]:
        return self.pool.map(abs, [value])


def test_objects_that_have_a_pool_can_be_sent_and_in_a_task_it_cannot_be_used(pool: Pool) -> None:
    assert pool.map(Sampler(pool).likelihood, [1.0, 2.0]) == [-1.0, -2.0]
    with pytest.raises(RunError, match=r"a pool cannot be used after close\(\), nor in a task, on a worker"):
        pool.map(Sampler(pool).nested, [1.0])


def test_a_pool_without_workers_says_how_to_get_some() -> None:
    with pytest.raises(UsageError, match="no launcher has started ranks: use mpirun -n 5"):
        Pool()
    with pytest.raises(UsageError, match=r"Pool\(\) has no argument 'worker'; did you mean workers\?"):
        mpi_ata.Pool(worker=4)  # type: ignore[call-arg]


def test_a_policy_for_tasks_that_fail_is_rejected_since_errors_belong_to_items() -> None:
    with pytest.raises(UsageError, match=r"faults of a farm have no on_task_error; use map\("):
        Pool(times=Constant(1, (1.0,)), faults=mpi_ata.FaultPolicy(on_task_error="reissue"))
