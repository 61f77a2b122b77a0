"""DDP with unequal shares: the micro-batches of a step, divided among the ranks by their speed."""

import logging
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
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
    PREPARED,
    LoaderDraws,
    LocalBackward,
    ModelMean,
    RankGroup,
    Share,
    SharedDraws,
    ShareReport,
    mean_logs,
    trained,
)
from mpi_ata.torch.devices import import_torch

log = logging.getLogger("mpi_ata")


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
        self._quota, self._reused = np.zeros(n, np.int64), 0  # and in how many rounds it is used again
        self._duration = np.inf  # of the latest round
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

    def decide(self, count: int) -> IntArray:
        """Return the quotas of the next round, of `count` micro-batches if it has fewer than the budget.

        Where rounds are short, several have the same, so that decisions take little of the time.
        """
        self._between, self._reused = False, self._reused - 1
        if self._reused < 0:
            began = time.perf_counter()
            self._quota = self._decide_anew()
            cost = time.perf_counter() - began
            self._reused = min(int(cost / (DECISION_SHARE * self._duration)), MOST_REUSED)
        quota, B = self._quota, self.allocator.budget
        if count < B:
            exact = quota * count / B
            quota = exact.astype(np.int64)
            quota[np.argsort(quota - exact, kind="stable")[: count - total(quota)]] += 1
        return quota

    def _decide_anew(self) -> IntArray:
        n, B = self._ranks.n, self.allocator.budget
        quota = np.asarray(self.allocator.allocate(np.ones(n, np.bool_)))
        if quota.shape != (n,) or quota.dtype.kind not in "iu" or quota.min() < 0 or total(quota) != B:
            raise RunError(
                f"the allocator gave {quota}; Balance stops no micro-batch that was begun, so it needs {n} "
                f"counts whose sum is {B}; use another allocator, such as ata-auto"
            )
        return quota.astype(np.int64)

    def rewind(self, k: int, speeds: State) -> None:
        """Continue after round k, with the speeds known then, as a checkpoint of the user's says."""
        self.k, self._between, self._reused = k, True, 0
        self._trace.forget_after(k)
        if not speeds:
            return
        try:
            self.allocator.restore(speeds)
        except (ValueError, KeyError, TypeError, IndexError):
            log.warning("the speeds in the checkpoint are not those of these ranks; they are learned again")

    def learn(self, round: Round, shares: Sequence[ShareReport]) -> None:
        """Take in a round, and save the run if it is time."""
        for worker, share in enumerate(shares):
            if share.done:
                self._ranks.ledger.deliver(worker, share.seconds, sum(share.seconds))
                self.allocator.observe(worker, share.seconds)
        self.k, self._duration = round.number, max(round.duration, 1e-9)
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


DECISION_SHARE, MOST_REUSED = 0.01, 10  # of the time, and rounds with the same quotas for that
LOADERS = 8  # that are remembered, so that each continues where it was; older ones are closed


