"""Epochs and samplers: each sample of a pass once, whoever draws it, through faults, stops and resume."""

from collections import Counter
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
    TorchProblem,
    Trainer,
    VirtualCluster,
)
from mpi_ata.clusters import FaultPolicy
from mpi_ata.errors import RunError, UsageError
from mpi_ata.torch.data import Epochs, sequence
from mpi_ata.torch.loaders import Reader
from tests.torch.scene import drained, nn, task, torch

samplers: Any = torch.utils.data
SIZE, BATCH, FEW = 24, 2, 12
SCALE = 64.0  # powers of two: sums of counts are exact
SEEN: list[int] = []  # indices of the tasks of Watched


def counting() -> Any:
    model = nn.Linear(SIZE, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def dataset() -> list[Any]:
    return [(torch.eye(SIZE)[i], torch.zeros(1)) for i in range(SIZE)]


def summed(outputs: Any, targets: Any) -> Any:
    return outputs.sum()


class Watched(TorchProblem):
    """A problem whose gradient says which samples were drawn: those of sample i have the slope e_i."""

    def __init__(self, **options: Any) -> None:
        super().__init__(counting, summed, dataset(), BATCH, **options)

    def gradients(self, x: Any, tasks: Any) -> Any:
        SEEN.extend(task.index for task in tasks if task.index is not None)
        return super().gradients(x, tasks)


def steps(method: Any, problem: TorchProblem, count: int, law: Any = None, **options: Any) -> Any:
    cluster = VirtualCluster(problem, DrawnTimes(law or Sqrt(3)), **options)
    for _ in range(count):
        method.step(cluster)
    return method


def drawn(x: Any, updates: float) -> list[int]:
    """Return how often each sample went into x, which moved by SCALE / B times the count in each round."""
    return [round(-float(value) * updates / SCALE) for value in x[:SIZE]]


METHODS: list[Any] = [
    (lambda x0: SGD(x0, UTA(3, 6), Plain(SCALE)), 6),
    (lambda x0: SGD(x0, GTA(3, 6), Plain(SCALE)), 6),
    (lambda x0: ASGD(x0, UTA(3, 6), Plain(SCALE)), 1),
]


@pytest.mark.parametrize(("method", "divisor"), METHODS)
@pytest.mark.parametrize("epochs", [1, 4])
def test_each_sample_is_used_once_per_epoch(method: Any, divisor: int, epochs: int) -> None:
    problem = Watched(shuffle="epoch")
    running = steps(method(problem.x0), problem, 2 * epochs)  # 6 tasks of 2 samples are half an epoch
    counts = drawn(running.x, divisor)
    assert sum(counts) == epochs * SIZE
    # A greedy round leaves numbers to be drawn first in the next: at any time at most 3 x 6 are ahead.
    greedy = isinstance(running.allocator, GTA)
    assert set(counts) <= (set(range(epochs - 1, epochs + 3)) if greedy else {epochs})


def test_no_number_is_ever_used_twice_by_a_greedy_method() -> None:
    SEEN.clear()
    problem = Watched(shuffle="epoch")
    steps(Ringmaster(problem.x0, 3, Plain(0.1), 2, 6), problem, 10)
    assert max(Counter(SEEN).values()) == 1, "the virtual cluster computes what is used alone"
    assert set(range(50)) <= set(SEEN)


def test_lost_tasks_are_drawn_again_by_others() -> None:
    problem = Watched(shuffle="epoch")
    method = SGD(problem.x0, UTA(3, 6), Plain(SCALE))
    steps(method, problem, 4, Constant(3), faults=[Fault(1.5, 2, "die")], policy=FaultPolicy())
    assert drawn(method.x, 6) == [2] * SIZE


@pytest.mark.parametrize("workers", [3, 2])
def test_a_resumed_run_continues_its_epoch_on_the_same_and_on_other_workers(
    workers: int, tmp_path: Path
) -> None:
    def trained(rounds: int, n: int) -> Trainer:
        model = counting()
        options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=SCALE), "budget": 3}
        options |= {"allocator": "uta", "times": Sqrt(n), "out": tmp_path / "run.h5", "resume": True}
        with Trainer(model, summed, dataset(), BATCH, shuffle="epoch", rounds=rounds, **options) as trainer:
            return drained(trainer)  # type: ignore[no-any-return]

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


def test_methods_that_order_without_end_are_refused_and_a_task_outside_of_a_run_draws_at_random() -> None:
    problem = Watched(shuffle="epoch")
    with pytest.raises(UsageError, match="shuffle='epoch' needs orders of a known number of tasks"):
        steps(Malenia(problem.x0, Plain(0.1), 6), problem, 1)
    assert problem.gradient(problem.x0, task(round=0)).sum() == BATCH


def samples_of(batches: Any, count: int) -> list[int]:
    return [int(sample) for index in range(count) for sample in batches.minibatch(index)]


def sampled(sampler: Any, batch_size: int = 3, seed: int = 0, **options: Any) -> Any:
    return sequence(FEW, batch_size, seed, "replacement", sampler, **options)


