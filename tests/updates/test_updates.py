"""How a gradient moves the point: formulas, step sizes, and what is remembered."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import LARGE, Array
from mpi_ata.job.component import UPDATES
from mpi_ata.updates import Adam, GradientUpdate, Momentum, Nesterov, Plain


def moved(update: GradientUpdate, *gradients: float, x: float = 1.0) -> list[float]:
    """Return the path of a point in one dimension, step by step."""
    path, point = [], np.array([x])
    for g in gradients:
        point = update(point, np.array([g]))
        path.append(point.item())
    return path


def test_plain_steps_by_hand() -> None:
    assert moved(Plain(0.5), 2.0, -4.0) == [0.0, 2.0]


def test_momentum_by_hand() -> None:
    # v = 2, then 0.5 * 2 + 4 = 5, then 0.5 * 5 + 0 = 2.5.
    assert moved(Momentum(0.5, beta=0.5), 2.0, 4.0, 0.0) == [0.0, -2.5, -3.75]


def test_nesterov_by_hand() -> None:
    # v as with momentum; the steps are g + v / 2: 2 + 1, 4 + 2.5, 0 + 1.25.
    assert moved(Nesterov(0.5, beta=0.5), 2.0, 4.0, 0.0) == [-0.5, -3.75, -4.375]


def test_the_first_steps_of_adam_by_hand() -> None:
    # m = 1, v = 1 without their bias after g = 1; then m = (0.25 - 0.5 * 3) / 0.75, v = (0.1875 + 0.25 * 9) /
    # 0.4375 after g = -3, where m and v were 0.5 and 0.25.
    first, second = moved(Adam(0.1, beta1=0.5, beta2=0.75, epsilon=1e-12), 1.0, -3.0)
    assert first == pytest.approx(0.9)
    m, v = (0.5 * 0.5 - 0.5 * 3) / (1 - 0.5**2), (0.75 * 0.25 + 0.25 * 9) / (1 - 0.75**2)
    assert second == pytest.approx(0.9 - 0.1 * m / math.sqrt(v))


def test_epsilon_of_adam_is_added_to_the_corrected_root() -> None:
    assert moved(Adam(0.1, epsilon=1.0), 4.0) == pytest.approx([1 - 0.1 * 4 / (4 + 1)])


def reference(update: GradientUpdate, name: str) -> Callable[[Array, Array], Array]:
    """The textbook formulas, written out."""
    m: Any = 0.0
    v: Any = 0.0
    t = 0

    def step(x: Array, g: Array) -> Array:
        nonlocal m, v, t
        t += 1
        if isinstance(update, Adam):
            m = update.beta1 * m + (1 - update.beta1) * g
            v = update.beta2 * v + (1 - update.beta2) * g**2
            root = np.sqrt(v / (1 - update.beta2**t))
            return np.asarray(x - update.gamma(t) * m / (1 - update.beta1**t) / (root + update.epsilon))
        if isinstance(update, Momentum):
            v = update.beta * v + g
            return np.asarray(x - update.gamma(t) * (g + update.beta * v if name == "nesterov" else v))
        return np.asarray(x - update.gamma(t) * g)

    return step


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("keys", [{}, {"schedule": "cosine", "period": 20, "warmup": 5}], ids=["", "cosine"])
def test_the_in_place_formulas_give_what_the_textbook_gives(name: str, keys: dict[str, Any]) -> None:
    update, rng = UPDATES[name](0.1, **keys), np.random.default_rng(1)
    step = reference(update, name)
    x: Array = rng.standard_normal(5)
    y: Array = x
    for _ in range(30):
        g = rng.standard_normal(5)
        y = step(y, g)
        x = update(x, g.copy())
        assert x == pytest.approx(y, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_and_the_old_point_stay_and_the_step_is_computed_in_g(name: str, dtype: Any) -> None:
    update = UPDATES[name](0.1)
    x = np.ones(3, dtype)
    for _ in range(3):
        g = np.full(3, 0.5, dtype)
        y = update(x, g)
        assert y.dtype == dtype
        assert np.shares_memory(y, g)
        assert not np.shares_memory(y, x)
        assert all(array.dtype == dtype for key, array in update.state().items() if key != "t")
        assert not any(np.shares_memory(y, update.remembered(key, x)) for key in update.memory)
    assert x.tolist() == [1, 1, 1]


def test_a_constant_step_size_with_warm_up() -> None:
    update = Plain(0.8, warmup=4)
    assert [update.gamma(t) for t in (1, 2, 3, 4, 5, 1000)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert Plain(0.8).gamma(1) == 0.8


def test_a_cosine_falls_from_the_step_size_to_the_final_one_and_stays() -> None:
    update = Plain(1.0, "cosine", warmup=2, period=10, final_step_size=0.2)
    sizes = [update.gamma(t) for t in range(1, 13)]
    assert sizes[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert sizes[6] == pytest.approx(0.6), "half-way"
    assert sizes[2:11] == sorted(sizes[2:11], reverse=True)
    assert sizes[10:] == pytest.approx([0.2, 0.2])


def test_each_step_has_its_size() -> None:
    assert moved(Plain(1.0, warmup=2), 1.0, 1.0, 1.0, x=0.0) == [-0.5, -1.5, -2.5]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Plain(0.0), "step_size=0.0 must be above 0"),
        (lambda: Plain(1.0, "linear"), "schedule='linear' must be 'constant' or 'cosine'"),
        (lambda: Plain(1.0, warmup=-1), "warmup=-1 must be at least 0"),
        (lambda: Plain(1.0, "cosine"), "period=0 must be above warmup=0"),
        (lambda: Plain(1.0, "cosine", warmup=10, period=10), "period=10 must be above warmup=10"),
        (lambda: Plain(1.0, period=10), "period and final_step_size are for schedule = 'cosine'"),
        (lambda: Plain(1.0, final_step_size=0.1), "period and final_step_size are for schedule = 'cosine'"),
        (lambda: Plain(1.0, "cosine", period=9, final_step_size=1.0), "final_step_size=1.0 must be .* below"),
        (
            lambda: Plain(1.0, "cosine", period=9, final_step_size=-0.1),
            "final_step_size=-0.1 must be at least 0",
        ),
        (lambda: Momentum(1.0, beta=1.0), "beta=1.0 must be"),
        (lambda: Nesterov(1.0, beta=-0.1), "beta=-0.1 must be"),
        (lambda: Adam(1.0, beta1=1.0), "beta1=1.0 must be"),
        (lambda: Adam(1.0, beta2=-1.0), "beta2=-1.0 must be"),
        (lambda: Adam(1.0, epsilon=0.0), "epsilon=0.0 must be above 0"),
    ],
)
def test_invalid_values_are_named_in_the_message(make: Callable[[], GradientUpdate], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


def test_the_state_of_another_update_is_rejected() -> None:
    momentum, adam = Momentum(0.1), Adam(0.1)
    moved(momentum, 1.0)
    with pytest.raises(ValueError, match="the saved update has v, but this one needs m, v"):
        adam.restore(momentum.state())
    with pytest.raises(ValueError, match="has nothing, but this one needs v"):
        momentum.restore({"t": np.array(3)})
    with pytest.raises(ValueError, match="the state has no 't'; it has: nothing"):
        momentum.restore({})


def test_memory_of_another_point_is_rejected() -> None:
    update = Momentum(0.1)
    update.restore({"t": np.array(3), "v": np.zeros(3)})
    with pytest.raises(ValueError, match=r"'v' has shape \(3,\) and float64, x \(2,\) and float64"):
        update(np.zeros(2), np.zeros(2))


class Sign(GradientUpdate):
    """A user's update: x - gamma sign(g)."""

    def direction(self, x: Array, g: Array) -> Array:
        return np.sign(g, out=g)


