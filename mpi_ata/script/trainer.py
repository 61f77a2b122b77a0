"""Training of a PyTorch model in a loop of one's own."""

import atexit
import inspect
import logging
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, overload

from mpi_ata.arrays import Array
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.evaluation import Evaluation, evaluate_in_parts
from mpi_ata.driver.execute import start_billing
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, UsageError, did_you_mean, diverged
from mpi_ata.methods import SGD, Round
from mpi_ata.script.entry import end_process, entry_point
from mpi_ata.script.minimize import Request
from mpi_ata.script.ranks import is_worker, joined, opened
from mpi_ata.script.run import quiet
from mpi_ata.torch import TorchProblem, TorchUpdate
from mpi_ata.torch.optimizers import TailUpdate

log = logging.getLogger("mpi_ata")

NEVER = 10**9  # rounds between two evaluations that nobody asks for


def divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which of these arguments are those of a run, and which those of the problem."""
    run = {field.name for field in fields(Request)} - {"problem", "update", "progress"}
    known = run | set(inspect.signature(TorchProblem).parameters)
    for name in options:
        if name not in known:
            raise UsageError(f"Trainer has no argument {name!r}{did_you_mean(name, known)}")
    own = {name: value for name, value in options.items() if name not in run}
    return {name: value for name, value in options.items() if name in run}, own


def _end_at_once() -> None:
    """End a worker's process: Python would take half a second to take PyTorch apart."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Trainer:
    """Trains a model on all ranks: `with Trainer(...) as trainer: for round in trainer: ...`.

    Every rank must get here.  Workers serve inside, and their processes end there; the block is for rank 0
    alone.  A round is one step of the optimizer, by the mean gradient over `budget` batches.  `optimizer`,
    `scheduler`, `scheduler_every`, `clip` and `ema` are those of TorchUpdate; all other arguments are those
    of TorchProblem, such as test, metrics, collate_fn, num_workers and precision, or those of `minimize`,
    such as rounds, workers, out, resume and exchange.
    """

    @entry_point
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
        running, own = divided(options)
        logs = tuple(logs) or ("loss",)
        self.problem = TorchProblem(model, loss_fn, dataset, batch_size, logs=logs, seed=seed, **own)
        update = TorchUpdate(optimizer, scheduler, scheduler_every, clip, ema)
        self._request = Request(
            problem=self.problem,
            budget=budget,
            update=update,
            seed=seed,
            evaluate_every=evaluate_every or NEVER,
            progress=False,
            **running,
        )
        self.trace = Trace()
        self._warned = False  # that rank 0 evaluates alone

    def __enter__(self) -> "Trainer":
        """Open the workers; their own ranks serve here."""
        self._block = self._opened()
        try:
            self._block.__enter__()
        except SystemExit as end:
            if is_worker() and end.code == 0:
                _end_at_once()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        """Save the run and let the workers go; a script that a signal ended exits here."""
        self._block.__exit__(*error)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        request = self._request
        prepared, _ = joined("Trainer", request.prepare)
        with opened(prepared, request.workers, request.grace, request.faults) as (cluster, stop_request):
            if cluster is None:
                sys.exit(0)
            self.cluster = cluster
            self.method: SGD = prepared.method
            start_billing(self.trace, cluster)
            track_regret(self.trace, self.method, prepared.times)
            problem = None if request.evaluate_every == NEVER else self.problem
            parts = self.method, problem, cluster, self.trace, request.observers
            drive = Drive(prepared.start, *parts, stop_request, closes=False)
            drive.restore()  # the block may look at the run before its first round
            self._rounds: Generator[Round, None, None] = drive.rounds()
            try:
                yield
            finally:
                self._rounds.close()  # where the loop was left before its end, this saves what was reached
                stop_request.exit_code = CONTINUE if drive.resumable else 1
        if stop_request:
            end_process(stop_request)

    def __iter__(self) -> Iterator[Round]:
        """Yield one round after another, each with its logs."""
        for round in quiet(self._rounds):
            yield round._replace(logs=self.logs)

    @property
    def x(self) -> Array:
        """The point: the weights, and what follows them."""
        return self.method.x

    @property
    def _bound(self) -> TailUpdate:
        assert isinstance(self.method.update, TailUpdate)
        return self.method.update

    @property
    def update(self) -> TorchUpdate:
        """What moves the weights; it has `optimizer` and `scheduler`."""
        assert isinstance(self._bound.inner, TorchUpdate)
        return self._bound.inner

    @property
    def logs(self) -> dict[str, float]:
        """What the tasks of the latest round have logged, on average."""
        return self.problem.logged(self.x)

    @property
    def state(self) -> dict[str, Any]:
        """Numbers and arrays of your own, by name: they are saved in the run file and resumed with it."""
        return self._bound.notes

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
        known, x = self.problem.evaluations, self._point(averaged)
        name, wanted = known.name_of(data), None if metric is None else known.metric_name(metric)
        with self.trace.wall_time.timed("evaluation_time"):
            if name is None or (metric is not None and wanted is None):
                return self._evaluate_here(x, data if name is None else known.sets[name], metric)
            parts = known.parts[name]
            found = evaluate_in_parts(self.problem, x, self.cluster, parts)
            found = found or self.problem.evaluate_parts(x, parts)
        if name == known.default:
            self._record(found)
        return found if wanted is None else found[wanted]

    def _evaluate_here(self, x: Array, dataset: Any, metric: Any) -> Any:
        """Return loss and metrics, or one metric alone, of what workers do not have."""
        if not self._warned and ClusterAbilities.of(self.cluster).evaluate is not None:
            self._warned = True
            log.warning(
                "evaluate() was given a dataset or a metric that workers do not have, so rank 0 evaluates "
                "alone; pass them to Trainer as test= and metrics= to use all workers"
            )
        known = self.problem.evaluations.metrics
        if metric is None:
            return self.problem.evaluate_here(x, dataset, known)
        function = known[metric] if isinstance(metric, str) else metric
        return self.problem.evaluate_here(x, dataset, {"metric": function})["metric"]

    def _record(self, found: dict[str, float]) -> None:
        loss = found["loss"]
        if not math.isfinite(loss):
            raise diverged(self.method.k, loss)
        metrics = {name: value for name, value in found.items() if name != "loss"}
        self.trace.record(Evaluation(loss, metrics=metrics))
        self.update.evaluated(loss)

    def save(self, path: str | Path, averaged: bool = False) -> None:
        """Write the model's state_dict to a file; with `averaged`, at the running mean of the weights."""
        self.problem.save(self._point(averaged), path)

    def _point(self, averaged: bool) -> Array:
        return self.update.averaged(self.x) if averaged else self.x