class Balance:
    """Divides the `budget` micro-batches of each optimizer step among the ranks of torch.distributed.

    Every rank makes the same calls: `for micro in balance.micro_batches(loader): ...backward()`, and then
    `balance.step(model, optimizer)`.  The gradient of a step is the mean over its micro-batches.  A rank may
    get none of them.  DDP modules exchange neither gradients nor buffers in passes over micro-batches.

    With `shuffle` = "epoch" each sample of the loader's dataset is used once per epoch, whichever rank draws
    it; the loader's own sampler is not used then, unless it is a `batch_sampler`.  `allocator`, `out`,
    `resume`, `warm_start` and so on are those of `minimize`: the run file has speeds and progress; weights
    are yours to save, with `state_dict()` of this beside them.
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
        self._place = self.rounds * budget  # micro-batches of all ranks that were drawn
        self.weight = 0.0  # of all micro-batches of the latest step
        self._names: tuple[str, ...] = ("loss",)  # of what is logged, as all ranks know it
        self._draws: deque[LoaderDraws | SharedDraws] = deque()
        self._local = LocalBackward()
        self._mean: ModelMean | None = None
        self._share: Share | None = None

    def micro_batches(self, loader: Any, places: range | None = None) -> Iterator[Any]:
        """Yield this rank's micro-batches of the next step, drawn from its own loader, again and again.

        With shuffle="epoch", `places` says which of the sequence that all ranks share make the step, as the
        last ones of an epoch; by default, they are the next `budget`.
        """
        if self._share is not None:
            raise UsageError("micro_batches() was called twice for one step; call step() after each")
        places = places or range(self._place, self._place + self.budget)
        own = np.array([self.rounds, places.start, places.stop])

        def decided() -> IntArray:
            assert self._run is not None
            return np.concatenate([own, self._run.decide(len(places))])

        message = self._group.from_rank_0(decided, len(own) + self.n)
        if (message[: len(own)] != own).any():
            raise UsageError(
                f"rank {self.rank} is at step {own[0]}, micro-batch {own[1]}, but rank 0 at step "
                f"{message[0]}, micro-batch {message[1]}; load the same checkpoint on all ranks"
            )
        self._share = share = Share(message[len(own) :], self.rank, cold=not self._local.called)
        self._place = places.stop
        first = places.start + share.before
        return self._local.isolated(share.timed(self._draws_of(loader).take(first, share.count)))

    def steps_per_epoch(self, loader: Any) -> int:
        """Return in how many steps as many samples are drawn as the loader's dataset has, rounded up."""
        size, dataset = getattr(loader, "batch_size", None), getattr(loader, "dataset", None)
        if size is None or dataset is None:
            size, dataset = 1, getattr(loader, "batch_sampler", None) or loader
        return -(-len(dataset) // (size * self.budget))

    def _draws_of(self, loader: Any) -> LoaderDraws | SharedDraws:
        for known in self._draws:
            if known.loader is loader:
                return known
        if type(loader).__module__.startswith("accelerate."):
            raise UsageError(PREPARED)
        new = SharedDraws(loader, self._seed) if self._shared else LoaderDraws(loader, self.rounds)
        self._draws.append(new)
        if len(self._draws) > LOADERS:
            self._draws.popleft().close()
        return new

    def log(self, loss: Any = None, weight: float = 1.0, **others: Any) -> None:
        """Note the loss of a micro-batch, and other values by name.

        Their means over the micro-batches of all ranks, weighted, are in `logs` of the step's Round.
        """
        values = others if loss is None else {"loss": loss} | others
        self._present_share().log(values, float(weight))

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
        self._local.note(model)
        if self._mean is None or not self._mean.fits(model, parameters):
            self._mean = ModelMean(model, self._group)
        own = [parameter.grad is not None for parameter in parameters]
        # The sums are under way while ranks tell each other what to divide them by.
        count = total(share.quota)
        running = self._mean.start(share.count if weight is None else float(weight), 1 / count)
        shares = self._gathered(share, weight, unused=not all(own))
        self._share = None
        for work in running:
            if work is not None:
                work.wait()
        self.weight = _total_weight(shares, share.quota)
        round = self._completed(share, shares)
        if self._run is not None:
            self._run.learn(round, shares)
        anywhere = self._group.any_of(own) if any(each.unused for each in shares) else [True] * len(own)
        self._mean.finish(anywhere, count / self.weight)
        self._local.called = self._local.called or share.count > 0
        return round

    def _gathered(self, share: Share, weight: float | None, unused: bool) -> list[ShareReport]:
        """Return the reports of all ranks; names that are new to some are made known to all."""
        shares = share.gather(self._group, weight, unused, self._names)
        if not any(each.unnamed for each in shares):
            return shares
        known = self._group.gather_texts(*share.names)
        self._names = tuple(dict.fromkeys([*self._names, *(name for names in known for name in names)]))
        return share.gather(self._group, weight, unused, self._names)

    def _completed(self, share: Share, shares: Sequence[ShareReport]) -> Round:
        self.rounds += 1
        nothing = np.zeros(self.n, np.int64)
        used, logs = np.array([each.done for each in shares]), mean_logs(shares, self._names)
        duration = time.perf_counter() - share.began
        return Round(self.rounds, share.quota, used, nothing, nothing, 0.0, duration, logs=logs)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the sequence, and on rank 0 the speeds, to be saved beside the weights."""
        speeds = {} if self._run is None else self._run.allocator.state()
        tensor = import_torch().tensor
        return {
            "rounds": self.rounds,
            "place": self._place,
            "speeds": {name: tensor(array) for name, array in speeds.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict()` returned on rank 0, between two steps, on all ranks."""
        self.rounds, self._place = int(state["rounds"]), int(state["place"])
        while self._draws:
            self._draws.pop().close()
        if self._run is not None:
            self._run.rewind(self.rounds, {name: each.numpy() for name, each in state["speeds"].items()})

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
    found = sum(share.weight for share in shares)
    if not 0 < found < np.inf:
        raise RunError(f"the weights of all ranks have the sum {found}; it must be above 0 and finite")
    return found
