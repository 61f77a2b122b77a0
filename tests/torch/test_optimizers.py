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

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

nn: Any = torch.nn
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


def plain(built: Any, optimizer: Any, after: Callable[[int], None] = lambda t: None) -> list[Any]:
    """Return the weights after the steps of a training loop."""
    for t in range(STEPS):
        g = torch.from_numpy(gradient(t, sum(p.numel() for p in built.parameters())))
        for p, part in zip(built.parameters(), g.split([p.numel() for p in built.parameters()]), strict=True):
            p.grad = part.view(p.shape).clone()
        after(t)
        optimizer.step()
    return [p.detach().clone() for p in built.parameters()]


def moved(update: Any, built: Any, first: int = 0, last: int = STEPS, x: Array | None = None) -> Array:
    """Return the point after steps of an update that is bound to a model."""
    problem = a_problem(built)
    bound = problem.bind(update)
    x = problem.x0 if x is None else x
    for t in range(first, last):
        x = bound(x, gradient(t, x.size))
    return x


def check(x: Array, wanted: list[Any], rel: float = 1e-5) -> None:
    """Kernels for whole arrays round otherwise than one operation after the other: a few units in 2^-23."""
    parts = torch.from_numpy(x).split([w.numel() for w in wanted])
    for part, w in zip(parts, wanted, strict=True):
        assert part.view(w.shape).numpy() == pytest.approx(w.numpy(), rel=rel, abs=1e-6)


@pytest.mark.parametrize("name", CLASSES)
def test_every_optimizer_moves_each_tensor_as_in_plain_pytorch(name: str) -> None:
    built = matrices if name == "Muon" else model
    plain_model = built()
    wanted = plain(plain_model, getattr(torch.optim, name)(plain_model.parameters(), lr=0.01))
    check(moved(NamedTorchUpdate(name, 0.01), built()), wanted)
    as_function = TorchUpdate(lambda m: getattr(torch.optim, name)(m.parameters(), lr=0.01))
    check(moved(as_function, built()), wanted)


def test_optimizers_for_matrices_alone_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^torch.optim.Muon: Muon only supports 2D parameters"):
        a_problem(model()).bind(NamedTorchUpdate("Muon", 0.01))


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


def test_parameter_groups_keep_their_own_settings() -> None:
    plain_model = model()
    wanted = plain(plain_model, in_groups(plain_model))
    check(moved(TorchUpdate(in_groups), model()), wanted)


def test_an_optimizer_that_exists_already_is_used_and_the_model_stays_where_it_is() -> None:
    plain_model, ours = model(), model()
    wanted = plain(plain_model, in_groups(plain_model))
    optimizer, before = in_groups(ours), nn.utils.parameters_to_vector(ours.parameters()).tolist()
    update = TorchUpdate(optimizer)
    check(moved(update, ours), wanted)
    assert update.optimizer is optimizer
    assert nn.utils.parameters_to_vector(ours.parameters()).tolist() == before


def test_an_optimizer_of_another_model_is_rejected() -> None:
    with pytest.raises(ValueError, match="has parameters that are not those of the model; build it from"):
        a_problem(model()).bind(TorchUpdate(torch.optim.SGD(model().parameters(), lr=0.1)))


SCHEDULERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("step", lambda o: schedulers.MultiStepLR(o, [3, 9], gamma=0.2)),
    ("cosine", lambda o: schedulers.CosineAnnealingLR(o, 15)),
    ("lambda", lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t))),
    ("one cycle", lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=30)),
    (
        "warm-up, then exponential",
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.9)], [4]
        ),
    ),
]


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR's own
@pytest.mark.parametrize(("name", "scheduler"), SCHEDULERS, ids=[name for name, _ in SCHEDULERS])
def test_schedulers_make_a_step_per_update_and_are_resumed_bit_for_bit(name: str, scheduler: Any) -> None:
    plain_model = model()
    optimizer = in_groups(plain_model)
    schedule = scheduler(optimizer)
    rates = []
    for t in range(STEPS):
        rates.append([group["lr"] for group in optimizer.param_groups])
        plain_step(plain_model, optimizer, t)
        schedule.step()
    wanted = [p.detach() for p in plain_model.parameters()]
    update = TorchUpdate(in_groups, scheduler)
    whole = moved(update, model())
    check(whole, wanted)
    assert [group["lr"] for group in update.optimizer.param_groups] == [
        group["lr"] for group in optimizer.param_groups
    ]
    assert len({tuple(rate) for rate in rates}) > 1

    first, second = TorchUpdate(in_groups, scheduler), TorchUpdate(in_groups, scheduler)
    middle = moved(first, model(), 0, 7)
    state = {name: np.array(array) for name, array in first.state().items()}
    assert all(array.dtype.kind in "fib" for array in state.values())
    second.restore(state)
    assert moved(second, model(), 7, STEPS, middle).tobytes() == whole.tobytes()


def plain_step(built: Any, optimizer: Any, t: int) -> None:
    g = torch.from_numpy(gradient(t, sum(p.numel() for p in built.parameters())))
    parts = g.split([p.numel() for p in built.parameters()])
    for p, part in zip(built.parameters(), parts, strict=True):
        p.grad = part.view(p.shape).clone()
    optimizer.step()


