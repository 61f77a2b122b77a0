"""The ranks of test_trainers.py: a trainer of others, with its own DDP and balanced, on tiny models.

python -m tests.torch.trainer_ranks TRAINER FOLDER first|resumed, with the variables of torchrun.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import BoolArray, IntArray

RANK = int(os.environ["RANK"])
EPOCHS, ACCUMULATED, KILLED = 2, 3, 7  # the step after which both ranks are killed
# 4 steps per epoch on 2 ranks; Lightning divides those that are short by what full ones have.
SAMPLES, BATCH = {"transformers": 44, "lightning": 48}, 2
SECONDS = 0.02  # of a forward pass on rank 0; on rank 1 it takes 3 times as long
Losses = list[float]


def sentences() -> list[list[int]]:
    """Return sequences of 3 to 12 tokens."""
    noise = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 13, (SAMPLES[sys.argv[1]],), generator=noise).tolist()
    return [torch.randint(1, 30, (length,), generator=noise).tolist() for length in lengths]


def padded(samples: list[Any]) -> dict[str, Any]:
    """Return a batch, whose labels ignore what is added to make sequences equally long."""
    longest = max(map(len, samples))
    ids = torch.tensor([each + [0] * (longest - len(each)) for each in samples])
    return {"input_ids": ids, "labels": torch.where(ids == 0, -100, ids)}


def slow_down(module: Any, *_: Any) -> None:
    if module.training:
        time.sleep(SECONDS * (3 if RANK == 1 else 1))


class Idle(NonAdaptive):
    """Quotas with which the slow rank does nothing in every other step."""

    def __init__(self, n: int) -> None:
        self.n, self.budget, self._k = n, 2 * ACCUMULATED, 0

    def allocate(self, available: BoolArray) -> IntArray:
        self._k += 1
        return np.array([6, 0] if self._k % 2 else [4, 2])


def options_in(folder: Path, name: str) -> dict[str, Any]:
    """Return the arguments of Balance in this folder."""
    return {"allocator": Idle} if folder.name == "idle" else {"out": folder / f"{name}.h5", "resume": True}


def with_transformers(folder: Path, balanced: bool, end: Callable[[int], None], resume: bool) -> Losses:
    import transformers

    from mpi_ata.torch.transformers import BalanceMixin

    class Ended(transformers.TrainerCallback):  # type: ignore[misc]
        """Calls `end` after each step, when a checkpoint of it may have been written."""

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            torch.distributed.barrier()
            end(state.global_step)

    class Balanced(BalanceMixin, transformers.Trainer):  # type: ignore[misc]
        balance_options = options_in(folder, "transformers")

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / f"transformers-{balanced}"),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        num_train_epochs=EPOCHS,
        logging_steps=1,
        save_steps=1,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    transformers.set_seed(1)
    model = transformers.LlamaForCausalLM(config)
    model.register_forward_pre_hook(slow_down)
    kind = Balanced if balanced else transformers.Trainer
    trainer = kind(model, arguments, padded, sentences(), callbacks=[Ended()])
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def with_lightning(folder: Path, balanced: bool, end: Callable[[int], None], resume: bool) -> Losses:
    import lightning.pytorch as pl

    from mpi_ata.torch.lightning import BalancedDDP

    class Module(pl.LightningModule):  # type: ignore[misc]
        """Predicts the next token; its losses are means over the tokens of a batch."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.net = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32))

        def training_step(self, batch: Any, index: int) -> Any:
            slow_down(self)
            logits, labels = self.net(batch["input_ids"][:, :-1]), batch["labels"][:, 1:]
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 32), labels.reshape(-1))
            self.log("train/loss", loss, sync_dist=True, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("tokens", float((batch["labels"] > 0).sum()), sync_dist=True, reduce_fx="sum")

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    class Noted(pl.Callback):  # type: ignore[misc]
        """Notes the loss of each batch of the Trainer's."""

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            losses.append(float(trainer.callback_metrics["train/loss_step"]))
            end(trainer.global_step)

    losses: Losses = []
    given: dict[str, Any] = {"strategy": BalancedDDP(ACCUMULATED * 2, options_in(folder, "lightning"))}
    if not balanced:
        given = {"strategy": "ddp", "accumulate_grad_batches": ACCUMULATED}
    pl.seed_everything(3, verbose=False)
    where = folder / f"lightning-{balanced}"
    saving = pl.callbacks.ModelCheckpoint(where, "last", every_n_train_steps=1, enable_version_counter=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        callbacks=[saving, Noted()],
        **given,
    )
    module = Module()
    data = DataLoader(sentences(), BATCH, shuffle=True, collate_fn=padded)
    test = DataLoader(sentences(), BATCH, collate_fn=padded)
    trainer.fit(module, data, test, ckpt_path=str(where / "last.ckpt") if resume else None)
    assert trainer.callback_metrics["tokens"] == sum(map(len, sentences()))
    size = 1 if balanced else ACCUMULATED
    steps = [sum(losses[i : i + size]) / size for i in range(0, len(losses), size)]
    return [*steps, float(trainer.callback_metrics["train/loss_epoch"])]


def main() -> None:
    """Train twice, and be killed in a third training; or resume it."""
    name, folder, way = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    train = {"transformers": with_transformers, "lightning": with_lightning}[name]
    found: dict[str, Losses] = {}

    def write() -> None:
        (folder / f"{name}-{way}-{RANK}.json").write_text(json.dumps(found))

    def never(step: int) -> None:
        pass

    def die(step: int) -> None:
        if step == KILLED:
            os._exit(9)

    if way == "resumed":
        found["resumed"] = train(folder, True, never, True)
        write()
        return
    found["plain"] = train(folder, False, never, False)
    found["balanced"] = train(folder / "whole", True, never, False)
    found["idle"] = train(folder / "idle", True, never, False)
    write()
    train(folder, True, die, False)


if __name__ == "__main__":
    main()
