"""Samplers of PyTorch: each pass of a sampler is used once, whoever takes its samples."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mpi_ata import SGD, UTA, DrawnTimes, Plain, Sqrt, TorchProblem, VirtualCluster
from mpi_ata.errors import RunError
from mpi_ata.torch.epochs import sequence

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

data: Any = torch.utils.data
SIZE = 12


def samples_of(batches: Any, count: int) -> list[int]:
    return [int(sample) for index in range(count) for sample in batches.batch(index)]


def drawn(sampler: Any, batch_size: int = 3, seed: int = 0, **options: Any) -> Any:
    return sequence(SIZE, batch_size, seed, "replacement", sampler, **options)


def test_a_pass_has_what_the_sampler_yields() -> None:
    assert samples_of(drawn(data.SequentialSampler(range(SIZE))), 4) == list(range(SIZE))
    subset = drawn(data.SubsetRandomSampler([1, 5, 7]))
    assert [sorted(subset.batch(index).tolist()) for index in range(5)] == [[1, 5, 7]] * 5


def test_weighted_samplers_draw_by_their_weights() -> None:
    """1,200 draws with probabilities 0, 1/4, 3/4: the second is drawn 300 times, with a spread of 15."""
    sampler = data.WeightedRandomSampler([0.0, 1.0, 3.0], SIZE)
    counts = Counter(samples_of(drawn(sampler), 400))
    assert counts[0] == 0
    assert 300 - 5 * 15 < counts[1] < 300 + 5 * 15


@pytest.mark.parametrize("generator", [None, 7])
def test_passes_differ_and_depend_on_the_seed_alone(generator: int | None) -> None:
    """Every rank must find the same, whatever was drawn before, and from which generator."""

    def passes(seed: int) -> list[int]:
        torch.rand(3)
        own = None if generator is None else torch.Generator().manual_seed(generator + seed)
        return samples_of(drawn(data.RandomSampler(range(SIZE), generator=own), seed=seed), 8)

    assert passes(1) == passes(1) != passes(2)
    first, second = passes(1)[:SIZE], passes(1)[SIZE:]
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first != second


def test_what_others_draw_is_not_disturbed_by_a_pass() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    wanted = torch.rand(1).item(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    drawn(data.RandomSampler(range(SIZE))).batch(0)
    assert (torch.rand(1).item(), np.random.rand()) == wanted  # noqa: NPY002


def test_batch_samplers_decide_which_samples_are_together() -> None:
    batches = [[0, 1], [2, 3, 4], [5]]
    found = drawn(None, batch_sampler=batches)
    assert [found.batch(index).tolist() for index in range(4)] == [*batches, [0, 1]]
    shuffled = drawn(
        None, batch_sampler=data.BatchSampler(data.RandomSampler(range(SIZE)), 5, drop_last=False)
    )
    assert [len(shuffled.batch(index)) for index in range(6)] == [5, 5, 2] * 2
    assert sorted(samples_of(shuffled, 3)) == list(range(SIZE))


def test_workers_share_the_passes_of_a_sampler() -> None:
    """The gradient of sample i is e_i, and powers of two are exact: x counts what was used."""
    dataset = [(torch.eye(SIZE)[i], torch.zeros(1)) for i in range(SIZE)]
    model = torch.nn.Linear(SIZE, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    sampler = data.SubsetRandomSampler(range(0, SIZE, 2))
    problem = TorchProblem(model, lambda outputs, _: outputs.sum(), dataset, 2, sampler=sampler)
    method = SGD(problem.x0, UTA(3, 3), Plain(1.0))
    cluster = VirtualCluster(problem, DrawnTimes(Sqrt(3)))
    for _ in range(4):  # 3 batches of 2 samples are one pass
        method.step(cluster)
    assert np.rint(-3 * method.x).tolist() == [4, 0] * (SIZE // 2)


class Shrinking(data.Sampler):  # type: ignore[misc]  # PyTorch has no types here
    """Does not yield what its length promises."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter([1, 2])


def test_a_sampler_must_yield_what_its_length_says() -> None:
    with pytest.raises(RunError, match="Shrinking has yielded 2 entries, but its length is 5"):
        drawn(Shrinking()).batch(0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sampler": iter([1])}, "list_iterator has no length, or the length 0; a sampler needs one"),
        ({"sampler": [1], "batch_sampler": [[1]]}, "exclude each other; keep one of them"),
        ({"sampler": [1], "shuffle": "epoch"}, "exclude each other; keep one of them"),
        ({"shuffle": "often"}, "shuffle='often' must be 'replacement' or 'epoch'"),
        ({"sampler": [1], "sharded": True}, "remove shuffle='epoch', or the sampler"),
        (
            {"sampler": data.DistributedSampler(range(SIZE), num_replicas=2, rank=0)},
            "a DistributedSampler divides samples among ranks",
        ),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0"),
        ({"wire": "int8"}, "wire='int8' must be one of float32, bfloat16"),
        ({"dataset": iter([1])}, "the dataset list_iterator has no length"),
    ],
)
def test_invalid_choices_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    dataset = options.pop("dataset", [(torch.zeros(1), torch.zeros(1))] * SIZE)
    with pytest.raises(ValueError, match=sentence):
        TorchProblem(torch.nn.Linear(1, 1), torch.nn.MSELoss(), dataset, **options)
