"""Training of a PyTorch model in a loop of one's own."""

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from mpi_ata.arrays import Array
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.execute import log_notes
from mpi_ata.driver.opening import start_billing
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE
from mpi_ata.job.build import replicated_update
from mpi_ata.methods import Round
from mpi_ata.script.ending import end_process, report_errors_in_one_sentence, report_exit
from mpi_ata.script.place import start_ranks, starts_ranks
from mpi_ata.script.request import Prepared, Request
from mpi_ata.script.round_logs import RoundLogs
from mpi_ata.script.run import quiet
from mpi_ata.script.together import catching_signals, joined, opened_cluster
from mpi_ata.script.trainer_arguments import checked, divided
from mpi_ata.script.trainer_evaluations import TrainerEvaluations, hand_out
from mpi_ata.script.words import in_python
from mpi_ata.torch import TorchProblem, TorchUpdate
from mpi_ata.torch.tail import TailUpdate

NEVER = 10**9  # rounds between two evaluations that nobody asks for


class Trainer:
    """Trains a model on all ranks: `with Trainer(...) as trainer: for round in trainer: ...`.

    Every rank must get here.  Workers serve inside, and their processes end there; the block is for rank 0
    alone.  A round is one step of the optimizer, by the mean gradient over `budget` batches.  `optimizer`,
    `scheduler`, `scheduler_every`, `clip` and `ema` are those of TorchUpdate; all other arguments are those
    of TorchProblem, such as test, metrics, collate_fn, num_workers and precision, or those of `minimize`,
    such as rounds, workers, out, resume and replicated.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[[Any, Any], Any],
        dataset: Any,
        batch_size: int = 1,
        *,
        budget: int,
        optimizer: Any,
        scheduler: Any = None,
        scheduler_every: int = 1,
        clip: float | None = None,
        ema: float | None = None,
        logs: Sequence[str] = ("loss",),
        seed: int = 0,
        evaluate_every: int | None = None,
        **options: Any,
    ) -> None:
        report_errors_in_one_sentence()
        running, own = divided(options)
        logs = tuple(logs) or ("loss",)
        with checked():
            self.problem = TorchProblem(model, loss_fn, dataset, batch_size, logs=logs, seed=seed, **own)
            update = TorchUpdate(optimizer, scheduler, scheduler_every, clip, ema)
        self._request = Request(
            problem=self.problem,
            budget=budget,
            update=update,
            seed=seed,
            evaluate_every=evaluate_every or NEVER,
            **running,
        )
        self.trace = Trace()

    def __enter__(self) -> "Trainer":
        """Open the workers; their own ranks serve here."""
        request = self._request
        with ExitStack() as stack, in_python():
            prepared, _ = joined("Trainer", request.prepare)
            if request.workers is not None and starts_ranks(request.workers):
                start_ranks(request.workers)
            self._open(stack, prepared)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack, prepared: Prepared) -> None:
        request, start = self._request, prepared.start
        self._stop_request = stack.enter_context(catching_signals(request.grace))
        log_notes(start)
        opened = prepared.problem, prepared.times, request.seed, prepared.digest, self._stop_request
        travel = request.exchange, replicated_update(prepared.method)
        cluster = stack.enter_context(opened_cluster(*opened, request.faults, *travel))
        if cluster is None:
            sys.exit(0)
        self.cluster, self.method = cluster, prepared.method
        self._evaluations = TrainerEvaluations(self.problem, self.method, cluster, self.trace)
        start_billing(self.trace, cluster)
        track_regret(self.trace, self.method, prepared.times)
        problem = None if request.evaluate_every == NEVER else self.problem
        self._drive = Drive(
            start,
            self.method,
            problem,
            cluster,
            self.trace,
            request.observers,
            self._stop_request,
            closes=False,
        )
        self._drive.restore()  # the block may look at the run before its first round
        self._rounds: Generator[Round, None, None] = self._drive.rounds()
        stack.callback(self._end)

    def _end(self) -> None:
        """Save what was reached, where the loop was left before its end."""
        self._rounds.close()
        self._stop_request.exit_code = CONTINUE if self._drive.resumable else 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save the run and let the workers go; a script that a signal ended exits here."""
        self._stack.__exit__(kind, error, trace)
        if kind is not None:
            return
        if self._stop_request:
            end_process(self._stop_request)
        report_exit(0)

    def __iter__(self) -> Iterator[Round]:
        """Yield one round after another, each with its logs."""
        for round in quiet(self._rounds):
            yield round._replace(logs=self._logs_of(round.number))

    def _logs_of(self, round: int) -> Mapping[str, float]:
        """Return the logs of the round that has just ended; with `replicated`, fetched when they are read."""
        if not self._request.replicated:
            return self.logs
        return RoundLogs(round, lambda: self.method.k, lambda: self.logs)

    @property
    def x(self) -> Array:
        """The point: the weights, and what follows them; with `replicated`, fetched from a worker."""
        x: Array = self.method.x
        return x

    @property
    def update(self) -> TailUpdate:
        """What moves the point; it has `optimizer` and `scheduler`.

        You may change these.  So with `replicated`, workers get the point and the state of the update from
        rank 0 at the beginning of the next round.
        """
        hand_out(self.method)
        return self._update

    @property
    def _update(self) -> TailUpdate:
        assert isinstance(self.method.update, TailUpdate)
        return self.method.update

    @property
    def logs(self) -> dict[str, float]:
        """What the tasks of the latest round have logged, on average."""
        return self.problem.logged(self.x)

    @property
    def state(self) -> dict[str, Any]:
        """Numbers and arrays of your own, by name: they are saved in the run file and resumed with it."""
        return self._update.notes

    @overload
    def evaluate(self, data: Any = None, *, averaged: bool = False) -> dict[str, float]: ...
    @overload
    def evaluate(self, data: Any, metric: Any, *, averaged: bool = False) -> float: ...
    def evaluate(self, data: Any = None, metric: Any = None, *, averaged: bool = False) -> Any:
        """Return loss and metrics over a dataset, computed by all workers; or one `metric` alone.

        `data` is one of `test`, the first one if none is given, and `metric` one of `metrics`: the object
        itself, or its name.  What was not passed to Trainer is evaluated by rank 0 alone, since workers do
        not have it.  With `averaged`, at the running mean of the weights.  An evaluation of the first dataset
        is recorded, and ReduceLROnPlateau sees its loss.
        """
        return self._evaluations.of(self._point(averaged), data, metric)

    def save(self, path: str | Path, averaged: bool = False) -> None:
        """Write the model's state_dict to a file; with `averaged`, at the running mean of the weights."""
        self.problem.save(self._point(averaged), path)

    def _point(self, averaged: bool) -> Array:
        x = self.x  # first: this may fetch the state of the update too
        found: Array = self._update.averaged(x) if averaged else x
        return found
