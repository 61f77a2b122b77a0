"""Networks on real ranks: the same numbers as simulated, and errors that end all ranks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

from mpi_ata import launch
from tests.mpi.starting import COMMAND, ROOT, finished, mpirun
from tests.torch.cifar_files import write

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")

DRAWN = ["times.law=linear", "times.unit=1e-3", "times.report=drawn"]
SAME = ("rounds", "loss", "worker_time", "tasks_started", "tasks_used", "evaluation", "finished")


def arguments(job: str, *settings: str) -> list[str]:
    return ["run", str(ROOT / "jobs" / job), "--json", *(word for s in settings for word in ("--set", s))]


def figures(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_network_gives_the_same_numbers_as_simulated(tmp_path: Path) -> None:
    changes = [f"problem.data={write(tmp_path)}", "problem.augment=true", "stop.rounds=6", *DRAWN]
    chosen = arguments("cifar100.toml", *changes, "method.update=plain", "method.step_size=0.05")
    real = figures(mpirun(4, COMMAND, *chosen, seconds=120))
    virtual = figures(finished([str(COMMAND), *chosen, "--virtual", "--workers", "3"], seconds=120))
    assert {key: real[key] for key in SAME} == {key: virtual[key] for key in SAME}
    assert set(real["evaluation"]) == {"accuracy"}


def test_a_converted_script_runs_on_ranks_that_the_command_starts() -> None:
    chosen = arguments("pytorch_script.toml", "stop.rounds=4", "run.evaluate_every=1")
    real = figures(finished([str(COMMAND), *chosen, "--workers", "2"], seconds=120))
    assert (real["rounds"], real["tasks_used"], real["workers"]) == (4, 32, 2)
    assert real["worker_time"] > 0
    assert 0 < real["clock"] < real["elapsed"]
    assert set(real["evaluation"]) == {"accuracy"}


def test_a_trainer_evaluates_on_its_workers_and_is_resumed(tmp_path: Path) -> None:
    script, out, best = ROOT / "jobs" / "pytorch_trainer.py", tmp_path / "run.h5", tmp_path / "best.pt"
    chosen: list[str | Path] = [sys.executable, script, "--out", out, "--best", best]
    first = mpirun(3, *chosen, "--rounds", "200", seconds=120)
    assert first.returncode == 0, first.stderr
    again = mpirun(3, *chosen, "--rounds", "400", seconds=120)
    assert again.returncode == 0, again.stderr
    lines = [*first.stdout.splitlines(), *again.stdout.splitlines()]
    assert [line.split(":")[0] for line in lines] == ["round 200", "round 400"]
    accuracies = [float(line.split()[-1]) for line in lines]
    assert min(accuracies) > 0.6  # chance is 1/3
    saved = h5py.File(out)["method/update.note.best"][()]
    assert round(float(saved), 3) == max(accuracies)
    assert "1.running_mean" in torch.load(best, weights_only=True)


def test_missing_files_are_reported_once_before_ranks_are_started(tmp_path: Path) -> None:
    done = finished([str(COMMAND), *arguments("cifar100.toml", f"problem.data={tmp_path}")], seconds=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "has no file 'train.bin'" in done.stderr


LOADING = """
import sys
import mpi_ata, torch
from tests.torch.datasets import Noisy

def share(outputs, targets):
    return targets.float().mean()

def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2000), torch.nn.Dropout(0.5), torch.nn.Linear(2000, 2))
    test, valid, other = Noisy(30), Noisy(20), Noisy(8)
    with mpi_ata.Trainer(
        model, torch.nn.CrossEntropyLoss(), Noisy(), 4, budget=4, rounds=6, shuffle="epoch", allocator="uta",
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3), test={"test": test, "valid": valid},
        metrics={"share": share}, evaluation_batch=4, num_workers=int(sys.argv[1]), wire="bfloat16",
        wire_x="bfloat16", times=mpi_ata.Constant(2) if sys.argv[2:] else None,
    ) as trainer:
        for round in trainer:
            pass
        found = trainer.evaluate(), trainer.evaluate(valid), trainer.evaluate(valid, share)
        print(trainer.x.tobytes().hex()[:64], float(trainer.x.sum()), *found)
        print(trainer.evaluate(other, share), trainer.evaluate(other, share))

