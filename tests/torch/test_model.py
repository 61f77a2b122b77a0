"""What follows the weights in x: buffers, logs, weights of batches and the loss scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import (
    ASGD,
    SGD,
    UTA,
    Constant,
    DrawnTimes,
    HeterogeneousDataSGD,
    Malenia,
    MindFlayer,
    Plain,
    Ringmaster,
    TorchProblem,
    VirtualCluster,
)
from mpi_ata.arrays import Array
from mpi_ata.errors import RunError
from mpi_ata.torch import NamedTorchUpdate
from mpi_ata.updates import Adam
from tests.torch.scene import nn, samples, task, torch

N, B = 3, 6  # workers, tasks per round


def normed(momentum: float | None = 0.1) -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 2))


def linear() -> Any:
    return nn.Linear(3, 1, bias=False)


def linear_pair() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def a_problem(model: Any = normed, **options: Any) -> TorchProblem:
    loss = options.pop("loss", nn.CrossEntropyLoss())
    dataset, batch_size = options.pop("dataset", samples()), options.pop("batch_size", 8)
    return TorchProblem(model, loss, dataset, batch_size, **options)


def mean_result(problem: TorchProblem, x: Array) -> Array:
    x.flags.writeable = False
    total = sum(np.array(problem.gradient(x, task(number))) for number in range(B))
    return np.asarray(total / B, np.float32)


def moved(problem: TorchProblem) -> Array:
    """Return the point after one round."""
    return problem.bind(Plain(0.1))(problem.x0, mean_result(problem, problem.x0))


def test_statistics_and_loss_become_their_means_over_the_tasks_of_a_round() -> None:
    problem = a_problem(logs=["loss"])
    models, losses = [normed() for _ in range(B)], []
    assert np.isnan(problem.logged(problem.x0)["loss"])
    for number, model in enumerate(models):  # PyTorch alone
        model.load_state_dict(problem.state_dict(problem.x0))
        inputs, targets = samples()[task(number).rng.integers(0, 40, 8)]
        losses.append(nn.functional.cross_entropy(model(inputs), targets))
        losses[-1].backward()
    y = moved(problem)
    state = problem.state_dict(y)
    for name in ("1.running_mean", "1.running_var"):
        wanted = sum(model.state_dict()[name] for model in models) / B
        assert state[name].numpy() == pytest.approx(wanted.numpy(), rel=1e-5, abs=1e-6)
    assert state["1.num_batches_tracked"].tolist() == 1
    slope = sum(model[0].weight.grad for model in models) / B
    wanted = (models[0][0].weight - 0.1 * slope).detach()
    assert state["0.weight"].numpy() == pytest.approx(wanted.numpy(), rel=1e-4)
    assert list(state) == list(normed().state_dict())
    assert problem.logged(y)["loss"] == pytest.approx(sum(losses).item() / B, rel=1e-5)
    assert problem.evaluate(y)["train_loss"] == problem.logged(y)["loss"]


def test_a_cumulative_mean_counts_rounds() -> None:
    problem = a_problem(lambda: normed(None))
    update, x, means = problem.bind(Plain(1e-9)), problem.x0, []
    for _ in range(3):
        x = update(x, mean_result(problem, x))
        means.append(problem.state_dict(x)["1.running_mean"].numpy())
    assert problem.state_dict(x)["1.num_batches_tracked"].tolist() == 3
    # The same tasks at the same weights: a cumulative mean stays where it is, one with momentum does not.
    assert means[2] == pytest.approx(means[0], rel=1e-4)


class Numbered(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """Adds a step to its integers in each pass."""

    def __init__(self, integers: list[int], step: int) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(3, 2), step
        self.register_buffer("integers", torch.tensor(integers))

    def forward(self, inputs: Any) -> Any:
        self.integers += self.step
        return self.linear(inputs)


@pytest.mark.parametrize("step", [0, 1, -3, 20_000_001, -(2**40) - 1, 2**61 + 1])
def test_integers_of_any_size_are_exact_after_each_round(step: int) -> None:
    """The float32 numbers of x alone would be exact up to 2**24."""
    integers = [0, 20_000_001, -20_000_001, 2**53 + 1, -(2**60) - 1]
    problem = a_problem(lambda: Numbered(integers, step), buffers=["integers"])
    update, x = problem.bind(Plain(0.1)), problem.x0
    for k in range(3):
        assert problem.state_dict(x)["integers"].tolist() == [value + k * step for value in integers]
        x = update(x, mean_result(problem, x))


class Untrained(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """Frozen weights, and buffers of all kinds that no task changes, which depend on a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen, self.last = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)
        kinds = [torch.float64, torch.bfloat16, torch.complex64, torch.complex128, torch.int32]
        for i, kind in enumerate(kinds):
            self.register_buffer(f"kind{i}", (1000 * torch.randn(5)).to(kind), persistent=i % 2 == 0)
        self.register_buffer("integers", torch.tensor([2**53 + 1 + seed, -seed]))
        self.register_buffer("mask", torch.rand(4, 3) < 0.5)
        self.register_buffer("turned", torch.randn(2, 3).t())
        self.register_buffer("repeated", torch.randn(3).expand(2, 3))
        self.register_buffer("number", torch.tensor(float(seed)))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("nothing", None)
        self.register_buffer("sparse", torch.eye(3).to_sparse())

    def forward(self, inputs: Any) -> Any:
        return self.last(self.frozen(inputs) * self.mask[:, 0])


