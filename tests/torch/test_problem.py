"""PyTorch models as problems, against PyTorch itself and against formulas."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import Task, TorchProblem
from mpi_ata.arrays import Array
from mpi_ata.errors import RunError, UsageError
from mpi_ata.problems import task_streams
from mpi_ata.torch.model import SAFE
from tests.driver.driven import driven
from tests.packaging.bounds import requirements
from tests.torch.scene import nn, samples, task, torch

ROOT = Path(__file__).parent.parent.parent
SIZE = 3 * 4 + 4 + 4 * 2 + 2  # weights of the model below


def small_model() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def a_problem(model: Any = small_model, batch_size: int = 5, **options: Any) -> TorchProblem:
    loss, dataset = options.pop("loss", nn.CrossEntropyLoss()), options.pop("dataset", samples(20))
    return TorchProblem(model, loss, dataset, batch_size, **options)


def point(size: int = SIZE, seed: int = 2) -> Array:
    x = np.random.default_rng(seed).normal(0.0, 0.5, size).astype(np.float32)
    x.flags.writeable = False
    return x


def with_dropout() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_a_gradient_is_what_backward_leaves_in_a_model_of_its_own() -> None:
    x, model, dataset = point(), small_model(), samples(20)
    nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
    inputs, targets = dataset[task(3).rng.integers(0, 20, 5)]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    wanted = torch.cat([weight.grad.reshape(-1) for weight in model.parameters()]).numpy()
    assert a_problem().gradient(x, task(3)).tolist() == wanted.tolist()


@pytest.mark.parametrize("model", [small_model, with_dropout])
def test_a_gradient_depends_on_its_task_alone_and_gradients_are_their_sum_bit_for_bit(model: Any) -> None:
    problem = a_problem(model)
    x = point(problem.x0.size)
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    gradients = [problem.gradient(x, task(*key)).tobytes() for key in keys]
    torch.rand(7)  # what others draw does not matter
    assert [problem.gradient(x, task(*key)).tobytes() for key in reversed(keys)] == gradients[::-1]
    assert len(set(gradients)) == len(keys)
    wanted = np.zeros_like(x)
    for number in range(6):
        wanted += problem.gradient(x, task(number))
    assert problem.gradients(x, [task(number) for number in range(6)]).tobytes() == wanted.tobytes()


def test_dropout_is_active_in_tasks_and_not_in_evaluations() -> None:
    one_sample = samples(1)
    problem = a_problem(with_dropout, dataset=one_sample)
    x = point(problem.x0.size)
    inputs, targets = one_sample.tensors
    A, a, B, b = x[:12].reshape(4, 3), x[12:16], x[16:24].reshape(2, 4), x[24:]
    scores = B @ (A @ inputs[0].numpy() + a) + b
    for _ in range(2):
        assert len({problem.gradient(x, task(number)).tobytes() for number in range(8)}) > 1
        assert problem.loss(x) == pytest.approx(np.logaddexp(*scores) - scores[int(targets)], rel=1e-5)


def test_the_start_depends_on_the_seed_alone_or_is_where_a_ready_made_model_is() -> None:
    first = a_problem(seed=3).x0
    torch.rand(5)
    assert a_problem(seed=3).x0.tobytes() == first.tobytes()
    assert a_problem(seed=4).x0.tobytes() != first.tobytes()
    assert (str(first.dtype), first.shape) == ("float32", (SIZE,))
    model = small_model()
    wanted = nn.utils.parameters_to_vector(model.parameters()).tolist()
    problem = a_problem(model)
    problem.gradient(point(), task())
    assert problem.x0.tolist() == wanted, "x0 is not a view of the weights"


def test_loss_and_metrics_are_means_over_all_test_samples_or_else_the_dataset() -> None:
    test, x, model = samples(601, seed=9), point(), small_model()
    nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
    inputs, targets = test.tensors
    outputs = model(inputs).detach()
    problem = a_problem(test=test, metrics={"accuracy": TorchProblem.accuracy, "loss": TorchProblem.accuracy})
    found = problem.evaluate(x)
    assert set(found) == {"loss", "accuracy"}
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5)
    right = sum(int(row[target] == row.max()) for row, target in zip(outputs, targets, strict=True))
    assert found["accuracy"] == pytest.approx(right / 601, rel=1e-6)
    assert problem.loss(x) == found["loss"] == a_problem(dataset=test).loss(x)


class InBatches:
    """A dataset that returns many samples at once, and notes which."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.drawn = set[int]()

    def __len__(self) -> int:
        return len(self._dataset)

    def minibatch(self, numbers: Any) -> Any:
        self.drawn |= set(numbers.tolist())
        return self._dataset[torch.from_numpy(numbers)]