if __name__ == "__main__":
    main()
"""


def test_loaders_bfloat16_and_evaluations_give_the_numbers_of_one_process(tmp_path: Path) -> None:
    """Ranks of one node share memory, so only the simulation shows what travels as bfloat16 is the same."""
    script = tmp_path / "train.py"
    script.write_text(LOADING)
    ranks = mpirun(3, sys.executable, script, "2", seconds=240)
    assert ranks.returncode == 0, ranks.stderr
    alone = finished([sys.executable, str(script), "0", "simulated"], seconds=120)
    assert alone.returncode == 0, alone.stderr
    assert ranks.stdout == alone.stdout
    assert ranks.stdout.splitlines()[1] == "0.5 0.5"
    assert ranks.stderr.count("so rank 0 evaluates alone; pass them to Trainer as test= and metrics=") == 1
    assert "evaluates alone" not in alone.stderr


TRAINED = """
import hashlib, sys
import mpi_ata, torch
from tests.torch.datasets import Noisy

way, kind, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
nn, schedules = torch.nn, torch.optim.lr_scheduler
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 1000), nn.BatchNorm1d(1000), nn.Dropout(0.5), nn.Linear(1000, 2))
model[1].num_batches_tracked += 20_000_001  # more than float32 can count
if kind == "adam":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"scheduler": schedules.CosineAnnealingLR(optimizer, 20), "clip": 0.5, "ema": 0.9}
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    options = {"scheduler": schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)}
with mpi_ata.Trainer(
    model, nn.CrossEntropyLoss(), Noisy(), 4, budget=2, rounds=rounds, shuffle="epoch", allocator="uta",
    optimizer=optimizer, test=Noisy(30), evaluation_batch=8,
    exchange="auto" if way == "simulated" else way,
    times=mpi_ata.Constant(3) if way == "simulated" else None, out=sys.argv[4], resume=True, **options,
) as trainer:
    for round in trainer:
        trainer.state["rounds"] = trainer.state.get("rounds", 0) + 1
        if round.number % 3 == 0:
            trainer.state["loss"] = trainer.evaluate()["loss"]
            print(round.number, round.logs["loss"], sorted(trainer.state.items()))
        if round.number == 7:
            trainer.update.optimizer.param_groups[0]["lr"] *= 0.75
    print(trainer.update.optimizer.param_groups[0]["lr"], trainer.evaluate(averaged=True))
    print(trainer.problem.state_dict(trainer.x)["1.num_batches_tracked"].item())
print(sorted(trainer.state.items()), trainer.logs, hashlib.sha256(trainer.x.tobytes()).hexdigest())
"""


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """Return what a training script prints; with a budget of 2, one of its 3 workers rests in each round."""
    script = tmp_path / "train.py"
    script.write_text(TRAINED)

    def run(way: str, kind: str, rounds: int, out: str) -> list[str]:
        words = [str(script), way, kind, str(rounds), str(tmp_path / out)]
        ranks = [] if way == "simulated" else [launch.find_mpirun(), "-n", "4"]
        done = finished([*ranks, sys.executable, *words], seconds=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return list(done.stdout.splitlines())

    return run


def test_ranks_train_a_model_bit_for_bit_as_one_process_does(trained: Any) -> None:
    """Batch norm, Adam, its schedule, clipping, a running mean, state and rate that the loop changes."""
    alone, chain = (trained(way, "adam", 10, f"{way}.h5") for way in ("simulated", "chain"))
    assert (len(alone), alone[4]) == (6, "20000011")
    assert chain == alone


def test_a_run_sees_evaluations_and_is_resumed_with_another_exchange_bit_for_bit(trained: Any) -> None:
    whole = trained("simulated", "momentum", 10, "whole.h5")
    first = trained("chain", "momentum", 5, "run.h5")
    then = trained("star", "momentum", 10, "run.h5")
    assert [*first[:1], *then] == whole
    assert float(whole[3].split()[0]) < 0.75e-2, "ReduceLROnPlateau has seen a loss that did not fall by 90 %"


UNSEEDED = """
import sys
import mpi_ata, numpy as np, torch
what, rank = sys.argv[1], mpi_ata.launch.rank()
frozen = torch.nn.Linear(3, 8 + (what == "sizes" and rank == 2)).requires_grad_(False)
model = torch.nn.Sequential(frozen, torch.nn.AdaptiveAvgPool1d(4), torch.nn.Linear(4, 1))
data = torch.utils.data.TensorDataset(torch.ones(24, 3), torch.zeros(24, 1))
sampler = np.random.default_rng().permutation(24).tolist() if what == "sampler" else None
with mpi_ata.Trainer(
    model, torch.nn.MSELoss(), data, 2, budget=3, rounds=3, sampler=sampler, test=data,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
) as trainer:
    for _ in trainer:
        pass
    print(trainer.evaluate()["loss"], trainer.problem.evaluate(trainer.x)["loss"])
