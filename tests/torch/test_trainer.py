"""A loop of one's own that trains a network, on simulated workers."""

from typing import Any

import numpy as np
import pytest

import mpi_ata
from mpi_ata import Sqrt, Stop, Trainer
from mpi_ata.errors import UsageError
from tests.torch.scene import drained, nn, samples, torch


def normed() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def a_trainer(**options: Any) -> Trainer:
    model = normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    settings: dict[str, Any] = {
        "budget": 6,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5),
        "clip": 1.0,
        "times": Sqrt(3),
        "test": samples(40, seed=2),
        "metrics": {"accuracy": mpi_ata.TorchProblem.accuracy},
        "allocator": "uta",
        "rounds": 30,
    }
    settings |= options
    loss, batch_size = settings.pop("loss", nn.CrossEntropyLoss()), settings.pop("batch_size", 5)
    return Trainer(model, loss, samples(90), batch_size, **settings)


@pytest.mark.parametrize(
    "draws", [{"shuffle": "epoch"}, {"sampler": torch.utils.data.RandomSampler(range(90))}]
)
def test_dropout_depends_on_the_batch_and_not_on_who_does_it(draws: dict[str, Any]) -> None:
    """So that quotas that depend on measured times do not change a run; but for the order of its sums."""

    def losses(workers: int) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options: dict[str, Any] = {"budget": 6, "optimizer": optimizer, "times": Sqrt(workers)} | draws
        arguments = model, nn.CrossEntropyLoss(), samples(90), 5
        with Trainer(*arguments, rounds=4, allocator="uta", **options) as trainer:
            return [round.logs["loss"] for round in trainer]

    assert losses(3) == pytest.approx(losses(2), rel=1e-5)


def loss_of(model: Any, data: Any) -> float:
    inputs, targets = data.tensors
    return float(nn.functional.cross_entropy(model.eval()(inputs), targets).detach())


def test_a_loop_sees_rounds_with_their_training_loss_and_evaluates() -> None:
    with a_trainer() as trainer:
        before = trainer.evaluate()
        losses = [round.logs["loss"] for round in trainer]
        after = trainer.evaluate()
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert after["accuracy"] > 0.85 > before["accuracy"]
    assert trainer.update.optimizer.param_groups[0]["lr"] == 0.01
    assert trainer.trace.metrics["accuracy"][-1] == after["accuracy"]


def test_saved_weights_are_those_of_the_original_model() -> None:
    with a_trainer(ema=0.5) as trainer:
        drained(trainer)
        found = {averaged: trainer.evaluate(averaged=averaged)["loss"] for averaged in (False, True)}
        for averaged, loss in found.items():
            trainer.save("w.pt", averaged=averaged)
            model = normed()
            model.load_state_dict(torch.load("w.pt", weights_only=True))
            assert loss == pytest.approx(loss_of(model, samples(40, seed=2)), rel=1e-5)
    assert found[False] != found[True]


def test_a_run_is_resumed_bit_for_bit_with_the_users_own_state() -> None:
    def trained(out: str, **options: Any) -> Trainer:
        with a_trainer(out=out, resume=True, **options) as trainer:
            for round in trainer:
                trainer.state["rounds"] = trainer.state.get("rounds", 0) + 1
                trainer.state["norms"] = np.append(trainer.state.get("norms", []), round.logs["loss"])
        return trainer

    whole = trained("whole.h5")
    trained("parts.h5", stop=Stop(rounds=11), rounds=None)
    resumed = trained("parts.h5")
    assert resumed.method.k == resumed.state["rounds"] == whole.state["rounds"] == 30
    assert resumed.state["norms"].tolist() == whole.state["norms"].tolist()
    assert resumed.x.tobytes() == whole.x.tobytes()


def test_a_run_is_resumed_only_with_its_own_frozen_weights() -> None:
    """Another processor may have rounded them differently."""

    def trained(rounds: int, seed: int, factor: float = 1.0) -> int:
        torch.manual_seed(seed)
        frozen, last = nn.Linear(3, 5000).requires_grad_(False), nn.Linear(5000, 2)
        frozen.weight *= factor
        optimizer = torch.optim.SGD(last.parameters(), lr=0.01)
        options: dict[str, Any] = {"optimizer": optimizer, "times": Sqrt(2), "out": "run.h5", "resume": True}
        model = nn.Sequential(frozen, last)
        with Trainer(
            model, nn.CrossEntropyLoss(), samples(), 4, budget=2, rounds=rounds, **options
        ) as trainer:
            return int(drained(trainer).method.k)

    assert trained(2, seed=0) == 2
    with pytest.raises(
        UsageError, match="other frozen weights or constant buffers than in that run; build it"
    ):
        trained(4, seed=1)
    assert trained(4, seed=0, factor=1 + 1e-6) == 4


def test_a_run_is_resumed_with_another_loss_only_if_that_is_accepted() -> None:
    def resume(loss: Any, rounds: int, **options: Any) -> int:
        with a_trainer(loss=loss, rounds=rounds, out="run.h5", resume=True, **options) as trainer:
            return int(drained(trainer).method.k)

    assert resume(nn.CrossEntropyLoss(), 2) == 2
    assert resume(nn.CrossEntropyLoss(), 4, batch_size=6) == 4
    with pytest.raises(
        UsageError, match=r"training.loss \(CrossEntropyLoss, now MultiMarginLoss\); resume with"
    ):
        resume(nn.MultiMarginLoss(), 6)
    assert resume(nn.MultiMarginLoss(), 6, accept_changes=True) == 6
    changes = [event["text"] for event in mpi_ata.load("run.h5").events if event["kind"] == "changed"]
    assert "training.batch_size: 5 -> 6" in changes
    assert "training.loss: CrossEntropyLoss -> MultiMarginLoss" in changes


