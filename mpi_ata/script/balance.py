"""DDP with unequal shares: the micro-batches of a step, divided among the ranks by their speed."""

import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.errors import RunError, UsageError
from mpi_ata.methods import Round
from mpi_ata.script.allocator import DEFAULT, AnyAllocator, build_allocator
from mpi_ata.script.arguments import check_arguments, suggests_names
from mpi_ata.script.balance_run import BalancedRun, identities, open_run, own_identity
from mpi_ata.script.description import run_table
from mpi_ata.script.ending import report_errors_in_one_sentence
from mpi_ata.script.record import output_options
from mpi_ata.script.words import in_python
from mpi_ata.torch.local_backward import LocalBackward
from mpi_ata.torch.micro_batches import LoaderDraws, SharedDraws
from mpi_ata.torch.model_mean import ModelMean, trained
from mpi_ata.torch.rank_group import RankGroup
from mpi_ata.torch.share import Share, ShareReport, reports

LOADERS = 8  # that are remembered, so that each continues where it was; older ones are closed


class Balance:
    """Divides the `budget` micro-batches of each optimizer step among the ranks of torch.distributed.

    Every rank makes the same calls: `for micro in balance.micro_batches(loader): ...backward()`, and then
    `balance.step(model, optimizer)`.  The gradient of a step is the mean over its micro-batches.  A rank may
    get none of them.  DDP modules exchange neither gradients nor buffers in passes over micro-batches.

    With `shuffle` = "epoch" each sample of the loader's dataset is used once per epoch, whichever rank draws
    it; the loader's own sampler is not used then.  `allocator`, `out`, `resume`, `warm_start`
    and so on are those of `minimize`: the run file has speeds and progress; weights are yours to save.
    """

    @suggests_names
    def __init__(
        self,
        budget: int,
        *,
        allocator: AnyAllocator | None = None,
        shuffle: str = "loader",
        seed: int = 0,
        out: str | Path | None = None,
        resume: bool = False,
        warm_start: str | Path | Sequence[str | Path] = (),
        prior_weight: float = 1.0,
        any_problem: bool = False,
        accept_changes: bool = False,
        checkpoint_rounds: int | None = None,
        checkpoint_seconds: float | None = None,
    ) -> None:
        report_errors_in_one_sentence()
        check_arguments(budget=budget, seed=seed, out=out, warm_start=warm_start, prior_weight=prior_weight)
        if budget < 1:
            raise UsageError(f"{budget=} must be at least 1: the micro-batches of all ranks in one step")
        if shuffle not in ("loader", "epoch"):
            raise UsageError(f"{shuffle=} must be 'loader' or 'epoch'")
        self._group = group = RankGroup()
        self.rank, self.n, self.budget = group.rank, group.n, budget
        self._shared, self._seed = shuffle == "epoch", seed
        settings = f"budget={budget}, shuffle={shuffle!r}, seed={seed}"
        ranks = identities(group.gather_texts(own_identity(settings)))
        self._run: BalancedRun | None = None

        def opened() -> IntArray:
            earlier = output_options(out, resume, warm_start, prior_weight, any_problem, accept_changes)
            table = run_table(group.n, 1, checkpoint_rounds, checkpoint_seconds, 0.0, seed=seed)
            built = build_allocator(allocator, group.n, budget, seed)
            name = (allocator or DEFAULT) if isinstance(allocator, str | None) else ""
            self._run = open_run(built, name, ranks, table, earlier)
            return np.array([self._run.rounds.k])

        with in_python():
            self.rounds = int(group.from_rank_0(opened, 1)[0])
        if self._run is not None:
            weakref.finalize(self, self._run.close)
        self._draws: deque[LoaderDraws | SharedDraws] = deque()
        self._local = LocalBackward()
        self._mean: ModelMean | None = None
        self._share: Share | None = None

    def micro_batches(self, loader: Any) -> Iterator[Any]:
        """Yield this rank's micro-batches of the next step, drawn from its own loader, again and again."""
        if self._share is not None:
            raise UsageError("micro_batches() was called twice for one step; call step() after each")
        quota = self._group.from_rank_0(self._run.decide if self._run else _nothing, self.n)
        self._share = share = Share(quota, self.rank, cold=not self._local.called)
        first = self.rounds * self.budget + share.before
        return self._isolated(share.timed(self._draws_of(loader).take(first, share.count)))

    def _isolated(self, batches: Iterator[Any]) -> Iterator[Any]:
        with self._local.active():
            yield from batches

    def _draws_of(self, loader: Any) -> LoaderDraws | SharedDraws:
        for known in self._draws:
            if known.loader is loader:
                return known
        new = SharedDraws(loader, self._seed) if self._shared else LoaderDraws(loader, self.rounds)
        self._draws.append(new)
        if len(self._draws) > LOADERS:
            self._draws.popleft().close()
        return new

    def log(self, loss: Any) -> None:
        """Note the loss of a micro-batch; the mean over all ranks is in logs["loss"] of the step's Round."""
        self._present_share().log(loss)

    def _present_share(self) -> Share:
        if self._share is None:
            raise UsageError("there are no micro-batches yet; call micro_batches(loader) before each step()")
        return self._share

    def step(self, model: Any, optimizer: Any, weight: float | None = None) -> Round:
        """Average the gradients over all ranks, let the optimizer make a step, and clear the gradients."""
        round = self.reduce(model, weight)
        optimizer.step()
        optimizer.zero_grad()
        return round

    def reduce(self, model: Any, weight: float | None = None) -> Round:
        """Make the gradients of a model their mean over the micro-batches of all ranks.

        Where losses are sums, `weight` is over how many things this rank has summed: the gradient becomes the
        sum over all ranks divided by the sum of the weights.
        """
        share, parameters = self._present_share(), trained(model)
        own = [parameter.grad is not None for parameter in parameters]
        report = share.report(weight, unused=not all(own))
        shares = reports(self._group.gather(report.row(), share.width))
        self._share = None
        total = _total_weight(shares, share.quota)
        round = self._completed(share, shares)
        mean = self._mean_of(model, parameters)
        running = mean.start(report.weight, total)
        if self._run is not None:
            self._run.learn(round, shares)
        anywhere = self._group.any_of(own) if any(each.unused for each in shares) else [True] * len(own)
        mean.finish(running, anywhere)
        self._local.note(model, called=report.done > 0)
        return round

    def _completed(self, share: Share, shares: Sequence[ShareReport]) -> Round:
        self.rounds += 1
        nothing = np.zeros(self.n, np.int64)
        used = np.array([each.done for each in shares])
        losses = sum(each.losses for each in shares)
        logs = {"loss": sum(each.loss for each in shares) / losses} if losses else {}
        duration = time.perf_counter() - share.began
        return Round(self.rounds, share.quota, used, nothing, nothing, 0.0, duration, logs=logs)

    def _mean_of(self, model: Any, parameters: Sequence[Any]) -> ModelMean:
        """Return what averages a model; it is made anew where other parameters are trained than before."""
        if self._mean is None or not self._mean.fits(model, parameters):
            self._mean = ModelMean(model)
        return self._mean

    def close(self) -> None:
        """Save the run for the last time; otherwise that is done when the script ends."""
        if self._run is not None:
            self._run.close()

    def __enter__(self) -> "Balance":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nothing() -> IntArray:
    """Return no counts: only rank 0 decides."""
    return np.zeros(0, np.int64)


def _total_weight(shares: Sequence[ShareReport], quota: IntArray) -> float:
    """Return the sum of the weights; reject shares that were not done, and weights that cannot be summed."""
    for rank, (share, count) in enumerate(zip(shares, quota.tolist(), strict=True)):
        if share.done != count:
            raise UsageError(
                f"rank {rank} has done {share.done} of its {count} micro-batches; do not leave the loop over "
                "micro_batches() early"
            )
    total = sum(share.weight for share in shares)
    if not 0 < total < np.inf:
        raise RunError(f"the weights of all ranks have the sum {total}; it must be above 0 and finite")
    return total
