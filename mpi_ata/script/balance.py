"""DDP with unequal shares: the micro-batches of a step, divided among the ranks by their speed."""

import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import IntArray, State, entry, total
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.identity import hardware
from mpi_ata.clusters.sample_indices import SampleIndices
from mpi_ata.driver.drive import BY_CALLER
from mpi_ata.driver.evaluation import Evaluation
from mpi_ata.driver.execute import log_notes
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.schema import RunDescription, RunTable, Stop
from mpi_ata.launch import allocated_cores, host_name
from mpi_ata.methods import Round
from mpi_ata.script.entry import check_arguments, entry_point
from mpi_ata.script.minimize import DEFAULT_ALLOCATOR, AnyAllocator, build_allocator
from mpi_ata.script.resume import TITLE, Recording, describe_run, plan_script
from mpi_ata.torch.ddp import (
    LoaderDraws,
    LocalBackward,
    ModelMean,
    RankGroup,
    Share,
    SharedDraws,
    ShareReport,
    reports,
    trained,
)


class BalancedRanks(Ledger):
    """The ranks of a DDP script, all of which are workers, and the accounts of their micro-batches."""

    draws: SampleIndices | None = None

    def __init__(self, identities: Sequence[WorkerIdentity]) -> None:
        super().__init__(len(identities))
        self.n, self.identities = len(identities), tuple(identities)
        self.ledger: Ledger = self


