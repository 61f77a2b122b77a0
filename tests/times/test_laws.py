"""The laws of task times, and drawing from them by round and number."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.job.component import LAWS
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.times import Constant, DrawnTimes, Exponential, Linear, Mix, Sqrt

every_law = pytest.mark.parametrize("name", sorted(LAWS))
DRAWS = 20_000
LOGNORMAL = 3  # of the kinds in a group of the mix
SAMPLES = ("bytedance-ar", "bytedance-se")  # laws that draw from finitely many recorded times


def sample(law: Any, draws: int = DRAWS) -> Array:
    """Return one row per draw, one column per worker."""
    rng = np.random.default_rng(1)
    return np.array([law.draw(rng) for _ in range(draws)])


def assert_mean(values: Array, mean: float) -> None:
    """Within five standard errors: a true mean fails less than once in a million times."""
    assert values.mean() == pytest.approx(mean, abs=5 * values.std() / math.sqrt(len(values)), rel=1e-12)


@every_law
@pytest.mark.parametrize("n", [1, 4, 5, 7, 23])
def test_a_draw_gives_every_worker_a_time_above_0(name: str, n: int) -> None:
    law = LAWS[name](n=n)
    assert law.n == n
    assert law.means.shape == (n,)
    times = sample(law, 200)
    assert times.shape == (200, n)
    assert (times > 0.0).all()
    assert np.isfinite(times).all()


@every_law
def test_the_average_of_many_draws_is_the_mean(name: str) -> None:
    law = LAWS[name](n=7)
    times = sample(law)
    for worker in range(7):
        if name == "mix" and worker % 5 == LOGNORMAL:
            continue  # whose average varies too much
        assert_mean(times[:, worker], law.means[worker])


@pytest.mark.parametrize(
    ("law", "means"),
    [
        (Sqrt(4), [58.0, 58.0 * 2**0.5, 58.0 * 3**0.5, 116.0]),
        (Linear(3, 0.25), [0.5, 1.0, 1.5]),
        (Exponential(3), [2.0, 4.0, 6.0]),
        (Mix(12), [58.0] * 5 + [348.0] * 5 + [638.0] * 2),
        (Mix(6, 2.0), [4.0] * 5 + [24.0]),
        (Constant(3, 2.5), [2.5, 2.5, 2.5]),
        (Constant(3, [3.0, 1.0, 2.0]), [3.0, 1.0, 2.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_means_are_those_of_the_formulas(law: Any, means: list[float]) -> None:
    assert law.means == pytest.approx(means, rel=1e-15)
    assert not isinstance(law, Constant) or (sample(law, 5) == means).all()


@pytest.mark.parametrize(
    ("law", "shift"), [(Sqrt(9, 2.0), 6.0), (Linear(9, 2.0), 18.0), (Exponential(9), 0.0)]
)
def test_the_time_beyond_the_shift_is_exponential(law: Any, shift: float) -> None:
    beyond = sample(law)[:, 8] - shift
    scale = law.means[8] - shift
    assert beyond.min() >= 0.0
    # Only an exponential exceeds one, two and three scales with chances e^-1, e^-2 and e^-3.
    for scales in (1, 2, 3):
        assert_mean((beyond > scales * scale).astype(np.float64), math.exp(-scales))


@pytest.fixture(scope="module")
def mixed() -> Array:
    """Return draws of two groups of the mix."""
    return sample(Mix(10))


@pytest.mark.parametrize(
    ("kind", "deviation"),
    [
        (0, lambda m: m),  # exponential
        (1, lambda m: m / math.sqrt(12)),  # uniform from m / 2 to 3 m / 2
        (2, lambda m: m * math.sqrt(math.pi / 2 - 1)),  # half-normal
        (4, lambda _: 1.0),  # gamma of shape m^2 and scale 1 / m
    ],
    ids=["exponential", "uniform", "half-normal", "gamma"],
)
@pytest.mark.parametrize("group", [0, 1])
def test_the_kinds_of_the_mix_spread_as_they_should(
    mixed: Array, kind: int, deviation: Callable[[float], float], group: int
) -> None:
    m = 29.0 * (5 * group + 1)
    times = mixed[:, 5 * group + kind]
    # The sample deviation of the widest, the exponential, has a standard error of 1 %.
    assert times.std() == pytest.approx(deviation(m), rel=0.05)
    assert times.min() > (1.5 * m if kind == 1 else m)
    assert kind != 1 or times.max() < 2.5 * m


@pytest.mark.parametrize("group", [0, 1])
def test_the_lognormal_of_the_mix_has_the_logarithm_of_the_paper(mixed: Array, group: int) -> None:
    m = 29.0 * (5 * group + 1)
    logs = np.log(mixed[:, 5 * group + LOGNORMAL] - m)
    assert_mean(logs, math.log(m) / 2)
    assert_mean((logs - math.log(m) / 2) ** 2, math.log(m))
    # Half of the times lie below the median sqrt(m).
    assert_mean((logs < math.log(math.sqrt(m))).astype(np.float64), 0.5)


def drawn(name: str, seed: int = 0, unit: float = 1.0) -> DrawnTimes:
    return DrawnTimes(LAWS[name](n=6), seed, unit)


@every_law
def test_times_are_keyed_by_round_and_number_scaled_by_the_unit_and_worker_i_takes_entry_i(name: str) -> None:
    keys = [(round, number) for round in (1, 2, 3) for number in (0, 1, 2)]
    plain, scaled = drawn(name), drawn(name, unit=0.125)
    wanted = {key: 0.125 * plain(*key) for key in keys}
    for key in [*reversed(keys), (2, 1), (1, 1), (2, 1), (3, 0), (2, 0), (2, 1)]:  # in any order
        assert scaled(*key).tolist() == wanted[key].tolist()
    assert scaled.means.tolist() == (plain.means * 0.125).tolist()
    for worker in range(scaled.n):
        assert scaled.of(worker, 2, 1, 2) == [wanted[2, number].item(worker) for number in (1, 2)]


@pytest.mark.parametrize("name", sorted(set(LAWS) - {"constant"}))
def test_times_differ_across_rounds_numbers_and_seeds(name: str) -> None:
    times = [drawn(name, seed)(round, number) for seed in (0, 1) for round in (1, 2) for number in (0, 1)]
    assert len({tuple(row) for row in times}) == 8
    for worker in range(0 if name in SAMPLES else 6):
        assert len({row.item(worker) for row in times}) == 8


def test_times_come_from_the_stream_of_their_round_and_number() -> None:
    wanted = Sqrt(6).draw(Streams(9, Purpose.TIMES).at(4, number=2))
    assert drawn("sqrt", 9)(4, 2).tolist() == wanted.tolist()


@every_law
@pytest.mark.parametrize(("key", "value"), [("n", 0), ("n", -2), ("scale", 0.0), ("scale", math.nan)])
def test_every_law_rejects_too_few_workers_and_scales_that_are_not_above_0(
    name: str, key: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"{key}={value}"):
        LAWS[name](**{"n": 3, key: value})


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (lambda: Mix(5, 0.5), "scale=0.5"),  # whose logarithm is negative
        (lambda: Constant(2, [1.0, 2.0, 3.0]), "scale=[1.0, 2.0, 3.0]"),
        (lambda: Constant(2, [1.0, 0.0]), "scale=[1.0, 0.0]"),
        (lambda: drawn("sqrt", unit=math.nan), "unit=nan"),
    ],
)
def test_other_wrong_values_are_named(build: Callable[[], Any], value: str) -> None:
    with pytest.raises(ValueError, match=re.escape(value)):
        build()
