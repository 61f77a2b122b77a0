"""Lightning's DDP with unequal shares: the micro-batches of a step, divided among ranks by speed."""

import json
from typing import Any

from lightning.pytorch.strategies import DDPStrategy

from mpi_ata.errors import UsageError
from mpi_ata.script.balance import Balance
from mpi_ata.torch.ddp import EpochSteps
from mpi_ata.torch.devices import import_torch

STATE = "balance"  # in a checkpoint
LOSS = "loss"


def _ignore(state: Any) -> None:
    pass


class BalancedDDP(DDPStrategy):  # type: ignore[misc]
    """Makes ranks share the micro-batches of an optimizer step: `Trainer(strategy=BalancedDDP(budget=8))`.

    `budget` is the number of micro-batches of all ranks in a step; they are those of DDP.  A batch of the
    Trainer, as in limit_train_batches, is one such step, and hooks for batches get an empty one.  `balance`
    are other arguments of Balance, such as out and warm_start; all others are those of DDPStrategy.
    """

    def __init__(self, budget: int, balance: dict[str, Any] | None = None, **ddp: Any) -> None:
        super().__init__(**ddp)
        self._budget, self._options = budget, balance or {}
        self.balance: Any = None  # a Balance, while it trains
        self._saved: Any = None  # what a checkpoint has of Balance
        self._gradients: list[Any] = []

    def setup(self, trainer: Any) -> None:
        """Check what the Trainer is to do."""
        if trainer.accumulate_grad_batches != 1:
            raise UsageError("accumulate_grad_batches is not for BalancedDDP; use a larger budget instead")
        if not trainer.lightning_module.automatic_optimization:
            raise UsageError(
                "BalancedDDP needs automatic optimization; use mpi_ata.Balance in a loop instead"
            )
        super().setup(trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Replace the loader for training by one with one empty entry per optimizer step."""
        dataloader = super().process_dataloader(dataloader)
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self.balance is None:
            self.balance = Balance(self._budget, shuffle="epoch", **self._options)
            if self._saved is not None:
                self.balance.load_state_dict(self._saved)
        self._steps = EpochSteps(dataloader, self.balance.n, self._budget)
        placeholder = self._steps.placeholder
        placeholder.state_dict, placeholder.load_state_dict = dict, _ignore  # it can be resumed anywhere
        return placeholder

    def training_step(self, batch: Any, *others: Any) -> Any:
        """Do this rank's micro-batches of a step, and return the mean loss over those of all ranks."""
        module, model = self.lightning_module, self.model
        if batch:
            raise UsageError("BalancedDDP needs one loader for training; combine several in one dataset")
        for parameter in module.parameters():
            parameter.grad = None
        places = self._steps.places(module.trainer.current_epoch, module.trainer.fit_loop.batch_idx)
        module.log = self._collect
        try:
            for micro_batch in self.balance.micro_batches(self._steps.source, places):
                loss = self._loss(micro_batch, *others)
                self.balance.log(loss)
                super().backward(loss, self.optimizers[0])
        finally:
            del module.log
        logs = dict(self.balance.reduce(model).logs)
        # Lightning clears gradients between this and backward(), where they are put back.
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        for parameter in module.parameters():
            parameter.grad = None
        loss = logs.pop(LOSS)
        for name, value in logs.items():
            name, given = json.loads(name)
            module.log(name, value, batch_size=1, **given)
        return import_torch().tensor(loss, device=self.root_device)

    def _loss(self, micro_batch: Any, *others: Any) -> Any:
        """Return the loss of a micro-batch, after all that Lightning does to batches."""
        module = self.lightning_module
        micro_batch = self.precision_plugin.convert_input(micro_batch)
        micro_batch = module._on_before_batch_transfer(micro_batch, dataloader_idx=0)
        output = super().training_step(self.batch_to_device(micro_batch, dataloader_idx=0), *others)
        return output[LOSS] if isinstance(output, dict) else output

    def _collect(self, name: str, value: Any, **given: Any) -> None:
        """Take what training_step() logs for one micro-batch: ranks log different numbers of times."""
        if hasattr(value, "compute"):  # a metric of torchmetrics, which adds up its own
            del self.lightning_module.log
            self.lightning_module.log(name, value, **given)
            self.lightning_module.log = self._collect
            return
        if given.pop("reduce_fx", "mean") != "mean":
            raise UsageError(f"self.log({name!r}, reduce_fx=...) must be 'mean' with BalancedDDP")
        for unused in ("sync_dist_group", "enable_graph", "rank_zero_only"):
            given.pop(unused, None)  # all ranks log the mean over all
        weight = given.pop("batch_size", None) or 1
        self.balance.log(weight=weight, **{json.dumps([name, given]): value})

    def backward(self, closure_loss: Any, optimizer: Any, *others: Any, **given: Any) -> Any:
        """Put back the gradients of the step."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return closure_loss

    def teardown(self) -> None:
        """Save the run file, if there is one."""
        if self.balance is not None:
            self.balance.close()
        super().teardown()

    def save_checkpoint(self, checkpoint: dict[str, Any], *others: Any, **given: Any) -> None:
        """Save the state of Balance in each checkpoint."""
        if self.balance is not None:
            checkpoint[STATE] = self.balance.state_dict()
        super().save_checkpoint(checkpoint, *others, **given)

    def load_checkpoint(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Return a checkpoint, and remember what it has of Balance."""
        checkpoint: dict[str, Any] = super().load_checkpoint(*given, **named)
        self._saved = checkpoint.get(STATE)
        return checkpoint
