"""PyTorch models as problems, against PyTorch itself and against formulas."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import Task, TorchProblem
from mpi_ata.arrays import Array
from mpi_ata.errors import RunError
from mpi_ata.problems import task_streams
from tests.driver.driven import driven

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

nn: Any = torch.nn
ROOT = Path(__file__).parent.parent.parent
SIZE = 3 * 4 + 4 + 4 * 2 + 2  # weights of the model below


def task(number: int = 0, round: int = 1, worker: int = 0, seed: int = 0) -> Task:
    return Task(task_streams(seed), round, worker, number)


def small_model() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def samples(size: int = 20, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 3, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(2, (size,), generator=generator))


def a_problem(model: Any = small_model, batch_size: int = 5, **options: Any) -> TorchProblem:
    return TorchProblem(
        model, nn.CrossEntropyLoss(), options.pop("dataset", samples()), batch_size, **options
    )


def point(size: int = SIZE, seed: int = 2) -> Array:
    x = np.random.default_rng(seed).normal(0.0, 0.5, size).astype(np.float32)
    x.flags.writeable = False
    return x


def with_dropout() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_a_gradient_is_what_backward_leaves_in_a_model_of_its_own() -> None:
    x, model, dataset = point(), small_model(), samples()
    nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
    inputs, targets = dataset[task(3).rng.integers(0, 20, 5)]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    wanted = torch.cat([weight.grad.reshape(-1) for weight in model.parameters()]).numpy()
    assert a_problem().gradient(x, task(3)).tolist() == wanted.tolist()


@pytest.mark.parametrize("model", [small_model, with_dropout])
def test_gradients_is_the_sum_of_single_gradients_bit_for_bit(model: Any) -> None:
    problem = a_problem(model)
    x = point(problem.x0.size)
    wanted = np.zeros_like(x)
    for number in range(6):
        wanted += problem.gradient(x, task(number))
    assert problem.gradients(x, [task(number) for number in range(6)]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("model", [small_model, with_dropout])
def test_the_same_task_gives_the_same_gradient_and_any_other_another(model: Any) -> None:
    problem = a_problem(model)
    x = point(problem.x0.size)
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    gradients = [problem.gradient(x, task(*key)).tobytes() for key in keys]
    torch.rand(7)  # what others draw does not matter
    assert [problem.gradient(x, task(*key)).tobytes() for key in reversed(keys)] == gradients[::-1]
    assert len(set(gradients)) == len(keys)


def test_dropout_is_active_in_tasks_and_not_in_evaluations() -> None:
    one_sample = samples(1)
    problem = a_problem(with_dropout, dataset=one_sample)
    x = point(problem.x0.size)
    assert len({problem.gradient(x, task(number)).tobytes() for number in range(8)}) > 1
    inputs, targets = one_sample.tensors
    A, a, B, b = x[:12].reshape(4, 3), x[12:16], x[16:24].reshape(2, 4), x[24:]
    scores = B @ (A @ inputs[0].numpy() + a) + b
    assert problem.loss(x) == pytest.approx(np.logaddexp(*scores) - scores[int(targets)], rel=1e-5)
    assert len({problem.gradient(x, task(number)).tobytes() for number in range(8)}) > 1


def test_the_start_depends_on_the_seed_alone() -> None:
    first = a_problem(seed=3).x0
    torch.rand(5)
    assert a_problem(seed=3).x0.tobytes() == first.tobytes()
    assert a_problem(seed=4).x0.tobytes() != first.tobytes()
    assert (str(first.dtype), first.shape) == ("float32", (SIZE,))


def test_a_ready_made_model_starts_where_it_is() -> None:
    model = small_model()
    weights = [weight.detach().clone() for weight in model.parameters()]
    wanted = torch.cat([weight.reshape(-1) for weight in weights]).numpy()
    problem = a_problem(model)
    problem.gradient(point(), task())
    problem.loss(point())
    assert problem.x0.tolist() == wanted.tolist(), "x0 is not a view of the weights"


def test_loss_and_metrics_are_means_over_all_test_samples() -> None:
    test, x, model = samples(601, seed=9), point(), small_model()
    nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
    inputs, targets = test.tensors
    outputs = model(inputs).detach()
    problem = a_problem(test=test, metrics={"accuracy": TorchProblem.accuracy})
    found = problem.evaluate(x)
    assert set(found) == {"loss", "accuracy"}
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5)
    right = sum(int(row[target] == row.max()) for row, target in zip(outputs, targets, strict=True))
    assert found["accuracy"] == pytest.approx(right / 601, rel=1e-6)
    assert problem.loss(x) == found["loss"]


def test_without_test_samples_the_loss_is_over_the_dataset() -> None:
    dataset = samples(40)
    assert a_problem(dataset=dataset).loss(point()) == a_problem(dataset=samples(3), test=dataset).loss(
        point()
    )


class InBatches:
    """A dataset that returns many samples at once."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, numbers: Any) -> Any:
        return self._dataset[torch.from_numpy(numbers)]


