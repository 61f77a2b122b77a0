"""The loop of a script: a generator of rounds, recorded as those of a job are."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import KW_ONLY, dataclass

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.execute import log_notes, start_billing
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, UsageError
from mpi_ata.job.schema import Stop
from mpi_ata.launch.signals import StopRequest, current_stop_request, open_stop_request
from mpi_ata.methods import Method, Round
from mpi_ata.problems import AnyProblem
from mpi_ata.script.entry import check_arguments, end_process, end_soon, entry_point, taking
from mpi_ata.script.resume import Recording, describe_run, plan_script


@dataclass(frozen=True)
class Loop(Recording):
    """The arguments of run()."""

    method: Method
    cluster: Cluster
    problem: AnyProblem | None = None
    stop: Stop | None = None
    evaluate_every: int = 10
    trace: Trace | None = None
    observers: Sequence[Observer] = ()
    _: KW_ONLY
    grace: float = 20.0


@entry_point
@taking(Loop)
def run(loop: Loop) -> Iterator[Round]:
    """Yield one round after another until a limit of `stop` is reached, if there is one.

    Every `evaluate_every` rounds the loss of `problem`, and what its evaluate(x) returns, goes into `trace`,
    off the clock.  `out` is saved before the first round, regularly, when a round fails, and when the loop
    ends.  A signal (Ctrl-C, TERM, HUP, USR1) ends the loop after the current round, which has `grace`
    seconds.
    """
    method, cluster, trace = loop.method, loop.cluster, loop.trace or Trace()
    check_arguments(**vars(loop))
    table, output = loop.run_table(workers=cluster.n), loop.output()
    if output.out is not None and cluster.ledger.worker_time.any():  # its file would count that too
        raise UsageError(
            f"the run to be recorded in {output.out} needs a cluster of its own, but this one has done other "
            "rounds; open another one with mpi_ata.cluster"
        )
    start = plan_script(describe_run(method, loop.problem, loop.stop or Stop(), table), output)
    log_notes(start)
    start_billing(trace, cluster)
    shared = current_stop_request()
    try:
        with _signals(shared, loop.grace, recorded=start.file is not None) as stop_request:
            parts = method, loop.problem, cluster, trace, loop.observers
            drive = Drive(start, *parts, stop_request, closes=False)
            try:
                yield from quiet(drive.rounds())
            finally:
                stop_request.exit_code = CONTINUE if drive.resumable else 1
    except GeneratorExit:
        if shared is None and stop_request:
            end_soon(stop_request)
        raise
    if shared is None and stop_request:
        end_process(stop_request)


def _signals(shared: StopRequest | None, grace: float, recorded: bool) -> AbstractContextManager[StopRequest]:
    """Catch signals where that was not done before; where nothing can be saved, Ctrl-C stays what it is."""
    if shared is not None:
        shared.grace = grace
        return nullcontext(shared)
    return open_stop_request(grace) if recorded else nullcontext(StopRequest(grace))


def quiet(rounds: Generator[Round, None, None]) -> Iterator[Round]:
    """Yield rounds in which numpy does not warn of overflow: the evaluation reports it better."""
    with closing(rounds):
        while True:
            with np.errstate(over="ignore", invalid="ignore"):
                round = next(rounds, None)
            if round is None:
                return
            yield round
