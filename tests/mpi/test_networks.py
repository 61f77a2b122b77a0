"""Networks on real ranks: the same numbers as simulated, and errors that end all ranks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

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
