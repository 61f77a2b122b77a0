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
    Task,
    TorchProblem,
    VirtualCluster,
)
from mpi_ata.arrays import Array
from mpi_ata.errors import RunError
from mpi_ata.problems import task_streams
from mpi_ata.torch import NamedTorchUpdate
from mpi_ata.updates import Adam

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

nn: Any = torch.nn
N, B = 3, 6  # workers, tasks per round


def task(number: int = 0, round: int = 1, worker: int = 0) -> Task:
    return Task(task_streams(0), round, worker, number)


def samples(size: int = 40) -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, 3, generator=generator) * 2 + 1
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 3).long())


def normed(momentum: float | None = 0.1) -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 2))


def a_problem(model: Any = normed, **options: Any) -> TorchProblem:
    loss = options.pop("loss", nn.CrossEntropyLoss())
    dataset, batch_size = options.pop("dataset", samples()), options.pop("batch_size", 8)
    return TorchProblem(model, loss, dataset, batch_size, **options)


def mean_result(problem: TorchProblem, x: Array, count: int = B) -> Array:
    x.flags.writeable = False
    total = sum(np.array(problem.gradient(x, task(number))) for number in range(count))
    return np.asarray(total / count, np.float32)


def one_batch_norm(problem: TorchProblem, x: Array, number: int) -> Any:
    """Return a model of PyTorch alone at x after the forward and backward pass of one task."""
    model = normed()
    model.load_state_dict(problem.state_dict(x))
    drawn = task(number).rng.integers(0, 40, 8)
    inputs, targets = samples()[drawn]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return model


def test_running_statistics_become_their_means_over_the_tasks_of_a_round() -> None:
    problem = a_problem()
    x = problem.x0
    models = [one_batch_norm(problem, x, number) for number in range(B)]
    update = problem.bind(Plain(0.1))
    y = update(x, mean_result(problem, x))
    state = problem.state_dict(y)
    for name in ("1.running_mean", "1.running_var"):
        wanted = sum(model.state_dict()[name] for model in models) / B
        assert state[name].numpy() == pytest.approx(wanted.numpy(), rel=1e-5, abs=1e-6)
    assert state["1.num_batches_tracked"].tolist() == 1
    slope = sum(model[0].weight.grad for model in models) / B
    wanted = (models[0][0].weight - 0.1 * slope).detach()
    assert state["0.weight"].numpy() == pytest.approx(wanted.numpy(), rel=1e-4)
    assert list(state) == list(normed().state_dict())


def test_a_cumulative_mean_counts_rounds() -> None:
    problem = a_problem(lambda: normed(None))
    update, x, means = problem.bind(Plain(1e-9)), problem.x0, []
    for _ in range(3):
        x = update(x, mean_result(problem, x))
        means.append(problem.state_dict(x)["1.running_mean"].numpy())
    assert problem.state_dict(x)["1.num_batches_tracked"].tolist() == 3
    # The same tasks at the same weights: a cumulative mean stays where it is, one with momentum does not.
    assert means[2] == pytest.approx(means[0], rel=1e-4)


def test_a_result_depends_on_the_point_and_the_task_alone() -> None:
    problem = a_problem(logs=["loss"])
    wanted = [np.array(problem.gradient(problem.x0, task(number))) for number in range(3)]
    assert problem.gradient(problem.x0, task(0)).tobytes() == wanted[0].tobytes()
    together = problem.gradients(problem.x0, [task(number) for number in range(3)])
    assert together == pytest.approx(wanted[0] + wanted[1] + wanted[2], rel=1e-5, abs=1e-6)


def test_statistics_are_saved_and_loaded_with_the_weights(tmp_path: Path) -> None:
    problem = a_problem(logs=["loss"])
    x = problem.bind(Plain(0.1))(problem.x0, mean_result(problem, problem.x0))
    problem.save(x, tmp_path / "w.pt")
    normed().load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True))
    y = a_problem(logs=["loss"], start=tmp_path / "w.pt").x0
    assert y[:-1].tobytes() == x[:-1].tobytes(), "all but the logged loss"


