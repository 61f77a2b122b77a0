"""Numbers that travel as bfloat16: rounded to the nearest, ties to even, and nothing else changes."""

from typing import Any

import numpy as np
import pytest

from mpi_ata import SGD, UTA, Constant, DrawnTimes, Plain, VirtualCluster
from mpi_ata.arrays import Array
from mpi_ata.clusters.bfloat16 import Wire


def bits(*values: int) -> Array:
    return np.array(values, np.uint32).view(np.float32)


def sent(values: Array, halved: int) -> Array:
    wire = Wire(values, halved)
    data = wire.pack(values)
    assert data.nbytes == 2 * halved + 4 * (values.size - halved)
    return wire.unpack(data, np.full_like(values, 7.0))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0x3F80_0000, 0x3F80_0000),  # 1
        (0x3F80_7FFF, 0x3F80_0000),  # just below the middle
        (0x3F80_8000, 0x3F80_0000),  # a tie: to the even one, below
        (0x3F81_8000, 0x3F82_0000),  # a tie: to the even one, above
        (0x3F80_8001, 0x3F81_0000),  # just above the middle
        (0xBF80_8001, 0xBF81_0000),  # the same for negative numbers
        (0x8000_0000, 0x8000_0000),  # -0
        (0x0000_0001, 0x0000_0000),  # far below the least bfloat16
        (0x7F80_0000, 0x7F80_0000),  # infinity
        (0x7F7F_FFFF, 0x7F80_0000),  # the largest float32 is nearer to infinity
    ],
)
def test_numbers_are_rounded_to_the_nearest_ties_to_even(value: int, wanted: int) -> None:
    assert sent(bits(value), 1).view(np.uint32).tolist() == [wanted]


def test_nan_stays_nan() -> None:
    assert np.isnan(sent(bits(0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0001), 3)).all()


@pytest.mark.parametrize("size", [1, 7, 300_000])  # the last one is rounded block by block
def test_each_number_is_off_by_at_most_its_256th_part_and_what_follows_by_nothing(size: int) -> None:
    values = np.random.default_rng(0).normal(0, 1e3, size + 2).astype(np.float32)
    found = sent(values, size)
    assert (np.abs(found - values)[:size] <= 2.0**-8 * np.abs(values[:size])).all()
    assert found[size:].tolist() == values[size:].tolist()
    rounded = values.copy()
    Wire(values, size).round(rounded)
    assert rounded.tobytes() == found.tobytes(), "as ranks of one node share it"


def test_rounding_agrees_with_pytorch() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")
    values = np.random.default_rng(1).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    wanted = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(sent(values, values.size), wanted)


def test_only_float32_can_be_halved() -> None:
    with pytest.raises(ValueError, match="x0 is float64, but only float32 can be sent as bfloat16"):
        Wire(np.zeros(3), 3)


class Thirds:
    """The gradient is a third; how x looks to tasks is kept."""

    def __init__(self, **halved: int) -> None:
        self.x0 = np.array([1 / 3, 1 / 3], np.float32)
        self.seen = self.x0
        vars(self).update(halved)

    def gradient(self, x: Array, task: object) -> Array:
        self.seen = x
        return np.full(2, 1 / 3, np.float32)


def moved(problem: Thirds) -> Array:
    method = SGD(problem.x0, UTA(1, 1), Plain(1.0))
    method.step(VirtualCluster(problem, DrawnTimes(Constant(1))))
    return method.x


def test_simulated_results_and_points_are_rounded_as_far_as_the_problem_says() -> None:
    third, near = np.float32(1 / 3), np.float32(0.333984375)
    assert moved(Thirds()).tolist() == [0, 0]
    assert moved(Thirds(halved_results=1)).tolist() == [third - near, 0]
    problem = Thirds(halved_x=1)
    assert moved(problem).tolist() == [0, 0], "x itself keeps all its bits"
    assert problem.seen.tolist() == [near, third]