def test_what_is_not_part_of_x_is_taken_from_the_manager_bit_for_bit() -> None:
    manager, worker = (a_problem(Untrained(seed)) for seed in (1, 2))
    for theirs, own in zip(manager.shared_arrays(), worker.shared_arrays(), strict=True):
        own[:] = theirs
    wanted, found = (dict(problem.model.named_buffers()) for problem in (manager, worker))
    for name in wanted.keys() - {"sparse"}:
        assert found[name].dtype == wanted[name].dtype
        assert torch.equal(found[name], wanted[name]), name
    x = manager.x0
    assert worker.gradient(x, task()).tobytes() == manager.gradient(x, task()).tobytes()


def test_a_result_depends_on_the_point_and_the_task_alone() -> None:
    problem = a_problem(logs=["loss"])
    wanted = [np.array(problem.gradient(problem.x0, task(number))) for number in range(3)]
    assert problem.gradient(problem.x0, task(0)).tobytes() == wanted[0].tobytes()
    together = problem.gradients(problem.x0, [task(number) for number in range(3)])
    assert together == pytest.approx(wanted[0] + wanted[1] + wanted[2], rel=1e-5, abs=1e-6)


def test_statistics_are_saved_and_loaded_with_the_weights(tmp_path: Path) -> None:
    problem = a_problem(logs=["loss"])
    x = moved(problem)
    problem.save(x, tmp_path / "w.pt")
    y = a_problem(logs=["loss"], start=tmp_path / "w.pt").x0
    assert y[:-1].tobytes() == x[:-1].tobytes(), "all but the logged loss"


def test_a_log_that_is_exactly_0_is_shown_as_0() -> None:
    problem = a_problem(logs=["none"], loss=lambda o, _: {"loss": o.sum(), "none": -0.0})
    assert np.isnan(problem.logged(problem.x0)["none"])
    assert problem.logged(moved(problem)) == {"none": 0.0}


def test_batches_count_by_their_weights_and_the_parts_of_a_loss_are_logged() -> None:
    def loss(outputs: Any, batch: Any) -> dict[str, Any]:
        kept = batch != 0
        fit = ((outputs[:, 0] - batch) ** 2)[kept].mean() if kept.any() else outputs.sum() * 0
        return {"loss": fit + 1.0, "fit": fit, "one": 1.0, "weight": int(kept.sum())}

    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
    targets = (inputs.sum(1) * (torch.arange(40) % 3 == 0)).float()
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    problem = a_problem(linear, loss=loss, dataset=dataset, batch_size=5, logs=["fit", "one"])
    x, y = problem.x0, moved(problem)
    drawn = np.concatenate([task(number).rng.integers(0, 40, 5) for number in range(B)])
    Z, t = inputs.numpy()[drawn], targets.numpy()[drawn]
    Z, t = Z[t != 0], t[t != 0]  # one mean over all kept samples of all batches
    errors = Z @ x[:3] - t
    assert y[:3] == pytest.approx(x[:3] - 0.1 * 2 * Z.T @ errors / len(t), rel=1e-4)
    assert problem.logged(y) == pytest.approx({"fit": np.mean(errors**2), "one": 1.0}, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "logs", "sentence"),
    [
        (lambda outputs, _: outputs.mean(), ["fit"], "the loss has no entry 'fit'; it has: loss; return a"),
        (lambda outputs, _: {"loss": outputs.mean(), "weight": 2}, [], r"'weight' needs logs=\['loss'\]"),
        (lambda outputs, _: {"loss": outputs.mean(), "weight": -1}, ["loss"], "-1.0, .* at least 0"),
    ],
)
def test_a_loss_that_lacks_something_is_reported_in_one_sentence(
    loss: Any, logs: list[str], sentence: str
) -> None:
    problem = a_problem(linear, loss=loss, logs=logs)
    with pytest.raises(RunError, match=sentence):
        problem.gradient(problem.x0, task())