"""


def unseeded(folder: Path, what: str) -> Any:
    script = folder / "train.py"
    script.write_text(UNSEEDED)
    return mpirun(3, sys.executable, script, what, seconds=120)


def test_workers_have_the_frozen_weights_of_rank_0(tmp_path: Path) -> None:
    done = unseeded(tmp_path, "frozen")
    assert done.returncode == 0, done.stderr
    by_workers, by_manager = done.stdout.split()
    assert by_workers == by_manager


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (
            "sampler",
            "rank 1: the samples of the first epoch are not those of rank 0; build dataset and sampler from",
        ),
        (
            "sizes",
            "rank 2: frozen weights, or other arrays beside x, are not those of rank 0: the next one has 108",
        ),
    ],
)
def test_ranks_that_built_something_else_are_rejected(tmp_path: Path, what: str, sentence: str) -> None:
    done = unseeded(tmp_path, what)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


UNGUARDED = """
import mpi_ata, torch
model = torch.nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.ones(20, 2), torch.ones(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
arguments = {"budget": 6, "optimizer": optimizer, "rounds": 10, "workers": 2, "num_workers": 1}
with mpi_ata.Trainer(model, torch.nn.MSELoss(), data, 2, **arguments) as trainer:
    for _ in trainer:
        pass
"""


@pytest.mark.slow
def test_a_script_that_loader_processes_cannot_import_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    done = finished([sys.executable, str(script)], seconds=240)
    assert done.returncode == 1
    assert "what starts the run must be under if __name__ == '__main__':" in done.stderr
    assert "Traceback" not in done.stderr


DEATH = """
import os
import mpi_ata, torch
model = torch.nn.Linear(2, 1)
calls = []
def loss(found, wanted):
    calls.append(1)
    if len(calls) == 5 and os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "2":
        os._exit(9)
    return torch.nn.functional.mse_loss(found, wanted)
data = torch.utils.data.TensorDataset(torch.ones(20, 2), torch.ones(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with mpi_ata.Trainer(model, loss, data, 2, budget=6, optimizer=optimizer, rounds=10, workers=2) as trainer:
    for _ in trainer:
        pass
print("finished", flush=True)
"""


def test_a_trainer_that_outlives_a_worker_exits_with_0(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DEATH)
    done = finished([sys.executable, str(script)], seconds=120)
    assert (done.returncode == 0) == ("finished" in done.stdout), done.stderr


def printed_accuracies(done: Any) -> list[float]:
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2", "epoch 3"]
    return [float(line.split()[-1]) for line in lines]


def test_a_real_script_learns_the_same_with_ddp_and_after_its_port(tmp_path: Path) -> None:
    data = os.environ.get("MPI_ATA_CIFAR") or write(tmp_path, 640, 640)
    chosen = [str(data), "--images", "640", "--epochs", "3", "--batch", "16", "--best"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script, best = ROOT / "jobs", tmp_path / "best.pt"
    before = finished([*torchrun, str(script / "cifar_ddp.py"), *chosen, str(tmp_path / "ddp.pt")], 300)
    after = mpirun(
        3, sys.executable, script / "cifar_trainer.py", *chosen, best, "--budget", "2", seconds=300
    )
    # Chance is 0.01, and 60 steps give 0.04 to 0.07 on real images.
    assert min(max(printed_accuracies(before)), max(printed_accuracies(after))) > 0.025
    ours, theirs = torch.load(best, weights_only=True), torch.load(tmp_path / "ddp.pt", weights_only=True)
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.items()
    }