class BalancedRun:
    """Decides the quotas of rounds, learns from their times, and records them; weights are not its own."""

    def __init__(
        self,
        chosen: AnyAllocator | None,
        budget: int,
        seed: int,
        identities: Sequence[WorkerIdentity],
        recording: Recording,
    ) -> None:
        n = len(identities)
        self.allocator: Allocator = build_allocator(chosen, n, budget, seed)
        self.x, self.k, self._trace = np.zeros(0), 0, Trace()
        self._ranks, self._trace.cores = BalancedRanks(identities), allocated_cores() or n
        self._between = True  # two rounds, so that the state is that of the latest one
        table = recording.run_table(workers=n, seed=seed, evaluate_every=1, grace=0.0)
        start = plan_script(self._described(chosen, table), recording.output())
        log_notes(start)
        notes = begin(start, self, self._ranks, self._trace)
        if not self._trace.rows:
            self._trace.record()
        self._recorder: RunRecorder | None = None
        if start.file is not None:
            self._recorder = RunRecorder(start, start.file, self, self._ranks, self._trace)
            self._recorder.begin(notes)

    def _described(self, chosen: AnyAllocator | None, table: RunTable) -> RunDescription:
        found = describe_run(self, None, Stop(), table)
        tables = found.tables | {"method": {"class": "Balance"}}
        if isinstance(chosen, str | None):
            tables["allocator"] = {"name": chosen or DEFAULT_ALLOCATOR, "budget": self.allocator.budget}
        return RunDescription.of_tables(tables, found.files, TITLE)

    def state(self) -> State:
        """Return the number of rounds."""
        return {"x": self.x, "k": np.array(self.k)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self.k = int(entry(state, "k", self.k))

    def decide(self) -> IntArray:
        """Return the quotas of the next round."""
        self._between = False
        n, B = self._ranks.n, self.allocator.budget
        quota = np.asarray(self.allocator.allocate(np.ones(n, np.bool_)))
        if quota.shape != (n,) or quota.dtype.kind not in "iu" or quota.min() < 0 or total(quota) != B:
            raise RunError(
                f"the allocator gave {quota}; Balance stops no micro-batch that was begun, so it needs {n} "
                f"counts whose sum is {B}; use another allocator, such as ata-auto"
            )
        return quota.astype(np.int64)

    def learn(self, round: Round, shares: Sequence[ShareReport]) -> None:
        """Take in a round, and save the run if it is time."""
        for worker, share in enumerate(shares):
            if share.done:
                self._ranks.ledger.deliver(worker, share.seconds, sum(share.seconds))
                self.allocator.observe(worker, share.seconds)
        self.k = round.number
        self._trace.add(round, self._ranks.ledger)
        self._trace.record(Evaluation(round.logs.get("loss", np.nan)))
        self._between = True
        if self._recorder is not None:
            self._recorder.note(round)
            self._recorder.save_if_due(round)

    def close(self) -> None:
        """Save for the last time; a round that broke off leaves what was saved before."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        if self._between:
            self._trace.end()
            recorder.interrupt(BY_CALLER)
        recorder.close()


def identify_ranks(group: RankGroup, settings: str) -> list[WorkerIdentity]:
    """Return where all ranks run; reject ranks with other settings than those of rank 0."""
    reported, found = group.gather_texts(host_name(), hardware(), settings), list[WorkerIdentity]()
    on_host, before = Counter(host for host, _, _ in reported), Counter[str]()
    for rank, (host, own_hardware, theirs) in enumerate(reported):
        if theirs != (first := reported[0][-1]):
            raise UsageError(f"rank {rank} has {theirs}, but rank 0 {first}; use the same on all ranks")
        found.append(WorkerIdentity(host, before[host], own_hardware, on_host[host]))
        before[host] += 1
    return found


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

    @entry_point
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
        recording = Recording(
            out=out,
            resume=resume,
            warm_start=warm_start,
            prior_weight=prior_weight,
            any_problem=any_problem,
            accept_changes=accept_changes,
            checkpoint_rounds=checkpoint_rounds,
            checkpoint_seconds=checkpoint_seconds,
        )
        check_arguments(budget=budget, seed=seed, **vars(recording))
        if budget < 1:
            raise UsageError(f"{budget=} must be at least 1: the micro-batches of all ranks in one step")
        if shuffle not in ("loader", "epoch"):
            raise UsageError(f"{shuffle=} must be 'loader' or 'epoch'")
        self._group = group = RankGroup()
        self.rank, self.n, self.budget = group.rank, group.n, budget
        self._shared, self._seed = shuffle == "epoch", seed
        ranks = identify_ranks(group, f"budget={budget}, shuffle={shuffle!r}, seed={seed}")
        self._run: BalancedRun | None = None

        def opened() -> IntArray:
            self._run = BalancedRun(allocator, budget, seed, ranks, recording)
            return np.array([self._run.k])

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
        quota = self._group.from_rank_0(self._run.decide if self._run else None, self.n)
        self._share = share = Share(quota, self.rank, cold=not self._local.called)
        first = self.rounds * self.budget + share.before
        return self._local.isolated(share.timed(self._draws_of(loader).take(first, share.count)))

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
        shares = reports(self._group.gather(share.report(weight, unused=not all(own)), share.width))
        self._share = None
        total = _total_weight(shares, share.quota)
        round = self._completed(share, shares)
        if self._mean is None or not self._mean.fits(model, parameters):
            self._mean = ModelMean(model)
        running = self._mean.start(shares[self.rank].weight, total)
        if self._run is not None:
            self._run.learn(round, shares)
        anywhere = self._group.any_of(own) if any(each.unused for each in shares) else [True] * len(own)
        self._mean.finish(running, anywhere)
        self._local.note(model)
        self._local.called = self._local.called or share.count > 0
        return round

    def _completed(self, share: Share, shares: Sequence[ShareReport]) -> Round:
        self.rounds += 1
        nothing = np.zeros(self.n, np.int64)
        used = np.array([each.done for each in shares])
        losses = sum(each.losses for each in shares)
        logs = {"loss": sum(each.loss for each in shares) / losses} if losses else {}
        duration = time.perf_counter() - share.began
        return Round(self.rounds, share.quota, used, nothing, nothing, 0.0, duration, logs=logs)

    def close(self) -> None:
        """Save the run for the last time; otherwise that is done when the script ends."""
        if self._run is not None:
            self._run.close()

    def __enter__(self) -> "Balance":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