@pytest.mark.parametrize("kind", [list, InBatches])
def test_any_kind_of_dataset_works(kind: Any) -> None:
    wanted = a_problem().gradient(point(), task())
    assert a_problem(dataset=kind(samples())).gradient(point(), task()).tolist() == wanted.tolist()


def test_samples_that_a_collate_function_joins_make_the_same_batch() -> None:
    def joined(pairs: Any) -> Any:
        inputs, targets = zip(*pairs, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    wanted = a_problem().gradient(point(), task())
    assert a_problem(collate_fn=joined).gradient(point(), task()).tolist() == wanted.tolist()


class Keywords(nn.Module):  # type: ignore[misc]
    """A model that takes named inputs and ignores the labels among them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()

    def forward(self, inputs: Any, labels: Any = None) -> Any:
        return {"scores": self.inner(inputs)}


def test_dicts_are_named_arguments_of_the_model_and_outputs_may_be_dicts() -> None:
    dataset = [{"inputs": inputs, "labels": label} for inputs, label in samples()]

    def loss(outputs: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(outputs["scores"], batch["labels"])

    wanted = a_problem()
    problem = TorchProblem(Keywords, loss, dataset, 5)
    assert problem.gradient(point(), task()).tolist() == wanted.gradient(point(), task()).tolist()
    assert problem.loss(point()) == pytest.approx(wanted.loss(point()), rel=1e-6)


class Named(nn.Module):  # type: ignore[misc]
    """A model whose inputs have names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()

    def forward(self, inputs: Any) -> Any:
        return self.inner(inputs["there"] + inputs["more"][0])


def test_inputs_may_be_dicts_and_lists_of_tensors() -> None:
    dataset = [({"there": point, "more": [torch.zeros(3)]}, target) for point, target in samples()]
    wanted = a_problem().gradient(point(), task())
    assert a_problem(Named, dataset=dataset).gradient(point(), task()).tolist() == wanted.tolist()


def test_a_metric_does_not_take_the_place_of_the_loss() -> None:
    other = {"loss": TorchProblem.accuracy}
    assert a_problem(metrics=other).evaluate(point()) == a_problem().evaluate(point())
    assert a_problem(metrics=other).gradient(point(), task()).any()


def test_with_shards_a_worker_draws_only_from_its_own_part() -> None:
    drawn: list[int] = []

    class Watched(InBatches):
        def batch(self, numbers: Any) -> Any:
            drawn.extend(numbers.tolist())
            return super().batch(numbers)

    problem = a_problem(dataset=Watched(samples()), sharded=True, batch_size=50)
    problem.setup(None, 3)
    for worker, part in enumerate([range(6), range(6, 13), range(13, 20)]):
        drawn.clear()
        problem.gradient(point(), task(worker=worker))
        assert set(drawn) == set(part)


def test_more_workers_than_samples_cannot_have_shards() -> None:
    with pytest.raises(RunError, match="20 samples cannot be divided among 21 workers"):
        a_problem(sharded=True).setup(0, 21)


def test_a_stopped_task_skips_the_backward_pass() -> None:
    unwanted = Task(task_streams(0), 1, 0, 0, lambda: True)
    assert not a_problem().gradient(point(), unwanted).any()


def test_frozen_weights_do_not_change_and_are_not_sent() -> None:
    model = small_model()
    before = [weight.detach().clone() for weight in model[0].parameters()]
    model[0].requires_grad_(False)
    problem = a_problem(model)
    assert problem.x0.size == 4 * 2 + 2
    problem.gradient(point(10), task())
    state = problem.state_dict(point(10))
    assert [state["0.weight"].tolist(), state["0.bias"].tolist()] == [weight.tolist() for weight in before]
    assert state["2.bias"].tolist() == point(10)[-2:].tolist()


class Remembering(nn.Module):  # type: ignore[misc]
    """A model with a buffer that it keeps, changes or replaces."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(3, 2), how
        self.seen: Any
        self.register_buffer("seen", torch.ones(1))

    def forward(self, inputs: Any) -> Any:
        if self.how == "changed":
            self.seen += 1
        if self.how == "exchanged":
            self.seen = self.seen + 1
        return self.linear(inputs) * torch.ones(1)


def test_a_constant_buffer_is_accepted() -> None:
    problem = a_problem(lambda: Remembering("constant"))
    assert problem.gradient(point(8), task()).any()
    assert problem.state_dict(point(8))["seen"].tolist() == [1.0]


@pytest.mark.parametrize("how", ["changed", "exchanged"])
def test_a_buffer_that_a_task_changes_is_rejected_unless_it_is_named(how: str) -> None:
    problem = a_problem(lambda: Remembering(how))
    with pytest.raises(RunError, match=r"changed the model's buffer 'seen', .*buffers=\['seen'\] makes it"):
        problem.gradient(point(8), task())


def test_a_named_buffer_must_be_changed_in_place() -> None:
    problem = a_problem(lambda: Remembering("exchanged"), buffers=["seen"])
    with pytest.raises(RunError, match="replaced the model's buffer 'seen'; it must change it in place"):
        problem.gradient(problem.x0, task())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"evaluation_batch": 0}, "evaluation_batch=0 must be at least 1"),
        ({"precision": "int8"}, "precision='int8' must be one of float32, bf16, fp16"),
        ({"buffers": ["seen"]}, "the model has no buffer 'seen'; it has: none"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"dataset": []}, "a dataset for training or testing must have at least one sample"),
        ({"test": []}, "a dataset for training or testing must have at least one sample"),
        ({"device": "abacus"}, "device='abacus' is not known to PyTorch; use 'cpu' or 'cuda'"),
        (
            {"model": lambda: small_model().double()},
            "is torch.float64, but only float32 is supported",
        ),
        ({"model": nn.Tanh}, "the model has no weights to train"),
        ({"model": lambda: small_model().requires_grad_(False)}, "the model has no weights to train"),
        ({"start": "nowhere.pt"}, "'nowhere.pt' cannot be read: No such file"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        a_problem(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="device='cuda', but PyTorch sees no GPU here; use 'cpu'"):
        a_problem(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_gives_the_gradients_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(torch.cuda.device_count()))
    there, here = a_problem(device="cuda"), a_problem()
    assert there.device.index == 0, "ranks on a node take their GPUs in turn"
    assert there.gradient(point(), task()) == pytest.approx(
        here.gradient(point(), task()), rel=1e-4, abs=1e-6
    )
    assert there.loss(point()) == pytest.approx(here.loss(point()), rel=1e-4)
    assert there.state_dict(point())["0.weight"].device.type == "cpu"


def test_a_state_dict_is_saved_and_loaded(tmp_path: Path) -> None:
    problem, x, path = a_problem(), point(), tmp_path / "weights.pt"
    problem.save(x, path)
    problem.gradient(problem.x0, task())
    assert problem.load(path).tobytes() == x.tobytes()
    assert a_problem(start=path).x0.tobytes() == x.tobytes()
    model = small_model()
    model.load_state_dict(torch.load(path, weights_only=True))
    assert nn.utils.parameters_to_vector(model.parameters()).tolist() == x.tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["weights.pt"]


def test_a_state_dict_is_not_changed_by_later_tasks() -> None:
    problem = a_problem()
    state = problem.state_dict(point())
    problem.gradient(problem.x0, task())
    assert state["0.weight"].reshape(-1).tolist() == point()[:12].tolist()


class Harmful:
    """What unpickling would execute."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def test_nothing_but_tensors_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pickled.pt").write_bytes(pickle.dumps(Harmful()))
    torch.save({"0.weight": Harmful()}, "saved.pt")
    Path("text.pt").write_text("no weights at all")
    for name in ("pickled.pt", "saved.pt", "text.pt"):
        with pytest.raises(ValueError, match=f"'{name}' is not a file of tensors alone"):
            a_problem(start=name)
    assert not Path("harmed").exists()


def test_the_weights_of_another_model_are_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(nn.Linear(3, 2).state_dict(), path)
    with pytest.raises(
        ValueError, match=r"is not a state_dict of this model: .*Missing key.*\"0.weight\""
    ) as caught:
        a_problem(start=path)
    assert "\n" not in str(caught.value)


def test_a_rank_has_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        a_problem(threads=3).setup(0, 1)
        assert torch.get_num_threads() == 3
        a_problem().setup(0, 1)
        assert torch.get_num_threads() == 1
        torch.set_num_threads(2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        a_problem().setup(0, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_converted_script_learns() -> None:
    settings = ["times.law=constant", "stop.rounds=400", "run.evaluate_every=400"]
    outcome = driven(ROOT / "jobs" / "pytorch_script.toml", settings)
    assert outcome.trace.metrics["accuracy"][0] < 0.7
    assert outcome.trace.evaluation["accuracy"] > 0.9
    assert outcome.x.dtype == np.float32
