"""Loader processes: they read ahead, change no result, and leave nothing behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import Task, TorchProblem
from mpi_ata.clusters.mpi.worker import ExpectedTasks
from mpi_ata.errors import RunError
from mpi_ata.problems import task_streams
from mpi_ata.torch.loaders import ReadRequest
from tests.torch.scene import nn

from tests.torch.datasets import Broken, Globally, Noisy, collate, unchanged  # isort: skip

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def a_problem() -> Iterator[Callable[..., TorchProblem]]:
    """Build problems on worker 0; their loader processes end with the test."""
    built: list[TorchProblem] = []

    def build(dataset: Any = None, features: int = 3, **options: Any) -> TorchProblem:
        model = lambda: nn.Sequential(nn.Linear(features, 4), nn.Dropout(0.5), nn.Linear(4, 2))  # noqa: E731
        problem = TorchProblem(model, nn.CrossEntropyLoss(), dataset or Noisy(), 4, **options)
        built.append(problem)
        problem.setup(0, 1)
        return problem

    yield build
    for problem in built:
        problem._minibatches.loaders.close()


def tasks(round: int, count: int, first: int | None = None) -> list[Task]:
    indices = [None] * count if first is None else [first + j for j in range(count)]
    return [Task(task_streams(0), round, 0, j, None, index) for j, index in enumerate(indices)]


def gradients(problem: TorchProblem, rounds: int = 3, count: int = 3, indexed: bool = False) -> bytes:
    """Do what a worker does with orders of `count` tasks, and return all results."""
    expected, found = ExpectedTasks(task_streams(0), 0), b""
    for k in range(rounds):
        first = 5 * k if indexed else None  # other workers have the two indices in between
        own = tasks(k + 1, count, first)
        problem.expect(expected.of_order(k + 1, 0, count, [t.index for t in own if t.index is not None]))
        for task in own:
            found += problem.gradient(problem.x0, task).tobytes()
    return found


@pytest.mark.parametrize("options", [{}, {"shuffle": "epoch"}])
def test_any_number_of_loader_processes_gives_the_same_results(a_problem: Any, options: Any) -> None:
    """Transforms and dropout draw random numbers, and some of what is read ahead is never asked for."""
    found = {gradients(a_problem(num_workers=count, **options), indexed=bool(options)) for count in (0, 1, 3)}
    assert len(found) == 1


def test_wrong_guesses_change_no_result(a_problem: Any) -> None:
    loading, plain = a_problem(num_workers=2), a_problem()
    loading.expect(iter(tasks(7, 5)))
    loading.expect(iter(tasks(8, 5)))
    for task in (*tasks(1, 3), *tasks(8, 2)):
        again = Task(task_streams(0), task.round, 0, task.number)
        assert loading.gradient(loading.x0, task).tobytes() == plain.gradient(plain.x0, again).tobytes()


def test_evaluations_and_collate_functions_use_loader_processes(a_problem: Any) -> None:
    options = {"features": 4, "collate_fn": collate, "test": Noisy(30), "evaluation_batch": 4}
    loading, plain = a_problem(num_workers=2, **options), a_problem(**options)
    assert loading.evaluate(loading.x0) == plain.evaluate(plain.x0)


def test_numpy_and_random_are_seeded_in_loader_processes(a_problem: Any) -> None:
    assert gradients(a_problem(Globally(), num_workers=1)) == gradients(a_problem(Globally(), num_workers=2))


def test_batches_are_read_while_others_are_used(a_problem: Any) -> None:
    """A batch takes 4 x 0.05 s to read: 9 of them 1.8 s, but with 3 processes a third of that, 0.6 s.

    The limit leaves as much again to a busy machine.
    """
    problem = a_problem(Noisy(seconds=0.05), num_workers=3)
    problem.gradient(problem.x0, tasks(0, 1)[0])
    began = time.perf_counter()
    gradients(problem)
    assert time.perf_counter() - began < 1.2


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("raises", r"cannot read a batch: .*datasets.py:\d+: ValueError: sample \d+ is damaged"),
        ("returns a lambda", "cannot read a batch: it cannot be sent to its task: .*lambda"),
        ("exits", r"a loader process has ended: it was killed, .* \(exit code 7\)"),
    ],
)
def test_what_fails_in_a_loader_process_fails_the_task(a_problem: Any, how: str, sentence: str) -> None:
    problem = a_problem(Broken(how), num_workers=1, collate_fn=unchanged)
    with pytest.raises(RunError, match=sentence):
        problem.gradient(problem.x0, tasks(1, 1)[0])


def test_a_process_that_was_killed_is_replaced(a_problem: Any) -> None:
    problem, plain = a_problem(num_workers=1), a_problem()
    [process] = problem._minibatches.loaders.processes.values()
    process.kill()
    with pytest.raises(RunError, match=r"a loader process has ended: .* \(exit code -9\)"):
        problem.gradient(problem.x0, tasks(1, 1)[0])
    assert gradients(problem) == gradients(plain)


def test_errors_in_what_was_read_ahead_in_vain_do_not_matter(a_problem: Any) -> None:
    problem = a_problem(Broken("raises beyond 11"), num_workers=1)
    loaders, numbers = problem._minibatches.loaders, np.arange(12)
    loaders.expect([ReadRequest(0, 1, numbers + 12)])
    assert len(loaders.get(ReadRequest(0, 2, numbers))[0]) == 12
    with pytest.raises(RunError, match="sample 12 is damaged"):
        loaders.get(ReadRequest(0, 1, numbers + 12))


def test_what_cannot_be_sent_to_a_loader_process_is_rejected(a_problem: Any) -> None:
    with pytest.raises(RunError, match="must be under if __name__ == '__main__':, and dataset and collate"):
        a_problem(collate_fn=lambda samples: samples, num_workers=1)


def test_a_simulation_reads_in_its_own_process(a_problem: Any) -> None:
    problem = TorchProblem(lambda: nn.Linear(3, 2), nn.CrossEntropyLoss(), Noisy(), 4, num_workers=2)
    problem.setup(None, 3)
    assert not problem._minibatches.loaders.processes
    assert np.isfinite(problem.gradient(problem.x0, tasks(1, 1)[0])).all()


SCRIPT = """
import os, sys, time
import numpy as np
from mpi_ata.torch.loaders import Loaders, Reader, ReadRequest
from tests.torch.datasets import Noisy

if __name__ == "__main__":
    loaders = Loaders(Reader([Noisy(seconds=60)], None), 2)
    loaders.expect(ReadRequest(0, seed, np.arange(2)) for seed in range(2))
    print(*[process.pid for process in loaders.processes.values()], flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "time.sleep(60)",
        "sys.exit(0)",
        pytest.param("os._exit(3)", marks=pytest.mark.slow),
        pytest.param("raise RuntimeError", marks=pytest.mark.slow),
    ],
)
def test_loader_processes_end_with_their_rank_however_it_ends(end: str) -> None:
    """They are busy for a minute when it does."""
    Path("script.py").write_text(SCRIPT.format(end=end))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "script.py"], env=environment, **pipes) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        if "sleep" in end:
            process.kill()
        process.wait(20)
    assert len(pids) == 2
    until = time.monotonic() + 10
    while any(map(is_there, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_there, pids))


def is_there(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]
    return False