class Named(nn.Module):  # type: ignore[misc]
    """A model of named inputs, which ignores the labels among them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()

    def forward(self, inputs: Any, labels: Any = None) -> Any:
        if isinstance(inputs, dict):
            return self.inner(inputs["there"] + inputs["more"][0])
        return {"scores": self.inner(inputs)}


def joined(pairs: Any) -> Any:
    inputs, targets = zip(*pairs, strict=True)
    return torch.stack(inputs), torch.stack(targets)


KINDS: dict[str, dict[str, Any]] = {
    "a list": {"dataset": list(samples(20))},
    "many at once": {"dataset": InBatches(samples(20))},
    "joined by a collate function": {"collate_fn": joined},
    "dicts, and outputs too": {
        "model": Named,
        "dataset": [{"inputs": inputs, "labels": label} for inputs, label in samples(20)],
        "loss": lambda found, batch: nn.functional.cross_entropy(found["scores"], batch["labels"]),
    },
    "inputs of dicts and lists": {
        "model": Named,
        "dataset": [({"there": inputs, "more": [torch.zeros(3)]}, label) for inputs, label in samples(20)],
    },
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_samples_may_be_of_any_kind(options: dict[str, Any]) -> None:
    problem, wanted = a_problem(**options), a_problem()
    assert problem.gradient(point(), task()).tolist() == wanted.gradient(point(), task()).tolist()
    assert problem.loss(point()) == pytest.approx(wanted.loss(point()), rel=1e-6)


def test_with_shards_a_worker_draws_only_from_its_own_part() -> None:
    dataset = InBatches(samples(20))
    problem = a_problem(dataset=dataset, sharded=True, batch_size=50)
    problem.setup(None, 3)
    for worker, part in enumerate([range(6), range(6, 13), range(13, 20)]):
        dataset.drawn.clear()
        problem.gradient(point(), task(worker=worker))
        assert dataset.drawn == set(part)
    with pytest.raises(RunError, match="20 samples cannot be divided among 21 workers"):
        problem.setup(0, 21)


def test_a_stopped_task_skips_the_backward_pass() -> None:
    unwanted = Task(task_streams(0), 1, 0, 0, lambda: True)
    assert not a_problem().gradient(point(), unwanted).any()


def test_frozen_weights_do_not_change_and_are_not_sent() -> None:
    model = small_model()
    before = [weight.tolist() for weight in model[0].parameters()]
    model[0].requires_grad_(False)
    problem = a_problem(model)
    assert problem.x0.size == 4 * 2 + 2
    problem.gradient(point(10), task())
    state = problem.state_dict(point(10))
    assert [state["0.weight"].tolist(), state["0.bias"].tolist()] == before
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
        if self.how == "replaced":
            self.seen = self.seen + 1
        return self.linear(inputs)


@pytest.mark.parametrize(
    ("how", "buffers", "sentence"),
    [
        ("changed", [], r"changed the model's buffer 'seen', .*buffers=\['seen'\] makes it"),
        ("replaced", [], r"changed the model's buffer 'seen', .*buffers=\['seen'\] makes it"),
        ("replaced", ["seen"], "replaced the model's buffer 'seen'; it must change it in place"),
    ],
)
def test_a_buffer_may_be_constant_or_is_named_and_changed_in_place(
    how: str, buffers: list[str], sentence: str
) -> None:
    constant = a_problem(lambda: Remembering("constant"))
    assert constant.gradient(point(8), task()).any()
    problem = a_problem(lambda: Remembering(how), buffers=buffers)
    with pytest.raises(RunError, match=sentence):
        problem.gradient(problem.x0, task())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"evaluation_batch": 0}, "evaluation_batch=0 must be at least 1"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0"),
        ({"precision": "int8"}, "precision='int8' must be one of float32, bf16, fp16"),
        ({"wire": "int8"}, "wire='int8' must be one of float32, bfloat16"),
        ({"buffers": ["seen"]}, "the model has no buffer 'seen'; it has: none"),
        ({"dataset": []}, "a dataset for training or testing must have at least one sample"),
        ({"dataset": iter([1])}, "the dataset list_iterator has no length"),
        (
            {"dataset": torch.utils.data.DataLoader([1])},
            "a DataLoader was passed as the dataset; pass loader.dataset",
        ),
        ({"test": []}, "a dataset for training or testing must have at least one sample"),
        ({"device": "abacus"}, "device='abacus' is not known to PyTorch; use 'cpu' or 'cuda'"),
        ({"model": lambda: small_model().double()}, "is torch.float64, but only float32 is supported"),
        ({"model": nn.Tanh}, "the model has no weights to train"),
        ({"model": lambda: small_model().requires_grad_(False)}, "the model has no weights to train"),
        ({"start": "nowhere.pt"}, "'nowhere.pt' cannot be read: No such file"),
        pytest.param(
            {"device": "cuda"},
            "device='cuda', but PyTorch sees no GPU here; use 'cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        a_problem(**options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_gives_the_gradients_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(torch.cuda.device_count()))
    there, here = a_problem(device="cuda"), a_problem()
    assert there.device.index == 0, "ranks on a node take their GPUs in turn"
    wanted = here.gradient(point(), task())
    assert there.gradient(point(), task()) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert there.loss(point()) == pytest.approx(here.loss(point()), rel=1e-4)
    assert there.state_dict(point())["0.weight"].device.type == "cpu"


def test_a_state_dict_is_saved_and_loaded_and_not_changed_by_later_tasks(tmp_path: Path) -> None:
    problem, x, path = a_problem(), point(), tmp_path / "weights.pt"
    problem.save(x, path)
    state = problem.state_dict(x)
    problem.gradient(problem.x0, task())
    assert state["0.weight"].reshape(-1).tolist() == x[:12].tolist()
    assert problem.load(path).tobytes() == a_problem(start=path).x0.tobytes() == x.tobytes()
    model = small_model()
    model.load_state_dict(torch.load(path, weights_only=True))
    assert nn.utils.parameters_to_vector(model.parameters()).tolist() == x.tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["weights.pt"]


class Harmful:
    """What unpickling would execute."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def test_nothing_but_tensors_of_this_model_is_loaded() -> None:
    Path("pickled.pt").write_bytes(pickle.dumps(Harmful()))
    torch.save({"0.weight": Harmful()}, "saved.pt")
    Path("text.pt").write_text("no weights at all")
    for name in ("pickled.pt", "saved.pt", "text.pt"):
        with pytest.raises(ValueError, match=f"'{name}' is not a file of tensors alone"):
            a_problem(start=name)
    assert not Path("harmed").exists()
    torch.save(nn.Linear(3, 2).state_dict(), "other.pt")
    with pytest.raises(ValueError, match=r"not a state_dict of this model: .*Missing key.*\"0.weight\".*$"):
        a_problem(start="other.pt")


@pytest.mark.parametrize("version", ["2.2.0", "2.9.1+cu128", "2.10.0rc1"])
def test_no_file_is_read_with_a_version_that_might_run_what_is_in_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(small_model().state_dict(), "weights.pt")
    a_problem(start="weights.pt")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    with pytest.raises(
        UsageError, match=r"may run code that is hidden in 'weights.pt'; use 2.10 or newer \(pip"
    ):
        a_problem(start="weights.pt")


def test_the_version_that_pip_installs_may_read_files() -> None:
    assert requirements("torch") == {"torch": SAFE}


def test_a_rank_has_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        for options, threads in (({"threads": 3}, 3), ({}, 1)):
            a_problem(**options).setup(0, 1)
            assert torch.get_num_threads() == threads
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
