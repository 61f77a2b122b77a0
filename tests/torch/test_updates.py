"""Optimizers of PyTorch as updates; skipped where it is not installed, except for the error message."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.job.names import UPDATES
from mpi_ata.torch import NamedTorchUpdate

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"betas": [0.8, 0.95], "amsgrad": True}),
    ("AdamW", {}),
    ("Adagrad", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("NAdam", {}),
    ("Rprop", {}),
    ("ASGD", {}),
]


def noisy_steps(update: Any, x: Array, first: int, last: int) -> Array:
    """Steps on |x|^2 / 2 with noise that depends on the number of the step."""
    for t in range(first, last):
        g = x + np.random.default_rng(t).standard_normal(x.shape).astype(x.dtype)
        before = x.copy()
        y = update(x, g)
        assert x.tobytes() == before.tobytes(), "the old point was handed over"
        assert not np.shares_memory(x, y)
        x = y
    return x


@needs_torch
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "keys"), OPTIMIZERS, ids=str)
def test_it_is_resumed_bit_for_bit_from_plain_arrays(name: str, keys: dict[str, Any], dtype: Any) -> None:
    def made() -> NamedTorchUpdate:
        return NamedTorchUpdate(name, 0.1, schedule="cosine", warmup=3, period=12, **keys)

    x0 = np.linspace(-1, 1, 7, dtype=dtype)
    whole = noisy_steps(made(), x0, 0, 20)
    first, second = made(), made()
    middle = noisy_steps(first, x0, 0, 8)
    state = {name: np.array(array) for name, array in first.state().items()}
    assert all(array.dtype.kind in "fib" for array in state.values())
    second.restore(state)
    again = second.state()
    assert {name: array.tobytes() for name, array in again.items()} == {
        name: array.tobytes() for name, array in state.items()
    }
    resumed = noisy_steps(second, middle, 8, 20)
    assert resumed.dtype == dtype
    assert resumed.tobytes() == whole.tobytes()
    assert whole.tobytes() != middle.tobytes()


@needs_torch
@pytest.mark.parametrize(
    ("own", "own_keys", "name", "keys"),
    [
        ("plain", {}, "SGD", {}),
        ("momentum", {"beta": 0.8}, "SGD", {"momentum": 0.8}),
        ("nesterov", {"beta": 0.8}, "SGD", {"momentum": 0.8, "nesterov": True}),
        ("adam", {"beta1": 0.8, "beta2": 0.9}, "Adam", {"betas": [0.8, 0.9]}),
    ],
)
def test_the_updates_of_this_package_are_those_of_torch(
    own: str, own_keys: dict[str, Any], name: str, keys: dict[str, Any]
) -> None:
    x0 = np.linspace(-1, 1, 7)
    ours = noisy_steps(UPDATES[own](0.1, warmup=4, **own_keys), x0, 0, 30)
    theirs = noisy_steps(NamedTorchUpdate(name, 0.1, warmup=4, **keys), x0, 0, 30)
    assert ours == pytest.approx(theirs, rel=1e-10, abs=1e-12)


@needs_torch
def test_an_unknown_optimizer_is_rejected() -> None:
    with pytest.raises(ValueError, match="has no optimizer 'Adamm'"):
        NamedTorchUpdate("Adamm", 0.1)
    with pytest.raises(ValueError, match="has no optimizer 'lr_scheduler'"):
        NamedTorchUpdate("lr_scheduler", 0.1)
    with pytest.raises(ValueError, match=r"torch.optim.SGD: .*'momentun'"):
        NamedTorchUpdate("SGD", 0.1, momentun=0.9)
    with pytest.raises(ValueError, match="several gradients per step"):
        NamedTorchUpdate("LBFGS", 0.1)
    with pytest.raises(ValueError, match="step_size=0 must be above 0"):
        NamedTorchUpdate("SGD", 0)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_torch_the_message_says_how_to_install_it() -> None:
    with pytest.raises(ValueError, match=r"torch.AdamW needs PyTorch; pip install 'mpi-ata\[torch\]'"):
        NamedTorchUpdate("AdamW", 0.1)