def test_a_scheduler_may_make_a_step_per_epoch() -> None:
    update = TorchUpdate(
        lambda m: torch.optim.SGD(m.parameters(), lr=1.0), lambda o: schedulers.StepLR(o, 1, 0.5), 5
    )
    moved(update, model(), 0, 14)
    assert update.optimizer.param_groups[0]["lr"] == 0.25


def test_a_learning_rate_in_a_tensor_is_resumed_bit_for_bit() -> None:
    def made() -> TorchUpdate:
        return TorchUpdate(
            lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(0.3), momentum=0.9),
            lambda o: schedulers.ExponentialLR(o, 0.7),
        )

    whole, first, second = moved(made(), model()), made(), made()
    middle = moved(first, model(), 0, 7)
    second.restore(first.state())
    assert moved(second, model(), 7, STEPS, middle).tobytes() == whole.tobytes()


def test_reduce_on_plateau_sees_evaluations_alone() -> None:
    def made() -> TorchUpdate:
        return TorchUpdate(
            lambda m: torch.optim.SGD(m.parameters(), lr=1.0),
            lambda o: schedulers.ReduceLROnPlateau(o, factor=0.1, patience=1),
        )

    update = made()
    x = moved(update, model())
    for value in (3.0, 3.0, 3.0):
        update.evaluated(value)
    assert update.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    again = made()
    again.restore(update.state())
    moved(again, model(), 0, 1, x)
    again.evaluated(3.0)
    again.evaluated(3.0)
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("name", CLASSES)
def test_every_optimizer_is_resumed_bit_for_bit(name: str) -> None:
    built = matrices if name == "Muon" else model
    whole = moved(NamedTorchUpdate(name, 0.01), built())
    first, second = NamedTorchUpdate(name, 0.01), NamedTorchUpdate(name, 0.01)
    middle = moved(first, built(), 0, 8)
    second.restore({name: np.array(array) for name, array in first.state().items()})
    assert moved(second, built(), 8, STEPS, middle).tobytes() == whole.tobytes()


def test_gradients_are_clipped_as_pytorch_does() -> None:
    plain_model = model()
    wanted = plain(
        plain_model,
        torch.optim.SGD(plain_model.parameters(), lr=0.1),
        lambda t: nn.utils.clip_grad_norm_(plain_model.parameters(), 0.5),
    )
    check(moved(NamedTorchUpdate("SGD", 0.1, clip=0.5), model()), wanted)


def test_the_running_mean_of_the_weights_is_that_of_pytorch() -> None:
    plain_model = model()
    average = torch.optim.swa_utils.AveragedModel(
        plain_model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.SGD(plain_model.parameters(), lr=0.1)
    for t in range(STEPS):
        plain_step(plain_model, optimizer, t)
        average.update_parameters(plain_model)
    update = NamedTorchUpdate("SGD", 0.1, ema=0.9)
    middle = moved(update, model(), 0, 8)
    resumed = NamedTorchUpdate("SGD", 0.1, ema=0.9)
    resumed.restore(update.state())
    assert resumed.averaged(middle).tobytes() == update.averaged(middle).tobytes(), "before its next step too"
    x = moved(resumed, model(), 8, STEPS, middle)
    check(resumed.averaged(x), [p.detach() for p in average.module.parameters()])


def test_what_an_optimizer_remembers_of_weights_that_are_now_frozen_is_left_out() -> None:
    built = model()
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1, momentum=0.9)
    plain_step(built, optimizer, 0)
    built[0].requires_grad_(False)
    update = TorchUpdate(optimizer)
    problem = a_problem(built)
    x = problem.bind(update)(problem.x0, gradient(1, problem.x0.size))
    trained = [p for p in built.parameters() if p.requires_grad]
    assert x.size == sum(p.numel() for p in trained)
    assert len(update.optimizer.state) == len(trained)


def test_one_kernel_does_the_whole_step_unless_the_user_wants_another_way() -> None:
    choices: list[tuple[dict[str, Any], bool | None]]
    choices = [({}, True), ({"fused": False}, False), ({"foreach": True}, None)]
    for choice, fused in choices:
        update = NamedTorchUpdate("AdamW", 0.1, **choice)
        moved(update, model())
        assert update.optimizer.param_groups[0]["fused"] is fused


def test_an_update_from_a_model_needs_one() -> None:
    with pytest.raises(ValueError, match=r"TorchUpdate needs a model: use it with a TorchProblem"):
        TorchUpdate(in_groups)(np.zeros(3, np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clip": 0.0}, "clip=0.0 must be above 0"),
        ({"ema": 1.0}, "ema=1.0 must be above 0 and below 1"),
        ({"scheduler_every": 0}, "scheduler_every=0 must be at least 1"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TorchUpdate(in_groups, **options)


def test_a_function_that_builds_no_optimizer_is_reported_with_an_example() -> None:
    for update, sentence in (
        (TorchUpdate(lambda parameters: torch.optim.SGD(parameters, 0.1)), r"optimizer\(model\) failed: .*"),
        (TorchUpdate(sgd, lambda optimizer: optimizer.nothing), r"scheduler\(optimizer\) failed: .*nothing"),
    ):
        with pytest.raises(UsageError, match=sentence + ".*; an example is lambda"):
            update.bind(torch.nn.Linear(2, 1))


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1)


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
