"""Optimizers, groups, schedulers, clipping and running means, against plain PyTorch, tensor by tensor."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata import TorchProblem
from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError
from mpi_ata.job.component import UPDATES
from mpi_ata.torch import NamedTorchUpdate, TorchUpdate
from tests.torch.scene import nn, torch

schedulers: Any = torch.optim.lr_scheduler

REFUSED = {"Optimizer", "LBFGS", "SparseAdam"}
CLASSES = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name not in REFUSED
)
STEPS = 20


def model() -> Any:
    """Tensors of one, two and four dimensions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 5))


def matrices() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))


def a_problem(built: Any) -> TorchProblem:
    return TorchProblem(built, nn.MSELoss(), [(torch.zeros(1), torch.zeros(1))])


def gradient(t: int, size: int) -> Array:
    return np.random.default_rng(t).standard_normal(size).astype(np.float32)


def nothing() -> None:
    pass


def plain(
    built: Any, optimizer: Any, before: Callable[[], Any] = nothing, after: Callable[[], Any] = nothing
) -> list[Any]:
    """Return the weights after a training loop, in which something is done before and after each step."""
    parameters = list(built.parameters())
    for t in range(STEPS):
        sizes = [p.numel() for p in parameters]
        parts = torch.from_numpy(gradient(t, sum(sizes))).split(sizes)
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view(p.shape).clone()
        before()
        optimizer.step()
        after()
    return [p.detach().clone() for p in parameters]


def moved(update: Any, built: Any, first: int = 0, last: int = STEPS, x: Array | None = None) -> Array:
    """Return the point after steps of an update that is bound to a model."""
    problem = a_problem(built)
    bound = problem.bind(update)
    x = problem.x0 if x is None else x
    for t in range(first, last):
        x = bound(x, gradient(t, x.size))
    return x


def check(x: Array, wanted: list[Any]) -> None:
    """Kernels for whole arrays round otherwise than one operation after the other: a few units in 2^-23."""
    parts = torch.from_numpy(x).split([w.numel() for w in wanted])
    for part, w in zip(parts, wanted, strict=True):
        assert part.view(w.shape).numpy() == pytest.approx(w.numpy(), rel=1e-5, abs=1e-6)


def check_resumed(made: Callable[[], TorchUpdate], whole: Array, built: Any = model) -> None:
    """Check that a run that is saved after 7 steps, as plain arrays, ends bit for bit at the same point."""
    first, second = made(), made()
    middle = moved(first, built(), 0, 7)
    state = {name: np.array(array) for name, array in first.state().items()}
    assert all(array.dtype.kind in "fib" for array in state.values())
    second.restore(state)
    assert moved(second, built(), 7, STEPS, middle).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", CLASSES)
def test_every_optimizer_moves_each_tensor_as_in_plain_pytorch_and_is_resumed(name: str) -> None:
    built = matrices if name == "Muon" else model
    plain_model = built()
    wanted = plain(plain_model, getattr(torch.optim, name)(plain_model.parameters(), lr=0.01))
    whole = moved(NamedTorchUpdate(name, 0.01), built())
    check(whole, wanted)
    check(moved(TorchUpdate(lambda m: getattr(torch.optim, name)(m.parameters(), lr=0.01)), built()), wanted)
    check_resumed(lambda: NamedTorchUpdate(name, 0.01), whole, built)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_optimizers_that_need_other_gradients_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^torch.{name} needs "):
        NamedTorchUpdate(name, 0.1)
    with pytest.raises(ValueError, match=rf"^torch.{name} needs "):
        a_problem(model()).bind(TorchUpdate(lambda m: getattr(torch.optim, name)(m.parameters())))


def in_groups(m: Any) -> Any:
    decayed = [p for p in m.parameters() if p.ndim > 1]
    others = [p for p in m.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.0, "lr": 0.05}, {"params": decayed, "weight_decay": 0.5}],
        lr=0.01,
    )