def test_a_users_update_is_one_formula() -> None:
    assert moved(Sign(0.5, warmup=2), 7.0, -0.1) == [0.75, 1.25]


@pytest.mark.parametrize("kind", [Plain, Momentum, Nesterov, Adam])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_points_are_updated_block_by_block_to_the_same_bits(kind: Any, dtype: Any) -> None:
    update, alone = kind(0.1), kind(0.1)
    some, rng = LARGE // 2, np.random.default_rng(1)
    x, few = np.ones((2, some + 1), dtype), np.ones(some, dtype)
    for _ in range(3):
        g = np.array(rng.standard_normal(x.shape), dtype)
        few = alone(few, g[0, :some].copy())
        x = update(x, g)
    assert x[0, :some].tobytes() == few.tobytes()
    assert all(array.shape == x.shape for name, array in update.state().items() if name != "t")


def test_arrays_that_are_not_contiguous_are_updated_too() -> None:
    x, g = np.ones((2, LARGE)), np.ones((LARGE, 2)).T
    assert (Momentum(0.5)(x, g) == 0.5).all()


def test_a_users_direction_sees_the_whole_gradient() -> None:
    class Clipped(Momentum):
        def direction(self, x: Array, g: Array) -> Array:
            g /= np.linalg.norm(g)
            return super().direction(x, g)

    x = Clipped(1.0)(np.zeros(4 * LARGE), np.ones(4 * LARGE))
    assert np.linalg.norm(x) == pytest.approx(1.0)
