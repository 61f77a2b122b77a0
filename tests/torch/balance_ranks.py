"""The ranks of test_balance.py: each runs all scenarios, and writes down what it has seen."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpi_ata
from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import BoolArray, IntArray

ROUNDS, BATCH = 4, 3
SPLITS = ([3, 1, 0], [0, 2, 2], [1, 1, 2])  # quotas of three ranks, in turn
SLOW = 0.06  # seconds by which a micro-batch of the last rank is longer
Found = dict[str, Any]


class Scripted(NonAdaptive):
    """Quotas that are given."""

    def __init__(self, n: int, splits: Sequence[Sequence[int]] = SPLITS) -> None:
        self.n, self.budget, self._splits, self._k = n, sum(splits[0]), splits, 0

    def allocate(self, available: BoolArray) -> IntArray:
        self._k += 1
        return np.array(self._splits[(self._k - 1) % len(self._splits)])


def data() -> TensorDataset:
    noise = torch.Generator().manual_seed(3)
    inputs = torch.randn(30, 4, generator=noise)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def network(norm: bool = False) -> Any:
    torch.manual_seed(1)
    middle = [nn.BatchNorm1d(8)] if norm else []
    for layer in middle:
        layer.num_batches_tracked += 33_333_333  # more than float32 can count
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Linear(8, 1))


def optimizer_of(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def values_of(model: Any) -> dict[str, list[float]]:
    state = getattr(model, "module", model).state_dict()
    return {name: value.reshape(-1).tolist() for name, value in state.items()}


def train(balance: Any, model: Any, rounds: int, seconds: float = 0.0, sums: bool = False) -> list[Any]:
    loader, optimizer, done = DataLoader(data(), BATCH), optimizer_of(model), []
    for _ in range(rounds):
        weight = 0
        for inputs, targets in balance.micro_batches(loader):
            loss = nn.functional.mse_loss(model(inputs), targets, reduction="sum" if sums else "mean")
            loss.backward()
            balance.log(loss)
            weight += len(inputs)
            time.sleep(seconds)
        done.append(balance.step(model, optimizer, weight if sums else None))
    return done


def same_numbers(folder: Path, rank: int) -> Found:
    found: Found = {}
    for name, norm, wrapped in (("plain", False, False), ("ddp", False, True), ("norm", True, True)):
        model = network(norm)
        model = nn.parallel.DistributedDataParallel(model) if wrapped else model
        rounds = train(mpi_ata.Balance(4, allocator=Scripted, shuffle="epoch"), model, ROUNDS)
        found[name] = values_of(model)
        found[f"{name} rounds"] = [[round.used.tolist(), round.logs["loss"]] for round in rounds]
    summed = network()
    train(mpi_ata.Balance(4, allocator=Scripted, shuffle="epoch"), summed, ROUNDS, sums=True)
    return found | {"sums": values_of(summed)}


class Heads(nn.Module):  # type: ignore[misc]
    """A model of which a part is used on rank 1 alone, and another part nowhere."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.always, self.second, self.never = (nn.Linear(4, 1, bias=False) for _ in range(3))
        self._rank = rank

    def forward(self, inputs: Any) -> Any:
        return self.always(inputs) + (self.second(inputs) if self._rank == 1 else 0)


def unused(folder: Path, rank: int) -> Found:
    model = Heads(rank)
    balance = mpi_ata.Balance(4, allocator=lambda n: Scripted(n, [[2, 1, 1]]))
    for inputs, _ in balance.micro_batches([(torch.ones(1, 4), None)]):
        model(inputs).sum().backward()
    balance.reduce(model)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: None if found is None else found.tolist() for name, found in gradients.items()}


def learned(folder: Path, rank: int) -> Found:
    seconds = 0.001 if rank < 2 else SLOW
    with mpi_ata.Balance(12, out=folder / "run.h5") as balance:
        quotas = [round.quota.tolist() for round in train(balance, network(), 20, seconds)]
    with mpi_ata.Balance(12, out=folder / "run.h5", resume=True) as balance:
        resumed = balance.rounds, [round.number for round in train(balance, network(), 2, seconds)]
    warm = mpi_ata.Balance(12, warm_start=folder / "run.h5")
    first = train(warm, network(), 1, seconds)[0].quota.tolist()
    return {"quotas": quotas, "resumed": resumed, "warm": first}


