"""Training of a PyTorch model in a loop of one's own."""

import math
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array
from mpi_ata.clusters import FaultPolicy
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.evaluation import Evaluation, evaluate_in_parts
from mpi_ata.driver.execute import log_notes
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.opening import start_billing
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, diverged
from mpi_ata.job.stop import Stop
from mpi_ata.methods import Round
from mpi_ata.script.ending import end_process, report_errors_in_one_sentence, report_exit
from mpi_ata.script.place import start_ranks, starts_ranks
from mpi_ata.script.request import Prepared, Request
from mpi_ata.script.run import quiet
from mpi_ata.script.together import catching_signals, joined, opened_cluster
from mpi_ata.script.words import in_python
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.torch import TorchProblem, TorchUpdate
from mpi_ata.torch.tail import TailUpdate

NEVER = 10**9  # rounds between two evaluations that nobody asks for


class Trainer:
    """Trains a model on all ranks: `with Trainer(...) as trainer: for round in trainer: ...`.

    Every rank must get here.  Workers serve inside, and their processes end there; the block is for rank 0
    alone.  A round is one step of the optimizer, by the mean gradient over `budget` batches.  `optimizer`,
    `scheduler`, `scheduler_every`, `clip` and `ema` are those of TorchUpdate; `options` are those of
    TorchProblem, such as test, metrics, collate_fn and precision; all others are those of `minimize`.
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
        rounds: int | None = None,
        stop: Stop | None = None,
        logs: Sequence[str] = ("loss",),
        allocator: str | Allocator | Callable[[int], Allocator] | None = None,
        workers: int | None = None,
        times: DrawnTimes | Law | None = None,
        seed: int = 0,
        out: str | Path | None = None,
        resume: bool = False,
        warm_start: str | Path | Sequence[str | Path] = (),
        accept_changes: bool = False,
        evaluate_every: int | None = None,
        observers: Sequence[Observer] = (),
        checkpoint_rounds: int | None = None,
        checkpoint_seconds: float | None = None,
        grace: float = 20.0,
        faults: FaultPolicy | None = None,
        exchange: str = "auto",
        **options: Any,
    ) -> None:
        report_errors_in_one_sentence()
        self.problem = TorchProblem(
            model, loss_fn, dataset, batch_size, logs=tuple(logs) or ("loss",), seed=seed, **options
        )
        self._request = Request(
            problem=self.problem,
            budget=budget,
            update=TorchUpdate(optimizer, scheduler, scheduler_every, clip, ema),
            rounds=rounds,
            stop=stop,
            allocator=allocator,
            workers=workers,
            times=times,
            seed=seed,
            out=out,
            resume=resume,
            warm_start=warm_start,
            accept_changes=accept_changes,
            evaluate_every=evaluate_every or NEVER,
            checkpoint_rounds=checkpoint_rounds,
            checkpoint_seconds=checkpoint_seconds,
            grace=grace,
            faults=faults,
            observers=observers,
            exchange=exchange,
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
        cluster = stack.enter_context(opened_cluster(*opened, request.faults, request.exchange))
        if cluster is None:
            sys.exit(0)
        self.cluster, self.method = cluster, prepared.method
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
            yield round._replace(logs=self.logs)

    @property
    def x(self) -> Array:
        """The point: the weights, and what follows them."""
        x: Array = self.method.x
        return x

    @property
    def update(self) -> TailUpdate:
        """What moves the point; it has `optimizer` and `scheduler`."""
        assert isinstance(self.method.update, TailUpdate)
        return self.method.update

    @property
    def logs(self) -> dict[str, float]:
        """What the tasks of the latest round have logged, on average."""
        return self.problem.logged(self.x)

    @property
    def state(self) -> dict[str, Any]:
        """Numbers and arrays of your own, by name: they are saved in the run file and resumed with it."""
        return self.update.notes

    def evaluate(self, averaged: bool = False) -> dict[str, float]:
        """Return loss and metrics over the test samples, computed by all workers and recorded.

        With `averaged`, at the running mean of the weights.  ReduceLROnPlateau sees the loss.
        """
        x = self._point(averaged)
        with self.trace.shares.timed("evaluation_time"):
            found = evaluate_in_parts(self.problem, x, self.cluster) or self.problem.evaluate(x)
        loss = found["loss"]
        if not math.isfinite(loss):
            raise diverged(self.method.k, loss)
        metrics = {name: value for name, value in found.items() if name != "loss"}
        self.trace.record(Evaluation(loss, metrics=metrics))
        self.update.evaluated(loss)
        return found

    def save(self, path: str | Path, averaged: bool = False) -> None:
        """Write the model's state_dict to a file; with `averaged`, at the running mean of the weights."""
        self.problem.save(self._point(averaged), path)

    def _point(self, averaged: bool) -> Array:
        found: Array = self.update.averaged(self.x) if averaged else self.x
        return found
