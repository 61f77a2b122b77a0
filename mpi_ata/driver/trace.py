"""What happened in a run: totals, and a bounded history of them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import Array, IntArray, State, entry, total
from mpi_ata.clusters.accounts import Ledger, Mark
from mpi_ata.driver.evaluation import NOT_EVALUATED, Evaluation
from mpi_ata.errors import RunError
from mpi_ata.methods import Round
from mpi_ata.runfile.schema import HistoryRow


@dataclass
class WallTime:
    """Seconds of wall time by what they went into; what the user's own loop does is in none of them."""

    setup_time: float = 0.0  # from the start of the job to the first round: imports, ranks, data
    decision_time: float = 0.0  # quotas
    update_time: float = 0.0  # between the last needed arrival and the end of a round
    evaluation_time: float = 0.0
    saving_time: float = 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that something takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began)

    def add_round(self, seconds: float, duration: float, decision: float) -> None:
        """Take in a round that took so long in all, on the clock, and in deciding on quotas."""
        self.decision_time += decision
        self.update_time += max(seconds - duration - decision, 0.0)


class Regret:
    """The paper's regret: how much longer quotas take than the best ones, by the true mean times."""

    def __init__(self, means: Array, budget: int) -> None:
        self._means, self._budget = means, budget
        self.least = float((recursive_allocation(means, budget) * means).max())

    def of(self, quota: IntArray) -> float:
        """Return the regret of one round; NaN where quotas do not sum to the budget, as greedy ones."""
        if quota.sum() != self._budget:
            return math.nan
        return float((quota * self._means).max()) - self.least  # (eq. 9)


MAX_METRICS = 32  # the history is bounded in bytes
TOTALS = (  # what a resumed run continues from
    *("round", "clock", "worker_time", "waste", "used", "wasted", "lost", "elapsed", "billed", "regret"),
    *("delays", "delay_sum", "largest_delay", "loss", "gap", "earlier", "stride", "recorded"),
)


