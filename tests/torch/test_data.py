"""Epochs and samplers: each sample of a pass once, whoever draws it, through faults, stops and resume."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import (
    ASGD,
    GTA,
    SGD,
    UTA,
    Constant,
    DrawnTimes,
    Fault,
    Malenia,
    Plain,
    Ringmaster,
    Sqrt,
    Task,
    TorchProblem,
    Trainer,
    VirtualCluster,
)
from mpi_ata.clusters import FaultPolicy
from mpi_ata.errors import RunError, UsageError
from mpi_ata.problems import task_streams
from mpi_ata.torch.data import Epochs, sequence

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

nn: Any = torch.nn
samplers: Any = torch.utils.data
SIZE, BATCH = 24, 2
SCALE = 64.0  # powers of two: sums of counts are exact


def counting() -> Any:
    model = nn.Linear(SIZE, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def a_problem(**options: Any) -> TorchProblem:
    """A problem whose gradient says which samples were drawn: those of sample i have the slope e_i."""
    dataset = [(torch.eye(SIZE)[i], torch.zeros(1)) for i in range(SIZE)]
    loss = lambda outputs, _: outputs.sum()  # noqa: E731
    return TorchProblem(counting, loss, dataset, BATCH, shuffle="epoch", **options)


def drawn(x: Any, updates: float) -> list[int]:
    """Return how often each sample went into x, which moved by SCALE / B times the count in each round."""
    return [round(-float(value) * updates / SCALE) for value in x[:SIZE]]


METHODS: list[Any] = [
    (lambda x0: SGD(x0, UTA(3, 6), Plain(SCALE)), 6),
    (lambda x0: SGD(x0, GTA(3, 6), Plain(SCALE)), 6),
    (lambda x0: ASGD(x0, UTA(3, 6), Plain(SCALE)), 1),
]


@pytest.mark.parametrize(("method", "divisor"), METHODS)
def test_each_sample_is_used_once_per_epoch(method: Any, divisor: int) -> None:
    problem = a_problem()
    running = method(problem.x0)
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(3)))
    for _ in range(2):  # 6 tasks of 2 samples are half an epoch
        running.step(cluster)
    counts = drawn(running.x, divisor)
    exact = not isinstance(running.allocator, GTA)
    assert sum(counts) == SIZE
    assert set(counts) <= ({1} if exact else {0, 1, 2})
    for _ in range(6):
        running.step(cluster)
    counts = drawn(running.x, divisor)
    assert sum(counts) == 4 * SIZE
    # A greedy round leaves numbers to be drawn first in the next: at any time at most 3 x 6 are ahead.
    assert set(counts) <= ({4} if exact else {3, 4, 5, 6})


def test_no_number_is_ever_used_twice_by_a_greedy_method() -> None:
    seen: list[int] = []

    class Watched(TorchProblem):
        def gradient(self, x: Any, task: Task) -> Any:
            assert task.index is not None
            seen.append(task.index)
            return super().gradient(x, task)

    dataset = [(torch.eye(SIZE)[i], torch.zeros(1)) for i in range(SIZE)]
    problem = Watched(counting, nn.MSELoss(), dataset, BATCH, shuffle="epoch")
    method, cluster = (
        Ringmaster(problem.x0, 3, Plain(0.1), 2, 6),
        VirtualCluster(problem, DrawnTimes(Sqrt(3))),
    )
    for _ in range(10):
        method.step(cluster)
    assert max(Counter(seen).values()) == 1, "the virtual cluster computes what is used alone"
    assert set(range(50)) <= set(seen)


def test_lost_tasks_are_drawn_again_by_others() -> None:
    problem = a_problem()
    method = SGD(problem.x0, UTA(3, 6), Plain(SCALE))
    faults = [Fault(1.5, 2, "die")]
    cluster = VirtualCluster(problem, DrawnTimes(Constant(3)), faults=faults, policy=FaultPolicy())
    for _ in range(4):
        method.step(cluster)
    assert drawn(method.x, 6) == [2] * SIZE


@pytest.mark.parametrize("workers", [3, 2])
def test_a_resumed_run_continues_its_epoch_on_the_same_and_on_other_workers(
    workers: int, tmp_path: Path
) -> None:
    def trained(rounds: int, n: int) -> Trainer:
        dataset = [(torch.eye(SIZE)[i], torch.zeros(1)) for i in range(SIZE)]
        model = counting()
        with Trainer(
            model,
            lambda outputs, _: outputs.sum(),
            dataset,
            BATCH,
            shuffle="epoch",
            budget=3,
            optimizer=torch.optim.SGD(model.parameters(), lr=SCALE),
            allocator="uta",
            times=Sqrt(n),
            rounds=rounds,
            out=tmp_path / "run.h5",
            resume=True,
        ) as trainer:
            for _ in islice(trainer, rounds):
                pass
        return trainer

    trained(3, 3)
    assert drawn(trained(8, workers).x, 3) == [2] * SIZE


def test_epochs_are_different_permutations_that_depend_on_the_seed() -> None:
    def epoch(number: int, seed: int) -> list[int]:
        epochs = Epochs(12, 3, seed)
        batches = [epochs.minibatch(index).tolist() for index in range(4 * number, 4 * number + 4)]
        return [sample for batch in batches for sample in batch]

    assert sorted(epoch(0, 1)) == sorted(epoch(7, 1)) == list(range(12))
    assert len({tuple(epoch(number, seed)) for number in (0, 1) for seed in (1, 2)}) == 4


def test_a_batch_may_reach_into_the_next_epoch() -> None:
    epochs = Epochs(5, 3, 0)
    whole = np.concatenate([epochs.minibatch(index) for index in range(5)]).tolist()
    assert [sorted(whole[begin : begin + 5]) for begin in (0, 5, 10)] == [list(range(5))] * 3


def test_methods_that_order_without_end_are_refused() -> None:
    problem = a_problem()
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(3)))
    with pytest.raises(UsageError, match="shuffle='epoch' needs orders of a known number of tasks"):
        Malenia(problem.x0, Plain(0.1), 6).step(cluster)


def test_a_task_outside_of_a_run_draws_at_random() -> None:
    assert a_problem().gradient(a_problem().x0, Task(task_streams(0), 0, 0, 0)).sum() == BATCH


FEW = 12


def samples_of(batches: Any, count: int) -> list[int]:
    return [int(sample) for index in range(count) for sample in batches.minibatch(index)]


def sampled(sampler: Any, batch_size: int = 3, seed: int = 0, **options: Any) -> Any:
    return sequence(FEW, batch_size, seed, "replacement", sampler, **options)


def test_a_pass_has_what_the_sampler_yields() -> None:
    assert samples_of(sampled(samplers.SequentialSampler(range(FEW))), 4) == list(range(FEW))
    subset = sampled(samplers.SubsetRandomSampler([1, 5, 7]))
    assert [sorted(subset.minibatch(index).tolist()) for index in range(5)] == [[1, 5, 7]] * 5


def test_weighted_samplers_draw_by_their_weights() -> None:
    """1,200 draws with probabilities 0, 1/4, 3/4: the second is drawn 300 times, with a spread of 15."""
    sampler = samplers.WeightedRandomSampler([0.0, 1.0, 3.0], FEW)
    counts = Counter(samples_of(sampled(sampler), 400))
    assert counts[0] == 0
    assert 300 - 5 * 15 < counts[1] < 300 + 5 * 15


@pytest.mark.parametrize("generator", [None, 7])
def test_passes_differ_and_depend_on_the_seed_alone(generator: int | None) -> None:
    """Every rank must find the same, whatever was drawn before, and from which generator."""

    def passes(seed: int) -> list[int]:
        torch.rand(3)
        own = None if generator is None else torch.Generator().manual_seed(generator + seed)
        return samples_of(sampled(samplers.RandomSampler(range(FEW), generator=own), seed=seed), 8)

    assert passes(1) == passes(1) != passes(2)
    first, second = passes(1)[:FEW], passes(1)[FEW:]
    assert sorted(first) == sorted(second) == list(range(FEW))
    assert first != second


def test_what_others_draw_is_not_disturbed_by_a_pass() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    wanted = torch.rand(1).item(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    sampled(samplers.RandomSampler(range(FEW))).minibatch(0)
    assert (torch.rand(1).item(), np.random.rand()) == wanted  # noqa: NPY002


def test_batch_samplers_decide_which_samples_are_together() -> None:
    batches = [[0, 1], [2, 3, 4], [5]]
    found = sampled(None, batch_sampler=batches)
    assert [found.minibatch(index).tolist() for index in range(4)] == [*batches, [0, 1]]
    shuffled = sampled(
        None, batch_sampler=samplers.BatchSampler(samplers.RandomSampler(range(FEW)), 5, drop_last=False)
    )
    assert [len(shuffled.minibatch(index)) for index in range(6)] == [5, 5, 2] * 2
    assert sorted(samples_of(shuffled, 3)) == list(range(FEW))


def test_workers_share_the_passes_of_a_sampler() -> None:
    """The gradient of sample i is e_i, and powers of two are exact: x counts what was used."""
    dataset = [(torch.eye(FEW)[i], torch.zeros(1)) for i in range(FEW)]
    model = torch.nn.Linear(FEW, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    sampler = samplers.SubsetRandomSampler(range(0, FEW, 2))
    problem = TorchProblem(model, lambda outputs, _: outputs.sum(), dataset, 2, sampler=sampler)
    method = SGD(problem.x0, UTA(3, 3), Plain(1.0))
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(3)))
    for _ in range(4):  # 3 batches of 2 samples are one pass
        method.step(cluster)
    assert np.rint(-3 * method.x).tolist() == [4, 0] * (FEW // 2)


class Shrinking(samplers.Sampler):  # type: ignore[misc]  # PyTorch has no types here
    """Does not yield what its length promises."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter([1, 2])


