"""Pool: what samplers and optimizers ask of a pool, simulated."""

import importlib
import operator
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata import Constant, Pool, RunError, UsageError
from tests.cli.commands import call


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
        mpi_ata.Pool(worker=4)


def test_a_policy_for_tasks_that_fail_is_rejected_since_errors_belong_to_items() -> None:
    with pytest.raises(UsageError, match=r"faults of a farm have no on_task_error; use map\("):
        Pool(times=Constant(1, (1.0,)), faults=mpi_ata.FaultPolicy(on_task_error="reissue"))


computed: list[float] = []
fails_at: list[float] = []


def describe(value: float) -> dict[str, Any]:
    if value in fails_at:
        raise ValueError("interrupted")
    computed.append(value)
    return {"root": np.float64(value) ** 0.5, "parts": (np.full(2, value), ["a", None, 1 + 2j])}


def search(pool: Pool, count: int = 6) -> str:
    """Ask and tell: each call depends on the results of those before."""
    total = pool.state.get("total", 0.0)
    for generation in range(pool.state.get("generation", 0), 4):
        found = pool.map(describe, [total + 10 * generation + i for i in range(count)])
        total += float(sum(each["root"] for each in found))
        if generation == 1:
            pool.state.update(total=total, generation=2)
    return repr(found)


def test_a_script_that_is_resumed_finds_the_results_of_its_calls_and_its_state(tmp_path: Path) -> None:
    times, out = Constant(3, (1.0, 2.0, 3.0)), tmp_path / "run.h5"
    with Pool(times=times) as pool:
        expected = search(pool)
    values = computed.copy()
    computed.clear()
    for fails_at[:] in ([values[9]], [values[20]], []):
        with suppress(mpi_ata.ItemError), Pool(times=times, out=out, resume=True) as pool:
            found = search(pool)
    assert found == expected
    assert set(computed) == set(values)
    assert len(computed) <= len(values) + 2 * 3, "what was under way is computed again"
    computed.clear()
    with Pool(times=times, out=out, resume=True) as pool:
        assert search(pool) == expected
    assert not computed, "all is in the file"
    run = mpi_ata.load(out)
    assert (run.summary["finished"], run.x["generation"], run.summary["tasks_lost"]) == (True, 2, 0)
    assert run.summary["tasks_used"] == len(values)
    assert "point x" not in call("show", str(out)).stdout
    assert sum(row["tasks"] for row in run.workers) == len(values) + 2, "with the two that failed"
    assert [event["kind"] for event in run.events if event["kind"] != "resumed"].count("failed") == 2
    with (
        pytest.raises(RunError, match=r"call 0 of map\(\) was describe with 6 items, and is now describe w"),
        Pool(times=times, out=out, resume=True) as pool,
    ):
        search(pool, count=5)
    with (
        pytest.raises(RunError, match="is now the same with other items or another seed: a resumed script"),
        Pool(times=times, out=out, resume=True) as pool,
    ):
        pool.map(describe, range(6))


def test_what_cannot_be_saved_is_said_and_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with Pool(times=Constant(1, (1.0,)), out=tmp_path / "run.h5", resume=True) as pool:
            assert pool.map(Sampler, [1, 2])[1].pool == 2
    assert caplog.text.count("the result of item 0 is of type Sampler, but a value must be") == 2
    with Pool(times=Constant(1, (1.0,))) as pool:
        with pytest.raises(RunError, match=r"state\['a'\] is of type Sampler, but"):
            pool.state["a"] = Sampler(pool)
        results = pool.imap(abs, [1, 2])
        next(results)
        with pytest.raises(UsageError, match=r"state can be changed between calls of map\(\)"):
            pool.state["b"] = 1
        assert not pool.state


def test_a_pool_starts_with_the_speeds_of_earlier_ones(tmp_path: Path) -> None:
    clocks: list[float] = []
    for warm_start in ((), tmp_path):
        out = tmp_path / f"{len(clocks)}.h5"
        with Pool(times=Constant(3, (1.0, 1.0, 9.0)), out=out, warm_start=warm_start) as pool:
            pool.map(abs, range(4))
        clocks.append(mpi_ata.load(out).summary["clock"])
    assert clocks[1] == 2.0 < clocks[0], "the slow worker gets none of four items"


def test_a_cluster_with_a_problem_is_recorded_by_run(tmp_path: Path) -> None:
    with (
        pytest.raises(
            UsageError, match=r"out of cluster\(\) is for farms; with a problem, pass it to mpi_ata"
        ),
        mpi_ata.cluster(mpi_ata.Quadratic(3), times=Constant(1, (1.0,)), out=tmp_path / "run.h5"),
    ):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda pool: pool.map(5, [1]), r"map\(\) calls a function, but 5 cannot be called"),
        (lambda pool: pool.map(abs, 5), r"map\(\) needs a list of items: .* object is not iterable"),
        (lambda pool: pool.starmap(abs, [5]), r"each item of starmap\(\) has to be a list of arguments"),
    ],
)
def test_wrong_arguments_of_a_map_are_rejected(
    pool: Pool, call: Callable[[Pool], object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        call(pool)


@pytest.mark.parametrize(
    "before", ["", "import builtins; builtins.__IPYTHON__ = True; __file__ = 'script.py'; "]
)
def test_a_pool_in_a_notebook_says_that_ranks_need_a_script(before: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()  # which %run has been given
    done = subprocess.run(
        [sys.executable, "-c", f"{before}import mpi_ata; mpi_ata.Pool(workers=4)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs a script that all ranks can run: save this as SCRIPT.py" in done.stderr
    assert "minimize" not in done.stderr


def test_an_executor_simulates_too() -> None:
    with mpi_ata.Executor(times=Constant(2, (1.0, 3.0))) as executor:
        futures = [executor.submit(divmod, 7, value) for value in (2, 0)]
        assert futures[0].result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            futures[1].result()
    with pytest.raises(UsageError, match=r"Executor\(\) has no argument 'out'; use a Pool"):
        mpi_ata.Executor(times=Constant(2, (1.0, 3.0)), out="run.h5")


EDITED = """
def helper(x):
    return x in {1, "a", "b"} and 0 or x * FACTOR

def f(x):
    return helper(x)
"""


def test_results_of_code_that_was_edited_are_not_taken_for_those_of_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def total(text: str, **options: Any) -> int:
        (tmp_path / "edited.py").write_text(text)
        sys.modules.pop("edited", None)
        function = partial(importlib.import_module("edited").f)
        given: dict[str, Any] = {"times": Constant(3, 1.0), "out": tmp_path / "run.h5", "resume": True}
        with Pool(**given, **options) as pool:
            return sum(pool.map(function, range(4)))

    first = EDITED.replace("FACTOR", "2")
    assert total(first) == total(f"# another line\n{first}") == 12
    second = EDITED.replace("FACTOR", "3")  # in a function that the one which is mapped calls
    with pytest.raises(
        RunError, match="was f, whose code has changed since then: choose another out, or keep"
    ):
        total(second)
    assert total(second, accept_changes=True) == total(second) == 12