class Trace:
    """Adds up rounds, and keeps at most `capacity` rows of totals, evenly spaced over the run."""

    def __init__(self, capacity: int = 4096) -> None:
        self.round = 0
        self.clock = self.worker_time = self.waste = 0.0
        self.used = self.wasted = self.lost = 0
        self.delays = self.delay_sum = self.largest_delay = 0  # of asynchronous updates
        self.loss = self.gap = math.nan  # as of the latest evaluation
        self.regret = math.nan  # a sum over the rounds, where the true means are known
        self._regret: Regret | None = None
        self.evaluation: dict[str, float] = {}  # metrics of the latest evaluation
        self._evaluated = -1  # its round
        self._final: Evaluation | None = None  # of a run that was stopped between two evaluations
        self.rows: list[HistoryRow] = []
        self.metrics: dict[str, list[float]] = {}  # those of each row, by name; NaN where a row has none
        self.earlier = 0.0  # worker time of workers that are gone
        self.capacity, self.stride, self.recorded = capacity, 1, 0
        self.cores = 0.0  # billed while the run lasts; none where workers are simulated
        self._began, self._ended = time.monotonic(), math.inf
        self._before = 0.0  # elapsed, in parts of the run before this one
        self._billed = 0.0, 0.0  # elapsed and billed, when the number of cores last changed
        self.wall_time = WallTime()  # of elapsed

    @property
    def started(self) -> int:
        """Return the number of tasks that were begun."""
        return self.used + self.wasted + self.lost

    @property
    def mean_delay(self) -> float:
        """Return the mean number of updates between start and use of a gradient; NaN if synchronous."""
        return self.delay_sum / self.delays if self.delays else math.nan

    @property
    def elapsed(self) -> float:
        """Return the wall time from the start of the job."""
        return min(time.monotonic(), self._ended) - self._began

    def begin_earlier(self, age: float) -> None:
        """Count from the start of a job that is this old; not if the run itself was begun before."""
        self._began = min(self._began, time.monotonic() - age)

    def end_setup(self) -> None:
        """Note that all which comes before the first round is done, in this part of the run."""
        self.wall_time.setup_time += self.elapsed - self._before

    @property
    def setup_time(self) -> float:
        """Return the seconds from the start of the job to the first round, over all parts of the run."""
        return self.wall_time.setup_time

    def end(self) -> None:
        """Freeze elapsed, so that what is saved and what is shown are the same."""
        self._ended = time.monotonic()

    @property
    def billed(self) -> float:
        """Return cores x elapsed, idle ones included; their number may change when a run is resumed."""
        elapsed, billed = self._billed
        return billed + self.cores * (self.elapsed - elapsed)

    def bill(self, cores: float) -> None:
        """Bill this many cores from now on: those of a job that shares ranks may be fractions."""
        self._billed, self.cores = (self.elapsed, self.billed), cores

    def track_regret(self, regret: Regret) -> None:
        """Add up the regret from now on."""
        self._regret, self.regret = regret, 0.0

    def summary(self) -> dict[str, Any]:
        """Return the totals; None where one is not known."""
        latest = self._final or Evaluation(self.loss, self.gap)
        return {
            "rounds": self.round,
            "clock": self.clock,
            "worker_time": self.worker_time,
            "elapsed": self.elapsed,
            "billed": self.billed or None,
            "tasks_started": self.started,
            "tasks_used": self.used,
            "tasks_wasted": self.wasted,
            "tasks_lost": self.lost,
            "waste": self.waste,
            "loss": None if math.isnan(latest.loss) else latest.loss,
            "gap": None if math.isnan(latest.gap) else latest.gap,
            "evaluation": {k: v if math.isfinite(v) else None for k, v in self.evaluation.items()},
            "mean_delay": None if math.isnan(self.mean_delay) else self.mean_delay,
            "largest_delay": self.largest_delay if self.delays else None,
            # The time of simulated workers is not that of a wall.
            **{name: value if self.cores else None for name, value in vars(self.wall_time).items()},
        }

    def totals(self) -> State:
        """Return the sums so far, and how the history is thinned."""
        shares = vars(self.wall_time) if self.cores else {}
        sums = {name: getattr(self, name) for name in TOTALS} | shares
        return {name: np.array(value) for name, value in sums.items()}

    def history(self) -> State:
        """Return the rows as columns."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in HistoryRow._fields)
        return {name: np.array(column) for name, column in zip(HistoryRow._fields, columns, strict=True)}

    def metric_columns(self) -> State:
        """Return the metrics of the rows as columns."""
        return {name: np.array(column) for name, column in self.metrics.items()}

    def evaluations(self) -> State:
        """Return the metrics of the rows as columns, and the latest of each."""
        latest = {f"latest.{name}": np.array(value) for name, value in self.evaluation.items()}
        return self.metric_columns() | latest

    def restore(self, totals: State, history: State, evaluations: State) -> None:
        """Continue from the totals and the history of an earlier part of the run."""
        sums = {name: entry(totals, name, getattr(self, name)).item() for name in TOTALS}
        self._before = sums.pop("elapsed")
        self._billed = self._before, sums.pop("billed")
        self._began -= self._before
        vars(self).update(sums)
        for name, value in vars(self.wall_time).items():
            if name in totals:  # older files have no shares
                setattr(self.wall_time, name, value + totals[name].item())
        columns = [history[name].tolist() for name in HistoryRow._fields]
        self.rows = [HistoryRow(*values) for values in zip(*columns, strict=True)]
        if self.rows and self.rows[-1].round == self.round:
            self._evaluated = self.round
        for name, array in evaluations.items():
            if name.startswith("latest."):
                self.evaluation[name.removeprefix("latest.")] = array.item()
            else:
                self.metrics[name] = entry({name: array}, name, np.zeros(len(self.rows))).tolist()

    def add(self, round: Round, ledger: Ledger) -> None:
        """Take in one round."""
        self.round = round.number
        self.clock += round.duration
        self.worker_time = self.earlier + float(np.add.reduce(ledger.worker_time))
        self.waste += round.waste
        self.used += total(round.used)
        self.wasted += total(round.wasted)
        self.lost += total(round.lost)
        if self._regret is not None:
            self.regret += self._regret.of(round.quota)
        if len(round.delays):
            self.delays += len(round.delays)
            self.delay_sum += int(round.delays.sum())
            self.largest_delay = max(self.largest_delay, int(round.delays.max()))

    def forget_after(self, round: int) -> None:
        """Drop the history after a round to which the caller went back; sums keep what was done."""
        self.rows = [row for row in self.rows if row.round <= round]
        self.metrics = {name: column[: len(self.rows)] for name, column in self.metrics.items()}
        self.round = round

    def settle(self, ledger: Ledger, before: Mark) -> None:
        """Take in what was booked since `before`, when the cluster was closed after the last round."""
        late = ledger.changes(before)
        self.wasted += int(late.stopped.sum())
        self.lost += int(late.lost.sum())
        self.waste += late.stopped_time
        self.worker_time = self.earlier + float(ledger.worker_time.sum())

    def is_evaluated(self) -> bool:
        """Return whether the latest round was evaluated."""
        return self._evaluated == self.round

    def conclude(self, evaluation: Evaluation) -> None:
        """Take in the evaluation of a run that was stopped; a resumed one evaluates when it would have."""
        self._final, self.evaluation, self._evaluated = evaluation, dict(evaluation.metrics), self.round

    def record(self, evaluation: Evaluation = NOT_EVALUATED) -> None:
        """Keep totals and evaluation as a row; when there are too many, every other row is dropped."""
        self.loss, self.gap, self.evaluation = evaluation.loss, evaluation.gap, dict(evaluation.metrics)
        self._evaluated = self.round
        if name := next((name for name in self.evaluation if "/" in name), None):
            raise RunError(
                f"evaluate() of the problem returned the name {name!r}; a name may not contain '/'"
            )
        if self.recorded % self.stride == 0:
            self._keep()
        self.recorded += 1
        if len(self.rows) > self.capacity:
            self.rows = self.rows[::2]
            self.metrics = {name: column[::2] for name, column in self.metrics.items()}
            self.stride *= 2

    def _keep(self) -> None:
        for name in self.evaluation:
            self.metrics.setdefault(name, [math.nan] * len(self.rows))
        if (count := len(self.metrics)) > MAX_METRICS:
            raise RunError(
                f"evaluate() of the problem returned {count} names; at most {MAX_METRICS} are kept"
            )
        self.rows.append(HistoryRow(*(getattr(self, name) for name in HistoryRow._fields)))
        for name, column in self.metrics.items():
            column.append(self.evaluation.get(name, math.nan))