def checkpoint(folder: Path, rank: int) -> Found:
    """Train four steps, and continue from the checkpoint of step 2, with dropout."""

    def model_and_losses(balance: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
        model.load_state_dict(state or model.state_dict())
        loader, optimizer = DataLoader(data(), BATCH), torch.optim.SGD(model.parameters(), lr=0.1)
        losses, saved = [], None
        for step in range(balance.rounds, steps):
            for inputs, targets in balance.micro_batches(loader):
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                balance.log(loss)
            losses.append(balance.step(model, optimizer).logs["loss"])
            if step == 1:
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                saved = {"model": weights, "balance": balance.state_dict()}
        return saved, losses

    given: dict[str, Any] = {"allocator": Scripted, "shuffle": "epoch", "out": folder / "checkpoint.h5"}
    with mpi_ata.Balance(4, **given) as balance:
        saved, losses = model_and_losses(balance, None, 4)
    torch.save(saved, folder / f"checkpoint{rank}.pt")
    torch.distributed.barrier()
    saved = torch.load(folder / "checkpoint0.pt", weights_only=True)
    with mpi_ata.Balance(4, resume=True, **given) as balance:
        rounds = [balance.rounds]
        balance.load_state_dict(saved["balance"])
        rounds.append(balance.rounds)
        _, resumed = model_and_losses(balance, saved["model"], 4)
    mixed = mpi_ata.Balance(4, shuffle="epoch")
    if rank:
        mixed.load_state_dict(saved["balance"])
    message = message_of(lambda: mixed.micro_batches(DataLoader(data(), BATCH)))
    return {"losses": losses, "resumed": resumed, "rounds": rounds, "mixed": message, "rank": rank}


def message_of(action: Callable[[], object]) -> str:
    try:
        action()
    except (mpi_ata.UsageError, mpi_ata.RunError, SystemExit) as error:
        return str(error)
    return "nothing was wrong"


def left_early(balance: Any, rank: int) -> None:
    for _ in balance.micro_batches([1]):
        if rank == 1:
            break
    balance.reduce(network())


def mistakes(folder: Path, rank: int) -> Found:
    balance = mpi_ata.Balance(6)
    actions: dict[str, Callable[[], object]] = {
        "budget": lambda: mpi_ata.Balance(0),
        "shuffle": lambda: mpi_ata.Balance(3, shuffle="epochs"),
        "settings": lambda: mpi_ata.Balance(3 + rank),
        "allocator": lambda: mpi_ata.Balance(3, allocator="ata-manual"),
        "greedy": lambda: mpi_ata.Balance(3, allocator="gta").micro_batches([1]),
        "exists": lambda: mpi_ata.Balance(12, out=folder / "run.h5"),
        "step": lambda: balance.step(network(), None),
        "empty": lambda: list(mpi_ata.Balance(6).micro_batches([])),
        "early": lambda: left_early(balance, rank),
        "twice": lambda: [mpi_balance.micro_batches([1]) for mpi_balance in [mpi_ata.Balance(3)] * 2],
    }
    return {name: message_of(action) for name, action in actions.items()}


def death(folder: Path, rank: int) -> Found:
    balance = mpi_ata.Balance(6, out=folder / "death.h5", checkpoint_rounds=1)
    model = nn.parallel.DistributedDataParallel(network())
    train(balance, model, 5)
    if rank == 1:
        os._exit(9)
    try:
        train(balance, model, 1)
    except RuntimeError as error:
        return {"error": type(error).__name__, "rounds": balance.rounds}
    return {}


# The last one leaves no group for others.
SCENARIOS = {each.__name__: each for each in (same_numbers, unused, learned, checkpoint, mistakes, death)}


def main() -> None:
    """Run all scenarios: FOLDER RANK RANKS."""
    folder, rank, n = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.distributed.init_process_group("gloo", f"file://{folder / 'group'}", rank=rank, world_size=n)
    found: Found = {}
    for name, scenario in SCENARIOS.items():
        found[name] = scenario(folder, rank)
        (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