def test_groups_keep_their_settings_and_an_optimizer_that_exists_is_used_while_its_model_stays() -> None:
    plain_model, ours = model(), model()
    wanted = plain(plain_model, in_groups(plain_model))
    optimizer, before = in_groups(ours), nn.utils.parameters_to_vector(ours.parameters()).tolist()
    update = TorchUpdate(optimizer)
    check(moved(update, ours), wanted)
    assert update.optimizer is optimizer
    assert nn.utils.parameters_to_vector(ours.parameters()).tolist() == before


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: schedulers.MultiStepLR(o, [3, 9], gamma=0.2),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 15),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=30),
    "warm-up, then exponential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.9)], [4]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR's own
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_make_a_step_per_update_and_are_resumed_bit_for_bit(scheduler: Any) -> None:
    plain_model = model()
    optimizer = in_groups(plain_model)
    schedule, start = scheduler(optimizer), [group["lr"] for group in optimizer.param_groups]
    wanted = plain(plain_model, optimizer, after=schedule.step)
    update = TorchUpdate(in_groups, scheduler)
    whole = moved(update, model())
    check(whole, wanted)
    rates = [group["lr"] for group in update.optimizer.param_groups]
    assert rates == [group["lr"] for group in optimizer.param_groups] != start
    check_resumed(lambda: TorchUpdate(in_groups, scheduler), whole)


def sgd(model: Any, lr: Any = 1.0, **options: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def test_a_scheduler_may_make_a_step_per_epoch() -> None:
    update = TorchUpdate(sgd, lambda o: schedulers.StepLR(o, 1, 0.5), 5)
    moved(update, model(), 0, 14)
    assert update.optimizer.param_groups[0]["lr"] == 0.25


def test_a_learning_rate_in_a_tensor_is_resumed_bit_for_bit() -> None:
    def made() -> TorchUpdate:
        return TorchUpdate(
            lambda m: sgd(m, torch.tensor(0.3), momentum=0.9), lambda o: schedulers.ExponentialLR(o, 0.7)
        )

    check_resumed(made, moved(made(), model()))


def test_reduce_on_plateau_sees_evaluations_alone() -> None:
    def made() -> TorchUpdate:
        return TorchUpdate(sgd, lambda o: schedulers.ReduceLROnPlateau(o, factor=0.1, patience=1))

    def rate(update: TorchUpdate, evaluations: int) -> float:
        for _ in range(evaluations):
            update.evaluated(3.0)
        return float(update.optimizer.param_groups[0]["lr"])

    update, again = made(), made()
    x = moved(update, model())
    assert rate(update, 3) == pytest.approx(0.1)
    again.restore(update.state())
    moved(again, model(), 0, 1, x)
    assert rate(again, 2) == pytest.approx(0.01)


def test_gradients_are_clipped_as_pytorch_does() -> None:
    built = model()
    wanted = plain(built, sgd(built, 0.1), lambda: nn.utils.clip_grad_norm_(built.parameters(), 0.5))
    check(moved(NamedTorchUpdate("SGD", 0.1, clip=0.5), model()), wanted)


def test_the_running_mean_of_the_weights_is_that_of_pytorch_and_begins_before_the_first_step() -> None:
    tools, built = torch.optim.swa_utils, model()
    average = tools.AveragedModel(built, multi_avg_fn=tools.get_ema_multi_avg_fn(0.9))
    average.update_parameters(built)
    plain(built, sgd(built, 0.1), after=lambda: average.update_parameters(built))
    update, resumed = NamedTorchUpdate("SGD", 0.1, ema=0.9), NamedTorchUpdate("SGD", 0.1, ema=0.9)
    middle = moved(update, model(), 0, 8)
    resumed.restore(update.state())
    assert resumed.averaged(middle).tobytes() == update.averaged(middle).tobytes(), "before its next step too"
    x = moved(resumed, model(), 8, STEPS, middle)
    check(resumed.averaged(x), [p.detach() for p in average.module.parameters()])


def test_weights_that_no_loss_depends_on_do_not_decay() -> None:
    built = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(2)) for name in ("used", "unused")})
    update = TorchUpdate(lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5))
    update.bind(built)
    x, slopes = np.ones(4, np.float32), np.array([1, 0, 0, 0], np.float32)
    x = update(update(x, slopes), 0 * slopes)
    assert (x[:2] < 0.95).all(), "a gradient of 0 is one, after others"
    assert x[2:].tolist() == [1.0, 1.0]