def test_a_sampler_must_yield_what_its_length_says() -> None:
    with pytest.raises(RunError, match="Shrinking has yielded 2 entries, but its length is 5"):
        sampled(Shrinking()).minibatch(0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sampler": iter([1])}, "list_iterator has no length, or the length 0; a sampler needs one"),
        ({"sampler": [1], "batch_sampler": [[1]]}, "exclude each other; keep one of them"),
        ({"sampler": [1], "shuffle": "epoch"}, "exclude each other; keep one of them"),
        ({"shuffle": "often"}, "shuffle='often' must be 'replacement' or 'epoch'"),
        ({"sampler": [1], "sharded": True}, "remove shuffle='epoch', or the sampler"),
        (
            {"sampler": samplers.DistributedSampler(range(FEW), num_replicas=2, rank=0)},
            "a DistributedSampler divides samples among ranks",
        ),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0"),
        ({"wire": "int8"}, "wire='int8' must be one of float32, bfloat16"),
        ({"dataset": iter([1])}, "the dataset list_iterator has no length"),
    ],
)
def test_invalid_choices_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    dataset = options.pop("dataset", [(torch.zeros(1), torch.zeros(1))] * FEW)
    with pytest.raises(ValueError, match=sentence):
        TorchProblem(torch.nn.Linear(1, 1), torch.nn.MSELoss(), dataset, **options)