def test_an_update_that_moves_the_statistics_is_noticed() -> None:
    problem = a_problem()
    x = Plain(0.1)(problem.x0, mean_result(problem, problem.x0))
    with pytest.raises(RunError, match=r"use problem.bind\(update\) instead of the update"):
        problem.gradient(x, task())


METHODS: list[Any] = [
    lambda x0, update: SGD(x0, UTA(N, B), update),
    lambda x0, update: ASGD(x0, UTA(N, B), update),
    lambda x0, update: HeterogeneousDataSGD(x0, UTA(N, B), update),
    lambda x0, update: Ringmaster(x0, N, update, 4, B),
    lambda x0, update: Malenia(x0, update, B),
    lambda x0, update: MindFlayer(x0, N, UTA(N, B), update),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("update", [lambda: Adam(0.02), lambda: NamedTorchUpdate("AdamW", 0.02)])
def test_every_method_learns_weights_and_statistics(method: Any, update: Any) -> None:
    problem = a_problem(logs=["loss"], batch_size=20)
    running = method(problem.x0, problem.bind(update()))
    cluster = VirtualCluster(problem, DrawnTimes(Constant(N, [1.0, 2.0, 3.0])))
    for _ in range(60):
        running.step(cluster)
    state = problem.state_dict(running.x)
    hidden = nn.functional.linear(samples().tensors[0], state["0.weight"], state["0.bias"])
    # The statistics forget by a tenth per update and follow weights that still move: 15 % is their lag.
    assert state["1.running_mean"].numpy() == pytest.approx(hidden.mean(0).numpy(), rel=0.15, abs=0.2)
    assert state["1.running_var"].numpy() == pytest.approx(hidden.var(0).numpy(), rel=0.35)
    assert problem.loss(running.x) < 0.3 * problem.loss(problem.x0)
    assert problem.logged(running.x)["loss"] < 0.3 * problem.loss(problem.x0)


def test_bf16_gives_the_gradients_of_float32_to_its_precision() -> None:
    exact, half = a_problem(linear_pair), a_problem(linear_pair, precision="bf16")
    wanted, found = exact.gradient(exact.x0, task()), half.gradient(exact.x0, task())
    assert found.dtype == np.float32
    assert found.tolist() != wanted.tolist()
    # bf16 has 8 bits: each product is off by up to 2^-8 of its size.
    assert found == pytest.approx(wanted, rel=0.05, abs=0.02 * float(np.abs(wanted).max()))


def test_fp16_skips_steps_that_overflow_and_halves_the_loss_scale() -> None:
    def steep(outputs: Any, targets: Any) -> Any:
        return 1e3 * nn.functional.cross_entropy(outputs.float(), targets)

    exact = a_problem(linear_pair, loss=steep)
    problem = a_problem(linear_pair, loss=steep, precision="fp16")
    update, layout = problem.bind(NamedTorchUpdate("SGD", 1e-5)), problem.layout
    x, weights = problem.x0, slice(0, layout.weights)
    first = update(x, mean_result(problem, x))
    assert first[weights].tolist() == x[weights].tolist()
    assert (x[layout.scale], first[layout.scale], int(update.state()["t"])) == (2**16, 2**15, 0)
    while not update.state()["t"]:
        x = first
        first = update(x, mean_result(problem, x))
    # Half precision has 11 bits, and a step is small beside the weights.
    step = -1e-5 * mean_result(exact, exact.x0)
    assert (first - x)[weights] == pytest.approx(step, rel=0.05, abs=2e-5)