def test_a_loop_that_is_left_is_saved_and_there_again_before_the_next_round() -> None:
    with a_trainer(out="run.h5") as trainer:
        rounds = iter(trainer)  # which is still there after the block
        for round in rounds:
            trainer.state["best"] = 0.5
            if round.number == 7:
                break
        found = trainer.evaluate()
    with a_trainer(out="run.h5", resume=True) as again:
        assert (again.state, again.method.k) == ({"best": 0.5}, 7)
        assert again.x.tobytes() == trainer.x.tobytes()
        assert again.evaluate() == found
        assert [round.number for round in again] == list(range(8, 31))


def test_what_cannot_be_saved_is_rejected() -> None:
    def noted() -> None:
        with a_trainer(out="run.h5") as trainer:
            for _ in trainer:
                trainer.state["who"] = "me"

    with pytest.raises(UsageError, match=r"state\['who'\] = 'me' cannot be saved; use numbers"):
        noted()


def share_of_ones(outputs: Any, targets: Any) -> Any:
    return targets.float().mean()


def test_datasets_and_metrics_are_named_or_passed_as_they_are() -> None:
    valid, test = samples(30, seed=3), samples(40, seed=2)
    with a_trainer(test={"test": test, "valid": valid}, evaluation_batch=7) as trainer:
        drained(trainer)
        found, validated = trainer.evaluate(), trainer.evaluate("valid")
        assert found["loss"] != validated["loss"]
        assert found == trainer.evaluate("test") == trainer.evaluate(test)
        accuracy = mpi_ata.TorchProblem.accuracy
        assert trainer.evaluate(valid, accuracy) == trainer.evaluate("valid", "accuracy")
        assert trainer.evaluate(valid, accuracy) == validated["accuracy"]
        recorded = trainer.trace.loss
    assert recorded == found["loss"], "an evaluation of another dataset is not taken for it"


def test_what_the_trainer_was_not_given_is_evaluated_all_the_same() -> None:
    other = samples(50, seed=4)
    with a_trainer(rounds=3) as trainer:
        drained(trainer)
        for data, given in ((other, other), (samples(40, seed=2), None)):
            wanted = float(data.tensors[1].float().mean())
            assert trainer.evaluate(given, share_of_ones) == pytest.approx(wanted)
        model = normed()
        model.load_state_dict(trainer.problem.state_dict(trainer.x))
        assert trainer.evaluate(other)["loss"] == pytest.approx(loss_of(model, other), rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("dev",), "there is no dataset 'dev'; test= names: test"),
        (("test", "precision"), "there is no metric 'precision'; metrics= names: accuracy, loss"),
    ],
)
def test_unknown_names_are_rejected(asked: tuple[str, ...], sentence: str) -> None:
    with a_trainer(rounds=1) as trainer, pytest.raises(UsageError, match=sentence):
        trainer.evaluate(*asked)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_worker": 2}, r"Trainer has no argument 'num_worker'; did you mean num_workers\?"),
        ({"replicated": True}, "replicated was removed; use exchange='chain', or mpi_ata.Balance"),
        ({"shuffle": True}, "shuffle=True must be 'replacement' or 'epoch', which is what shuffle=True of a"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        a_trainer(**options)


def test_an_error_in_the_function_that_builds_the_model_stays_the_users_own() -> None:
    def build() -> Any:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer") as caught:
        Trainer(build, nn.CrossEntropyLoss(), samples(), budget=6, optimizer=None)
    assert not isinstance(caught.value, UsageError)


def test_the_norm_of_the_mean_gradient_is_logged_before_it_is_clipped() -> None:
    options: dict[str, Any] = {"logs": ("gradient_norm", "loss"), "rounds": 1, "scheduler": None}
    options["optimizer"] = lambda model: torch.optim.SGD(model.parameters(), lr=1.0)
    with a_trainer(clip=None, **options) as trainer:
        [logs] = [round.logs for round in trainer]
        step = (trainer.x - trainer.problem.x0)[: trainer.problem.layout.weights]
    assert logs["gradient_norm"] == pytest.approx(np.linalg.norm(step), rel=1e-5)
    assert 0.3 < logs["loss"] < 1.5
    with a_trainer(clip=1e-6, **options) as trainer:
        assert [round.logs for round in trainer] == [logs]


def test_gradients_that_travel_as_bfloat16_train_as_well() -> None:
    """Each is off by at most 0.4 %, so after 30 steps the loss is not the same, but as low."""

    def loss(**options: Any) -> float:
        with a_trainer(**options) as trainer:
            return float(drained(trainer).evaluate()["loss"])

    full, halved, both = loss(), loss(wire="bfloat16"), loss(wire="bfloat16", wire_x="bfloat16")
    assert len({full, halved, both}) == 3
    assert [halved, both] == pytest.approx([full, full], rel=0.1)
