"""Balance on real ranks of torch.distributed: the numbers of one process, learned shares, run files."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpi_ata
from mpi_ata.cli import main
from mpi_ata.torch.data import Epochs
from mpi_ata.torch.ddp import LoaderDraws, SharedDraws
from tests.torch.scene import torch

ranks = pytest.importorskip("tests.torch.balance_ranks")
ROOT = Path(__file__).parent.parent.parent
RANKS = 3
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def started(folder: Path) -> list[int]:
    """Run all scenarios on three ranks, and return the exit codes."""
    command = [sys.executable, "-m", "tests.torch.balance_ranks", str(folder)]
    words = [[*command, str(rank), str(RANKS)] for rank in range(RANKS)]
    processes = [subprocess.Popen(each, cwd=ROOT, env=ENVIRONMENT) for each in words]
    try:
        return [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which three ranks have run all scenarios."""
    found = tmp_path_factory.mktemp("balance")
    assert started(found) == [0, 9, 0], "rank 1 dies in the end"
    return found


def test_the_script_in_the_documentation_trains_and_balances(tmp_path: Path) -> None:
    """On two ranks, of which one is slow."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    out = tmp_path / "run.h5"
    command = [sys.executable, "jobs/pytorch_ddp.py", f"--out={out}", "--steps=100", "--slow=0.02"]
    command.append(f"--checkpoint={tmp_path / 'checkpoint.pt'}")
    kinds: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    environments = [ENVIRONMENT | group | {"RANK": rank} for rank in "01"]
    processes = [subprocess.Popen(command, env=environment, **kinds) for environment in environments]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert mpi_ata.load(out).summary["rounds"] == 100
    found = re.fullmatch(r"step 100: loss (\S+), micro-batches \[(\d), (\d)\]\n", outputs[0])
    assert found is not None, outputs[0]
    assert float(found[1]) < 0.8, "by chance it is 1.1"
    # A micro-batch of the slow rank takes as long as several of the other.
    assert int(found[2]) > int(found[3])


def seen(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """Return what each rank has seen in a scenario."""
    return [json.loads((folder / f"{rank}.json").read_text())[scenario] for rank in range(RANKS)]


def trained_alone(norm: bool = False) -> tuple[dict[str, list[float]], list[float]]:
    """Return the model of one process that does all micro-batches itself, and the losses of its steps."""
    model, data = ranks.network(norm), ranks.data()
    optimizer, epochs, losses = ranks.optimizer_of(model), Epochs(len(data), ranks.BATCH, 0), []
    for k in range(ranks.ROUNDS):
        batches = [data[torch.from_numpy(epochs.minibatch(4 * k + j))] for j in range(4)]
        loss = sum(torch.nn.functional.mse_loss(model(x), y) for x, y in batches) / 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return ranks.values_of(model), losses


@pytest.mark.parametrize("name", ["plain", "ddp", "sums"])
def test_ranks_with_unequal_shares_train_the_model_of_one_process(folder: Path, name: str) -> None:
    model, _ = trained_alone()
    for found in seen(folder, "same_numbers"):
        assert set(found[name]) == set(model)
        for key, value in model.items():
            np.testing.assert_allclose(found[name][key], value, rtol=1e-5, atol=1e-6)


def test_every_rank_knows_the_shares_and_the_mean_loss_of_a_step(folder: Path) -> None:
    _, losses = trained_alone()
    for found in seen(folder, "same_numbers"):
        used, means = zip(*found["ddp rounds"], strict=True)
        assert list(used) == [*ranks.SPLITS, ranks.SPLITS[0]]
        np.testing.assert_allclose(means, losses, rtol=1e-5)


def test_running_statistics_are_the_same_on_all_ranks_and_have_moved(folder: Path) -> None:
    first, *others = (found["norm"] for found in seen(folder, "same_numbers"))
    assert all(other == first for other in others)
    assert np.abs(first["1.running_mean"]).max() > 0.01
    # The mean over ranks, whatever their shares: 4/3 per step, rounded after each of four.
    assert first["1.num_batches_tracked"] == [33_333_337]


def test_a_parameter_that_one_rank_uses_has_a_gradient_everywhere_and_one_that_none_uses_has_none(
    folder: Path,
) -> None:
    for found in seen(folder, "unused"):
        assert found["always.weight"] == [[1.0] * 4]
        assert found["second.weight"] == [[0.25] * 4], "one of four micro-batches has used it"
        assert found["never.weight"] is None


def test_a_slow_rank_gets_fewer_micro_batches(folder: Path) -> None:
    for found in seen(folder, "learned"):
        assert found["quotas"][0] == [4, 4, 4]
        assert all(sum(quota) == 12 for quota in found["quotas"])
        # One of its micro-batches takes 20 times as long as one of the others, and still several times as
        # long where these have to wait for a core: with 3 times, its share would be 2 of 12.
        assert np.mean([quota[2] for quota in found["quotas"][5:]]) < 3


def test_a_run_is_resumed_and_another_one_starts_with_its_speeds(folder: Path) -> None:
    for found in seen(folder, "learned"):
        assert found["resumed"] == [20, [21, 22]]
        assert found["warm"][2] < 3, "without knowledge it would be 4"


def test_the_checkpoint_of_the_user_decides_where_training_continues(folder: Path) -> None:
    """It is older than the run file."""
    for found in seen(folder, "checkpoint"):
        np.testing.assert_allclose(found["resumed"], found["losses"][2:], rtol=1e-6)
        assert found["rounds"] == [4, 2]
        assert found["mixed"].endswith("load the same checkpoint on all ranks") or found["rank"] == 0
    run = mpi_ata.load(folder / "checkpoint.h5")
    assert run.history["round"].tolist() == [0, 1, 2, 3, 4]


def test_the_run_file_has_the_loss_of_each_step_and_the_speeds_of_ranks(folder: Path) -> None:
    run = mpi_ata.load(folder / "run.h5")
    assert (run.summary["rounds"], run.summary["tasks_used"]) == (22, 22 * 12)
    assert len(run.history["loss"]) == 23
    assert np.isfinite(run.history["loss"][1:]).all()
    assert run.workers[2]["mean"] > max(0.06, 2 * run.workers[0]["mean"])
    done = CliRunner().invoke(main, ["explain", str(folder / "run.h5"), "--json"])
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["allocator"], found["rounds"], found["workers_in_all"]) == ("ata-auto", 22, 3)


MISTAKES = {
    "budget": "budget=0 must be at least 1",
    "shuffle": "shuffle='epochs' must be 'loader' or 'epoch'",
    "settings": "rank 1 has budget=4, shuffle='loader', seed=0, but rank 0 budget=3",
    "step": "call micro_batches(loader) before each step()",
    "empty": "the loader has no batches",
    "early": "rank 1 has done",
    "twice": "micro_batches() was called twice for one step",
}
OF_RANK_0 = {
    "allocator": "did you mean ata-auto?",
    "greedy": "use another allocator, such as ata-auto",
    "exists": "exists; continue it with resume=True, or choose another out",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_in_one_sentence(folder: Path, name: str) -> None:
    for found in seen(folder, "mistakes"):
        assert MISTAKES[name] in found[name]
        assert "\n" not in found[name]


@pytest.mark.parametrize("name", OF_RANK_0)
def test_what_only_rank_0_can_find_out_ends_the_others_too(folder: Path, name: str) -> None:
    first, *others = (found[name] for found in seen(folder, "mistakes"))
    assert OF_RANK_0[name] in first
    assert others == ["2"] * (RANKS - 1), "the exit code"


def test_a_rank_that_dies_leaves_errors_and_a_run_file_with_all_rounds_before(folder: Path) -> None:
    survivors = [json.loads((folder / f"{rank}.json").read_text())["death"] for rank in (0, 2)]
    assert survivors == [{"error": survivors[0]["error"], "rounds": 5}] * 2
    assert mpi_ata.load(folder / "death.h5").summary["rounds"] == 5


def test_an_exhausted_loader_is_restarted_with_another_epoch_of_its_sampler() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    draws = LoaderDraws(torch.utils.data.DataLoader(data, 2, sampler=sampler), epoch=0)
    first, second = ([x for (batch,) in draws.take(0, 3) for x in batch.tolist()] for _ in range(2))
    assert len(set(first)) == len(set(second)) == 6, "each sample of its part once per epoch"
    assert first != second


def test_ranks_that_share_a_sequence_draw_each_sample_once_per_epoch() -> None:
    """One of them has a loader process."""
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    loaders = [torch.utils.data.DataLoader(data, 2, num_workers=count) for count in (0, 0, 1)]
    draws = [SharedDraws(loader, seed=5) for loader in loaders]
    shares = [draws[0].take(0, 1), draws[1].take(1, 0), draws[2].take(1, 5)]  # quotas 1, 0 and 5
    drawn = [x for share in shares for (batch,) in share for x in batch.tolist()]
    assert sorted(drawn) == list(range(12))
    draws[2].close()


def test_dropout_on_a_shared_batch_does_not_depend_on_who_has_read_it() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    drawn = []
    for processes in (0, 1):
        torch.rand(1 + processes)  # ranks have done other things before
        draws = SharedDraws(torch.utils.data.DataLoader(data, 2, num_workers=processes), seed=5)
        drawn.append([torch.rand(1).item() for _ in draws.take(3, 2)])
        draws.close()
    assert drawn[0] == drawn[1]


def test_a_shared_sequence_needs_samples_by_number() -> None:
    with pytest.raises(mpi_ata.UsageError, match="shuffle='epoch' needs a DataLoader with a dataset"):
        SharedDraws([1, 2], seed=0)
    endless = torch.utils.data.DataLoader(torch.utils.data.ChainDataset([]), 2)
    with pytest.raises(mpi_ata.UsageError, match="give it some"):
        SharedDraws(endless, seed=0)


def alone(script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process group of its own."""
    group = 'torch.distributed.init_process_group("gloo", "file://{}", rank=0, world_size=1)'
    Path("train.py").write_text(script.replace("GROUP", group.format(Path("group").absolute())))
    command = [sys.executable, "train.py"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


MANY_LOADERS = """
import multiprocessing, torch, mpi_ata
if __name__ == "__main__":
    GROUP
    balance, model = mpi_ata.Balance(1, allocator="uta", shuffle="epoch"), torch.nn.Linear(1, 1)
    data = torch.utils.data.TensorDataset(torch.ones(4, 1))
    for _ in range(11):  # as a script that makes a new loader in each epoch
        for (batch,) in balance.micro_batches(torch.utils.data.DataLoader(data, 2, num_workers=1)):
            model(batch).sum().backward()
        balance.reduce(model)
    print(len(multiprocessing.active_children()))
"""


def test_a_new_loader_in_each_epoch_does_not_leave_its_processes_behind() -> None:
    assert alone(MANY_LOADERS).stdout == "8\n"  # those of the latest loaders, which may go on


def test_a_script_with_a_mistake_ends_with_one_sentence_and_no_traceback() -> None:
    done = alone("import torch, mpi_ata\nGROUP\nmpi_ata.Balance(budget=0)\n")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: budget=0 must be at least 1")
    assert "Traceback" not in done.stderr


def test_several_ranks_need_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(mpi_ata.UsageError, match=r"there are 2 ranks.*init_process_group\(\) first"):
        mpi_ata.Balance(4)


def test_one_process_needs_no_group_and_logs_are_weighted_by_name() -> None:
    balance, model = mpi_ata.Balance(3, shuffle="epoch"), torch.nn.Linear(1, 1, bias=False)
    data = torch.utils.data.TensorDataset(torch.arange(1.0, 7.0).reshape(6, 1))
    sampler = torch.utils.data.BatchSampler(range(6), 2, drop_last=False)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert balance.steps_per_epoch(loader) == 1
    for (batch,) in balance.micro_batches(loader):
        model(batch).sum().backward()
        balance.log(weight=len(batch) * batch.sum(), largest=batch.max())
    round = balance.reduce(model, weight=6)
    assert model.weight.grad.item() == 3.5, "the mean of 1 ... 6"
    assert round.logs == {"largest": pytest.approx((3 * 2 + 7 * 4 + 11 * 6) / 21)}
    assert balance.weight == 6


def test_modules_and_loaders_that_exchange_something_are_rejected() -> None:
    accelerate = pytest.importorskip("accelerate")
    balance, model = mpi_ata.Balance(1), torch.nn.SyncBatchNorm(1)
    data = torch.utils.data.TensorDataset(torch.ones(4, 1))
    with pytest.raises(mpi_ata.UsageError, match="SyncBatchNorm exchanges statistics"):
        [model(batch) for (batch,) in balance.micro_batches(torch.utils.data.DataLoader(data))]
    prepared = accelerate.Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(data))
    with pytest.raises(mpi_ata.UsageError, match="leave it out of accelerator"):
        mpi_ata.Balance(1).micro_batches(prepared)
    sharded = type("FSDPModule", (torch.nn.Linear,), {})(1, 1)
    with pytest.raises(mpi_ata.UsageError, match="FSDPModule adds up gradients inside backward"):
        [sharded(batch) for (batch,) in mpi_ata.Balance(1).micro_batches(torch.utils.data.DataLoader(data))]
