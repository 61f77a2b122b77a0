"""Hugging Face's Trainer with unequal shares: the micro-batches of a step, divided among ranks by speed."""

import copy
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.script.balance import Balance
from mpi_ata.torch.ddp import SHARDED, EpochSteps
from mpi_ata.torch.devices import import_torch

SPEEDS = "balance.pt"  # in the folder of a checkpoint
TOKENS = 1024.0  # by which sums of losses are divided: as large as means, they do not overflow in float16
Trainer: Any = object  # what stands behind the mixin in a class


class BalanceMixin(Trainer):  # type: ignore[misc]
    """Makes ranks share the micro-batches of an optimizer step: `class T(BalanceMixin, Trainer)`.

    All arguments keep their meaning: a step has gradient_accumulation_steps micro-batches per rank, on
    average, those of plain DDP.  `balance_options` are arguments of Balance, such as out and warm_start.
    """

    args: Any
    balance_options: dict[str, Any] = {}  # noqa: RUF012  (an attribute of the user's class)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise UsageError(f"{'FSDP' if self.is_fsdp_enabled else 'DeepSpeed'} {SHARDED}")
        if self.args.n_gpu > 1:
            raise UsageError("one process has several GPUs; start one per GPU with torchrun to balance them")
        if str(self.args.include_num_input_tokens_seen).lower() not in ("no", "false"):
            raise UsageError("include_num_input_tokens_seen supposes equal shares; leave it out")
        self._accumulated = self.args.gradient_accumulation_steps
        self.args = copy.copy(self.args)
        self.args.gradient_accumulation_steps = 1
        self.args.average_tokens_across_devices = False  # weights do that
        self.balance: Any = None  # a Balance, from the first training on

    def get_train_dataloader(self) -> Any:
        """Return a loader with one empty entry per optimizer step; micro-batches are drawn by Balance."""
        if self.balance is None:
            budget, given = self._accumulated * self.args.world_size, {"seed": self.args.seed}
            self.balance = Balance(budget, shuffle="epoch", **given | self.balance_options)
        self._steps = EpochSteps(super().get_train_dataloader(), self.balance.n, self.balance.budget)
        return self._steps.placeholder

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the samples per optimizer step."""
        return int(super().get_total_train_batch_size(args) * self._accumulated)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do this rank's micro-batches of a step, and return the mean loss over those of all ranks."""
        balance, weight, tensor = self.balance, 0.0, import_torch().tensor
        places = self._steps.places(*divmod(self.state.global_step, self._steps.steps))
        # Ranks call compute_loss() different numbers of times: what it gathers stays on its rank.
        self.accelerator.gather = self.accelerator.gather_for_metrics = lambda values, *_, **__: values
        try:
            for micro_batch in balance.micro_batches(self._steps.source, places):
                items = self._get_num_items_in_batch([micro_batch], self.args.device)
                own = 1.0 if items is None else float(items) / TOKENS
                sums = None if items is None else tensor(TOKENS, device=self.args.device)
                self.current_flos += float(self.floating_point_ops(micro_batch))
                loss = super().training_step(model, micro_batch, sums)
                if own:
                    balance.log(loss / own, weight=own)
                weight += own
        finally:
            del self.accelerator.gather, self.accelerator.gather_for_metrics
        return tensor(balance.reduce(model, weight).logs["loss"], device=self.args.device)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.balance.rank == 0:
            import_torch().save(self.balance.state_dict(), Path(output_dir) / SPEEDS)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (saved := Path(checkpoint) / SPEEDS).is_file():
            self.balance.load_state_dict(import_torch().load(saved, weights_only=True))
