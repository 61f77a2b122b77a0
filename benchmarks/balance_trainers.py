"""Samples per second of trainers with an equal split, with the best one by hand, and balanced.

python -m benchmarks.balance --trainers [--rounds 40] [--json]

Two ranks over gloo, 8 micro-batches of 2 samples per step; a micro-batch sleeps for 20 ms, on the last rank
for three times as long. The equal split is the trainer's own DDP. Trainers have no other split: there, the
best one by hand is that of fixed quotas in the same adapter. Balance is told nothing. All steps but the first
count.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

import mpi_ata
from benchmarks import measuring
from benchmarks.measuring import ROOT
from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import BoolArray, IntArray
from mpi_ata.view.text import table

BATCH, ACCUMULATED, BEST = 2, 4, (6, 2)
SECONDS = 0.02, 0.06  # of a micro-batch on each rank
CONTENDERS = ("equal split", "best split", "balanced")


class ByHand(NonAdaptive):
    """The best quotas, always."""

    def __init__(self, n: int) -> None:
        self.n, self.budget = n, sum(BEST)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next step."""
        return np.array(BEST)


class Run:
    """One contender on one rank: how long its micro-batches take, and when its steps end."""

    def __init__(self, contender: str, rounds: int) -> None:
        self.contender, self.rounds, self.rank = contender, rounds, int(os.environ["RANK"])
        self.balanced, self._seconds = contender != "equal split", SECONDS[self.rank]
        self.options: dict[str, Any] = {"allocator": ByHand} if contender == "best split" else {}
        self._step, self._ends = 0, list[float]()
        self.samples = BATCH * sum(BEST) * rounds

    def sleep(self, *_: Any) -> None:
        """Make a micro-batch as slow as its rank is."""
        time.sleep(self._seconds)

    def ended(self, step: int) -> None:
        """Note that as many steps are done."""
        if step > self._step:
            self._step = step
            self._ends.append(time.perf_counter())

    def rate(self) -> float:
        """Return samples per second."""
        return BATCH * sum(BEST) * (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])


def own_loop(run: Run) -> None:
    """Train with DDP, or with Balance."""
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    model.register_forward_pre_hook(run.sleep)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(run.samples, 32)), BATCH)
    if run.contender == "balanced":
        balance = mpi_ata.Balance(sum(BEST), shuffle="epoch")
        for step in range(run.rounds):
            for (batch,) in balance.micro_batches(loader):
                model(batch).square().mean().backward()
            balance.step(model, optimizer)
            run.ended(step + 1)
        return
    own, batches = (ACCUMULATED, BEST[run.rank])[run.balanced], iter(loader)
    for step in range(run.rounds):
        for j in range(own):
            with model.no_sync() if j < own - 1 else nullcontext():
                model(next(batches)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.ended(step + 1)


def transformers(run: Run) -> None:
    """Train a tiny language model with Hugging Face's Trainer."""
    import transformers as hf

    from mpi_ata.torch.transformers import BalanceMixin

    class Ends(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.ended(state.global_step)

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=32, **sizes))
    model.register_forward_pre_hook(run.sleep)
    arguments = hf.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=run.rounds,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    kinds = (BalanceMixin, hf.Trainer) if run.balanced else (hf.Trainer,)
    kind: Any = type("Kind", kinds, {"balance_options": run.options})
    data = [{"input_ids": [1 + i % 30] * 8, "labels": [1 + i % 30] * 8} for i in range(run.samples)]
    kind(model, arguments, train_dataset=data, callbacks=[Ends()]).train()


def lightning(run: Run) -> None:
    """Train a tiny LightningModule."""
    import lightning.pytorch as pl
    import torch

    from mpi_ata.torch.lightning import BalancedDDP

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(32, 32)

        def training_step(self, batch: Any) -> Any:
            run.sleep()
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    class Ends(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            run.ended(trainer.global_step)

    kinds: dict[str, Any] = {"strategy": "ddp", "accumulate_grad_batches": ACCUMULATED}
    if run.balanced:
        kinds = {"strategy": BalancedDDP(sum(BEST), run.options)}
    names = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    quiet = dict.fromkeys(names, False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_steps=run.rounds, callbacks=[Ends()], **quiet, **kinds
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(run.samples, 32), BATCH, shuffle=True))


TRAINERS = {"own loop": own_loop, "Hugging Face": transformers, "Lightning": lightning}


def main() -> None:
    """Measure all contenders of one trainer, as one of its ranks."""
    import torch

    options = measuring.options(__doc__, trainer="own loop", rounds=40)

    torch.distributed.init_process_group("gloo")
    found = {}
    for contender in CONTENDERS:
        run = Run(contender, options.rounds)
        TRAINERS[options.trainer](run)
        found[contender] = run.rate()
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)


def measure(name: str, rounds: int) -> dict[str, float]:
    """Start the ranks of one trainer, and return the samples per second of its contenders."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.balance_trainers", f"--trainer={name}"]
    command.append(f"--rounds={rounds}")
    kinds: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": r, "LOCAL_RANK": r}, **kinds)
        for r in "01"
    ]
    printed = [process.communicate(timeout=600)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank has failed; see above")
    found: dict[str, float] = json.loads(printed[0].splitlines()[-1])
    return found


def compare_trainers(rounds: int, as_json: bool) -> str:
    """Return one row per trainer."""
    rows = {name: measure(name, rounds) for name in TRAINERS}
    if as_json:
        return json.dumps(rows)
    cells = []
    for name, rates in rows.items():
        equal, best, balanced = (rates[each] for each in CONTENDERS)
        ratios = balanced / equal, balanced / best
        cells.append([name, *(f"{each:.0f}" for each in rates.values()), *(f"{each:.2f}" for each in ratios)])
    return table(cells, ["samples/s", *CONTENDERS, "/ equal", "/ best"])


if __name__ == "__main__":
    main()