def test_the_training_loss_is_the_mean_over_the_tasks() -> None:
    problem = a_problem(logs=["loss"])
    x, losses = problem.x0, []
    assert np.isnan(problem.logged(x)["loss"])
    for number in range(B):
        model = normed()
        model.load_state_dict(problem.state_dict(x))
        inputs, targets = samples()[task(number).rng.integers(0, 40, 8)]
        losses.append(nn.functional.cross_entropy(model(inputs), targets).item())
    y = problem.bind(Plain(0.1))(x, mean_result(problem, x))
    assert problem.logged(y)["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert problem.evaluate(y)["train_loss"] == problem.logged(y)["loss"]


def linear() -> Any:
    return nn.Linear(3, 1, bias=False)


def test_a_log_that_is_exactly_0_is_shown_as_0() -> None:
    problem = a_problem(logs=["none"], loss=lambda o, _: {"loss": o.sum(), "none": -0.0})
    assert np.isnan(problem.logged(problem.x0)["none"])
    x = problem.bind(Plain(0.1))(problem.x0, mean_result(problem, problem.x0))
    assert problem.logged(x) == {"none": 0.0}


def test_batches_count_by_their_weights_and_the_parts_of_a_loss_are_logged() -> None:
    def loss(outputs: Any, batch: Any) -> dict[str, Any]:
        kept = batch != 0
        fit = ((outputs[:, 0] - batch) ** 2)[kept].mean() if kept.any() else outputs.sum() * 0
        return {"loss": fit + 1.0, "fit": fit, "one": 1.0, "weight": int(kept.sum())}

    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
    targets = (inputs.sum(1) * (torch.arange(40) % 3 == 0)).float()
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    problem = a_problem(linear, loss=loss, dataset=dataset, batch_size=5, logs=["fit", "one"])
    x = problem.x0
    y = problem.bind(Plain(0.1))(x, mean_result(problem, x))
    drawn = np.concatenate([task(number).rng.integers(0, 40, 5) for number in range(B)])
    Z, t = inputs.numpy()[drawn], targets.numpy()[drawn]
    Z, t = Z[t != 0], t[t != 0]  # one mean over all kept samples of all batches
    errors = Z @ x[:3] - t
    assert y[:3] == pytest.approx(x[:3] - 0.1 * 2 * Z.T @ errors / len(t), rel=1e-4)
    assert problem.logged(y) == pytest.approx({"fit": np.mean(errors**2), "one": 1.0}, rel=1e-4)


def test_a_missing_log_and_a_weight_without_logs_are_reported_in_one_sentence() -> None:
    problem = a_problem(linear, loss=lambda outputs, _: outputs.mean(), logs=["fit"])
    with pytest.raises(RunError, match=r"the loss has no entry 'fit'; it has: loss; return a dict"):
        problem.gradient(problem.x0, task())
    problem = a_problem(linear, loss=lambda outputs, _: {"loss": outputs.mean(), "weight": 2})
    with pytest.raises(RunError, match=r"an entry 'weight' needs logs=\['loss'\]"):
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


def linear_pair() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_fp16_skips_steps_that_overflow_and_halves_the_loss_scale() -> None:
    def steep(outputs: Any, targets: Any) -> Any:
        return 1e3 * nn.functional.cross_entropy(outputs.float(), targets)

    exact = a_problem(linear_pair, loss=steep)
    problem = a_problem(linear_pair, loss=steep, precision="fp16")
    update = problem.bind(NamedTorchUpdate("SGD", 1e-5))
    x, scale = problem.x0, problem.layout.scale
    first = update(x, mean_result(problem, x))
    assert first[: problem.layout.weights].tolist() == x[: problem.layout.weights].tolist()
    assert (x[scale], first[scale], int(update.state()["t"])) == (2**16, 2**15, 0)
    while not update.state()["t"]:
        x = first
        first = update(x, mean_result(problem, x))
    weights = slice(0, problem.layout.weights)
    wanted = exact.x0 - 1e-5 * mean_result(exact, exact.x0)
    # Half precision has 11 bits, and a step is small beside the weights.
    assert (first - x)[weights] == pytest.approx((wanted - exact.x0), rel=0.05, abs=2e-5)
