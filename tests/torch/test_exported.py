"""mpi-ata export --weights: the state_dict of the original model, from the run file alone."""

import json
from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata import Plain, Quadratic, Sqrt, TorchProblem, Trainer
from mpi_ata.torch.model import MODEL, weights_of
from tests.cli.commands import call
from tests.torch.scene import drained, nn, samples, torch


class Tied(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """Two names for one weight, batch norm, a frozen weight, and a buffer that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, inputs: Any) -> Any:
        return self.last(self.norm(self.first(inputs))) * self.frozen * self.mask


def trained(model: Any, **options: Any) -> dict[str, Any]:
    """Train, and return what trainer.save() writes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"budget": 4, "optimizer": optimizer, "rounds": 5, "times": Sqrt(2)}
    settings |= {"out": "run.h5", "ema": 0.5} | options
    with Trainer(model, nn.CrossEntropyLoss(), samples(features=4), 8, **settings) as trainer:
        drained(trainer).save("saved.pt")
        trainer.save("averaged.pt", averaged=True)
    return read("saved.pt")


def read(path: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def exported(*options: str) -> str:
    """Export weights, and return what is printed."""
    result = call("export", "run.h5", "--weights", "w.pt", *options)
    assert result.exit_code == 0, result.stderr
    return str(result.stderr)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    kinds = [[(name, t.dtype, t.shape) for name, t in state.items()] for state in (one, other)]
    return kinds[0] == kinds[1] and all(torch.equal(one[name], other[name]) for name in one)


def test_weights_and_statistics_are_those_that_the_trainer_saves() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].num_batches_tracked += 20_000_001
    saved = trained(model)
    exported()
    assert same(read("w.pt"), saved)
    assert read("w.pt")["1.num_batches_tracked"].item() == 20_000_006
    exported("--averaged")
    assert same(read("w.pt"), read("averaged.pt"))
    assert not same(read("w.pt"), saved)


def test_integers_of_older_runs_which_have_no_digits_are_exported_too() -> None:
    rows = [("w", "float32", [2], 0), ("n", "int64", [1], 2)]
    method = {"x": np.array([1.5, 2.5, 7.0], np.float32), MODEL: np.array(json.dumps(rows).encode())}
    found, missing = weights_of(method)
    assert same(found, {"w": torch.tensor([1.5, 2.5]), "n": torch.tensor([7])})
    assert not missing


def test_what_was_not_trained_is_named_and_can_be_added() -> None:
    torch.save(Tied().state_dict(), "base.pt")
    saved = trained(Tied())
    assert "does not have what the run did not train: frozen, mask; add it with --base" in exported()
    assert set(saved) - set(read("w.pt")) == {"frozen", "mask"}
    assert exported("--base", "base.pt") == "wrote w.pt\n"
    whole = read("w.pt")
    assert same({name: whole[name] for name in saved}, saved)
    Tied().load_state_dict(whole)


def test_a_model_without_statistics_and_logs_is_exported_too() -> None:
    problem = TorchProblem(lambda: nn.Linear(4, 2), nn.CrossEntropyLoss(), samples(features=4), 8)
    outcome = mpi_ata.minimize(problem, 4, update=Plain(0.1), rounds=5, times=Sqrt(2), out="run.h5")
    assert outcome is not None
    exported()
    assert same(read("w.pt"), problem.state_dict(outcome.x))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--weights", "w.pt"], "the run has no weights of a PyTorch model; use --x to write its point"),
        (["--averaged"], "--averaged needs --weights FILE.pt"),
        (["--base", "b.pt"], "--base needs --weights FILE.pt"),
        (["--weights", "run.h5"], "run.h5 is a run file, and is not overwritten"),
    ],
)
def test_what_cannot_be_exported_is_explained(arguments: list[str], sentence: str) -> None:
    mpi_ata.minimize(Quadratic(5), 4, update=Plain(0.4), rounds=2, times=Sqrt(3), out="run.h5")
    result = call("export", "run.h5", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr


def test_a_run_without_a_running_mean_says_so() -> None:
    trained(nn.Linear(4, 2), ema=None)
    result = call("export", "run.h5", "--weights", "w.pt", "--averaged")
    assert "the run has no running mean of its weights; train with ema=0.999" in result.stderr