def test_weights_of_a_group_that_are_frozen_by_now_are_left_out() -> None:
    built = model()
    optimizer = sgd(built, 0.1, momentum=0.9)
    plain(built, optimizer)
    built[0].requires_grad_(False)
    update, problem = TorchUpdate(optimizer), a_problem(built)
    x = problem.bind(update)(problem.x0, gradient(1, problem.x0.size))
    trained = [p for p in built.parameters() if p.requires_grad]
    assert x.size == sum(p.numel() for p in trained)
    assert len(update.optimizer.state) == len(trained)


@pytest.mark.parametrize(
    ("choice", "fused"), [({}, True), ({"fused": False}, False), ({"foreach": True}, None)]
)
def test_one_kernel_does_the_whole_step_unless_the_user_wants_another_way(
    choice: dict[str, Any], fused: bool | None
) -> None:
    update = NamedTorchUpdate("AdamW", 0.1, **choice)
    moved(update, model())
    assert update.optimizer.param_groups[0]["fused"] is fused


def bound(*arguments: Any) -> Any:
    return a_problem(model()).bind(TorchUpdate(*arguments))


MISTAKES: dict[str, Callable[[], Any]] = {
    r"clip=0.0 must be above 0": lambda: TorchUpdate(in_groups, clip=0.0),
    r"ema=1.0 must be above 0 and below 1": lambda: TorchUpdate(in_groups, ema=1.0),
    r"scheduler_every=0 must be at least 1": lambda: TorchUpdate(in_groups, scheduler_every=0),
    r"TorchUpdate needs a model: use it with a TorchProblem": lambda: TorchUpdate(sgd)(*np.zeros((2, 3))),
    r"has parameters that are not those of the model; build it from": lambda: bound(sgd(model())),
    r"^optimizer\(model\) failed: .*; an example is lambda": lambda: bound(lambda p: torch.optim.SGD(p, 0.1)),
    r"^scheduler\(optimizer\) failed: .*nothing.*; an example is": lambda: bound(sgd, lambda o: o.nothing),
    r"^torch.optim.Muon: Muon only supports 2D": lambda: a_problem(model()).bind(NamedTorchUpdate("Muon", 1)),
    r"has no optimizer 'Adamm'": lambda: NamedTorchUpdate("Adamm", 0.1),
    r"has no optimizer 'lr_scheduler'": lambda: NamedTorchUpdate("lr_scheduler", 0.1),
    r"torch.optim.SGD: .*'momentun'": lambda: NamedTorchUpdate("SGD", 0.1, momentun=0.9),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_reported_in_one_sentence(sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        MISTAKES[sentence]()
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"betas": [0.8, 0.95], "amsgrad": True}),
        ("RMSprop", {"centered": True, "momentum": 0.5}),
    ],
)
def test_without_a_model_x_is_one_parameter_and_is_resumed_bit_for_bit(
    name: str, keys: dict[str, Any], dtype: Any
) -> None:
    def made() -> NamedTorchUpdate:
        return NamedTorchUpdate(name, 0.1, schedule="cosine", warmup=3, period=12, **keys)

    x0 = np.linspace(-1, 1, 7, dtype=dtype)
    whole, first, second = noisy_steps(made(), x0, 0, 20), made(), made()
    middle = noisy_steps(first, x0, 0, 8)
    state = {name: np.array(array) for name, array in first.state().items()}
    second.restore(state)
    again = {name: array.tobytes() for name, array in second.state().items()}
    assert again == {name: array.tobytes() for name, array in state.items()}
    resumed = noisy_steps(second, middle, 8, 20)
    assert (resumed.dtype, resumed.tobytes()) == (dtype, whole.tobytes())
    assert whole.tobytes() != middle.tobytes()


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
