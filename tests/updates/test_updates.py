"""How a gradient moves the point: formulas, step sizes, and what is remembered."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import LARGE, Array
from mpi_ata.job.component import UPDATES
from mpi_ata.updates import LMO, Adam, GradientUpdate, Momentum, Nesterov, Plain

COSINE = {"schedule": "cosine", "period": 9}


def moved(update: GradientUpdate, *gradients: float, x: float = 1.0) -> list[float]:
    """Return the path of a point in one dimension, step by step."""
    path, point = [], np.array([x])
    for g in gradients:
        point = update(point, np.array([g]))
        path.append(point.item())
    return path


@pytest.mark.parametrize(
    ("update", "gradients", "path"),
    [
        (Plain(0.5), (2.0, -4.0), [0.0, 2.0]),
        (Plain(1.0, warmup=2), (1.0, 1.0, 1.0), [0.5, -0.5, -1.5]),
        # v = 2, then 0.5 * 2 + 4 = 5, then 0.5 * 5 + 0 = 2.5.
        (Momentum(0.5, beta=0.5), (2.0, 4.0, 0.0), [0.0, -2.5, -3.75]),
        # v as with momentum; the steps are g + v / 2: 2 + 1, 4 + 2.5, 0 + 1.25.
        (Nesterov(0.5, beta=0.5), (2.0, 4.0, 0.0), [-0.5, -3.75, -4.375]),
        # epsilon is added to the corrected root
        (Adam(0.1, epsilon=1.0), (4.0,), [1 - 0.1 * 4 / (4 + 1)]),
        # m = 1, then 0.5 - 0.5 = 0, then -2: steps of 0.1 against the sign of m, and none for m = 0.
        (LMO(0.1, alpha=0.5), (2.0, -1.0, -4.0), [0.9, 0.9, 1.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_first_steps_by_hand(update: GradientUpdate, gradients: list[float], path: list[float]) -> None:
    assert moved(update, *gradients) == pytest.approx(path)


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
        if isinstance(update, LMO):
            m = (1 - update.alpha) * m + update.alpha * g
            return np.asarray(x - update.gamma(t) * m / np.linalg.norm(m))
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


def test_after_a_warm_up_the_step_size_stays_or_a_cosine_falls_to_the_final_one_and_stays() -> None:
    constant = Plain(0.8, warmup=4)
    sizes = [constant.gamma(t) for t in (1, 2, 3, 4, 5, 1000)]
    assert sizes == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    update = Plain(1.0, "cosine", warmup=2, period=10, final_step_size=0.2)
    sizes = [update.gamma(t) for t in range(1, 13)]
    assert sizes[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert sizes[6] == pytest.approx(0.6), "half-way"
    assert sizes[2:11] == sorted(sizes[2:11], reverse=True)
    assert sizes[10:] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    ("kind", "keys", "complaint"),
    [
        (Plain, {"step_size": 0.0}, "step_size=0.0 must be above 0"),
        (Plain, {"schedule": "linear"}, "schedule='linear' must be 'constant' or 'cosine'"),
        (Plain, {"warmup": -1}, "warmup=-1 must be at least 0"),
        (Plain, {"schedule": "cosine", "warmup": 10, "period": 10}, "period=10 must be above warmup=10"),
        (Plain, {"period": 10}, "period and final_step_size are for schedule = 'cosine'"),
        (Plain, {"final_step_size": 0.1}, "period and final_step_size are for schedule = 'cosine'"),
        *((Plain, COSINE | {"final_step_size": x}, f"final_step_size={x} must be at") for x in (1.0, -0.1)),
        (Momentum, {"beta": 1.0}, "beta=1.0 must be"),
        (Nesterov, {"beta": -0.1}, "beta=-0.1 must be"),
        (Adam, {"beta1": 1.0}, "beta1=1.0 must be"),
        (Adam, {"beta2": -1.0}, "beta2=-1.0 must be"),
        (Adam, {"epsilon": 0.0}, "epsilon=0.0 must be above 0"),
        (LMO, {"alpha": 0.0}, "alpha=0.0 must be above 0"),
        (LMO, {"norm": "nuclear"}, "norm='nuclear' must be 'spectral', 'euclidean' or"),
    ],
)
def test_invalid_values_are_named_in_the_message(kind: Any, keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        kind(**{"step_size": 1.0} | keys)


def test_the_state_of_another_update_or_point_is_rejected() -> None:
    momentum, adam = Momentum(0.1), Adam(0.1)
    moved(momentum, 1.0)
    with pytest.raises(ValueError, match="the saved update has v, but this one needs m, v"):
        adam.restore(momentum.state())
    with pytest.raises(ValueError, match="has nothing, but this one needs v"):
        momentum.restore({"t": np.array(3)})
    with pytest.raises(ValueError, match="the state has no 't'; it has: nothing"):
        momentum.restore({})
    momentum.restore({"t": np.array(3), "v": np.zeros(3)})
    with pytest.raises(ValueError, match=r"'v' has shape \(3,\) and float64, x \(2,\) and float64"):
        momentum(np.zeros(2), np.zeros(2))


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


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (4, 2, 3), (2, LARGE)])
def test_an_lmo_step_lowers_the_linear_model_most_within_the_ball_of_its_norm(shape: tuple[int, ...]) -> None:
    g = np.random.default_rng(3).standard_normal(shape)
    steps = {
        norm: -LMO(1.0, norm=norm)(np.zeros(shape), g.copy()) for norm in ("spectral", "euclidean", "max")
    }
    assert steps["euclidean"] == pytest.approx(g / np.linalg.norm(g))
    assert (steps["max"] == np.sign(g)).all()
    u, _, v = np.linalg.svd(g.reshape(shape[0], -1), full_matrices=False)
    muon = steps["spectral"].reshape(shape[0], -1)
    # Five steps of Newton-Schulz bring singular values to about 1, and leave singular vectors as they are.
    assert np.linalg.svd(muon, compute_uv=False) == pytest.approx(np.ones(len(v)), abs=0.35)
    assert u.T @ muon @ v.T == pytest.approx(np.eye(len(v)), abs=0.35)
    assert np.abs(u.T @ muon @ v.T - np.diag(np.diag(u.T @ muon @ v.T))).max() < 1e-9


def test_arrays_that_are_not_contiguous_are_updated_too() -> None:
    x, g = np.ones((2, LARGE)), np.ones((LARGE, 2)).T
    assert (Momentum(0.5)(x, g) == 0.5).all()


class Clipped(Momentum):
    """A user's update is one formula, which sees the whole gradient."""

    def direction(self, x: Array, g: Array) -> Array:
        g /= np.linalg.norm(g)
        return super().direction(x, g)


@pytest.mark.parametrize("size", [1, 4 * LARGE])
def test_a_users_direction_sees_the_whole_gradient(size: int) -> None:
    x = Clipped(1.0, warmup=2)(np.zeros(size), np.ones(size))
    assert np.linalg.norm(x) == pytest.approx(0.5)
