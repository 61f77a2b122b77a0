"""Trainers of others on two ranks, one of them slow: the losses of their own DDP, killed and resumed too."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpi_ata
from tests.torch.scene import torch

ROOT = Path(__file__).parent.parent.parent
NEEDED = {"transformers": ["transformers", "accelerate"], "lightning": ["lightning"]}


def run_ranks(*arguments: str) -> list[int]:
    """Run two ranks as torchrun does, and return their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    common = os.environ | group | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.trainer_ranks", *arguments]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=common | {"RANK": rank, "LOCAL_RANK": rank}) for rank in "01"
    ]
    try:
        return [rank.wait(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(scope="module", params=NEEDED)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the losses of each way to train, by what both ranks report."""
    name: str = request.param
    for library in NEEDED[name]:
        pytest.importorskip(library, reason=f"{library} is not installed: `make torch`")
    folder = tmp_path_factory.mktemp(name)
    (folder / "whole").mkdir()
    assert run_ranks(name, str(folder), "first") == [9, 9], "both are killed in the end"
    assert run_ranks(name, str(folder), "resumed") == [0, 0]
    found: dict[str, Any] = {"name": name, "folder": folder}
    for way in ("first", "resumed"):
        own, other = (json.loads((folder / f"{name}-{way}-{rank}.json").read_text()) for rank in (0, 1))
        assert own == other
        found |= own
    return found


def test_losses_are_those_of_the_trainers_own_ddp(found: dict[str, Any]) -> None:
    """Per-token means with variable lengths, whichever rank has which micro-batches, or none of a step."""
    assert len(found["plain"]) >= 8
    assert found["balanced"] == pytest.approx(found["plain"], rel=1e-6)
    assert found["idle"] == pytest.approx(found["plain"], rel=1e-6)


def test_the_slow_rank_does_fewer_micro_batches(found: dict[str, Any]) -> None:
    run = mpi_ata.load(found["folder"] / "whole" / f"{found['name']}.h5")
    fast, slow = (worker["tasks"] for worker in run.workers)
    assert fast > 1.3 * slow


def test_a_killed_training_resumes_from_the_trainers_own_checkpoint(found: dict[str, Any]) -> None:
    """In the middle of an epoch."""
    steps, resumed = found["balanced"][:8], found["resumed"]
    own = resumed if found["name"] == "transformers" else resumed[:-1]  # the last is the mean of an epoch
    assert 2 <= len(own) <= 8
    assert own == pytest.approx(steps[-len(own) :], rel=1e-6)


def test_a_script_with_accelerate_resumes_from_its_own_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: `make torch`")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes=2"]
    launcher += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def last_loss(steps: int, folder: str) -> float:
        script = [str(ROOT / "jobs" / "accelerate_ddp.py"), f"--steps={steps}", f"--checkpoint={folder}"]
        command = [*launcher, *script]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout.split()[-1])

    whole = last_loss(6, "whole")
    assert last_loss(3, "parts") > whole
    assert last_loss(6, "parts") == pytest.approx(whole, rel=1e-4)


def test_sharded_models_are_rejected_in_one_sentence(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from mpi_ata.torch.transformers import BalanceMixin

    class Sharded(transformers.Trainer):  # type: ignore[misc]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_fsdp_enabled = True

    kind = type("Balanced", (BalanceMixin, Sharded), {})
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(mpi_ata.UsageError, match=r"^FSDP adds up gradients inside backward.*use DDP$"):
        kind(torch.nn.Linear(1, 1), arguments)