def test_a_pass_has_what_the_sampler_yields() -> None:
    assert samples_of(sampled(samplers.SequentialSampler(range(FEW))), 4) == list(range(FEW))
    subset = sampled(samplers.SubsetRandomSampler([1, 5, 7]))
    assert [sorted(subset.minibatch(index).tolist()) for index in range(5)] == [[1, 5, 7]] * 5
    # 1,200 draws with probabilities 0, 1/4, 3/4: the second is drawn 300 times, with a spread of 15.
    counts = Counter(samples_of(sampled(samplers.WeightedRandomSampler([0.0, 1.0, 3.0], FEW)), 400))
    assert counts[0] == 0
    assert 300 - 5 * 15 < counts[1] < 300 + 5 * 15


class FromNumpy(samplers.SequentialSampler):  # type: ignore[misc]  # PyTorch has no types here
    """Draws from the global generator of numpy."""

    def __iter__(self) -> Any:
        return iter(np.random.permutation(FEW).tolist())  # noqa: NPY002


def seeded(samples: range) -> Any:
    return samplers.RandomSampler(samples, generator=torch.Generator())


@pytest.mark.parametrize("sampler", [samplers.RandomSampler, seeded, FromNumpy])
def test_passes_differ_and_depend_on_the_seed_alone(sampler: Any) -> None:
    """Every rank must find the same, whatever was drawn before, and from which generator."""

    def passes(seed: int) -> list[int]:
        torch.rand(3)
        np.random.rand()  # noqa: NPY002
        return samples_of(sampled(sampler(range(FEW)), seed=seed), 8)

    assert passes(1) == passes(1) != passes(2)
    first, second = passes(1)[:FEW], passes(1)[FEW:]
    assert sorted(first) == sorted(second) == list(range(FEW))
    assert first != second


class OwnGenerator(samplers.SequentialSampler):  # type: ignore[misc]  # PyTorch has no types here
    """Draws from a generator that nobody else knows."""

    rng = np.random.default_rng(1)

    def __iter__(self) -> Any:
        return iter(self.rng.permutation(FEW).tolist())


def test_a_sampler_whose_passes_cannot_be_repeated_is_rejected() -> None:
    """Not all ranks draw all passes, so they would disagree on the samples of a batch."""
    sampler = OwnGenerator(range(FEW))
    sentence = "OwnGenerator yields other samples when it is asked again for the same pass; let it draw from"
    with pytest.raises(UsageError, match=sentence):
        sampled(sampler)
    with pytest.raises(UsageError, match="BatchSampler yields other samples"):
        sampled(None, batch_sampler=samplers.BatchSampler(sampler, 4, drop_last=False))


def test_what_others_draw_is_not_disturbed_by_a_pass() -> None:
    drawn = []
    for draw in (lambda: None, lambda: sampled(samplers.RandomSampler(range(FEW))).minibatch(0)):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        draw()
        drawn.append((torch.rand(1).item(), np.random.rand()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_batch_samplers_decide_which_samples_are_together() -> None:
    batches = [[0, 1], [2, 3, 4], [5]]
    found = sampled(None, batch_sampler=batches)
    assert [found.minibatch(index).tolist() for index in range(4)] == [*batches, [0, 1]]
    fives = samplers.BatchSampler(samplers.RandomSampler(range(FEW)), 5, drop_last=False)
    shuffled = sampled(None, batch_sampler=fives)
    assert [len(shuffled.minibatch(index)) for index in range(6)] == [5, 5, 2] * 2
    assert sorted(samples_of(shuffled, 3)) == list(range(FEW))


def test_workers_share_the_passes_of_a_sampler() -> None:
    problem = Watched(sampler=samplers.SubsetRandomSampler(range(0, SIZE, 2)))
    method = SGD(problem.x0, UTA(3, 3), Plain(SCALE))
    steps(method, problem, 4)  # 6 batches of 2 samples are one pass
    assert drawn(method.x, 3) == [2, 0] * (SIZE // 2)


class Shrinking(samplers.Sampler):  # type: ignore[misc]  # PyTorch has no types here
    """Does not yield what its length promises."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter([1, 2])


def test_the_parts_of_an_evaluation_are_equal_and_have_each_sample_once() -> None:
    """A short last part would end at once, and its worker would take over from others."""
    parts = [Reader([range(512)], None).part(0, part, 250).samples.tolist() for part in range(3)]
    assert sorted(map(len, parts)) == [170, 171, 171]
    assert [number for part in parts for number in part] == list(range(512))


def test_a_dataset_may_have_a_method_batch_of_its_own() -> None:
    """As datasets.Dataset has: it groups samples there."""
    own = type("Own", (list,), {"batch": lambda self, batch_size, drop_last_batch=False: self})
    reader = Reader([own([1.0, 2.0, 3.0])], None)
    assert reader.read(reader.part(0, 0, 3)).tolist() == [1.0, 2.0, 3.0]


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
    ],
)
def test_invalid_choices_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Watched(**options)
