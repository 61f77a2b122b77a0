"""The run of a DDP script, on rank 0: it decides who does how much, and is recorded as any other run."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray, State, entry, total
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.identity import hardware
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.driver.drive import BY_CALLER
from mpi_ata.driver.evaluation import Evaluation
from mpi_ata.driver.execute import log_notes
from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Start
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.schema import RunTable
from mpi_ata.job.stop import Stop
from mpi_ata.launch import allocated_cores, host_name
from mpi_ata.launch.energy import EnergyMeter
from mpi_ata.methods import Round
from mpi_ata.script.description import describe_run
from mpi_ata.script.record import plan_script
from mpi_ata.torch.share import ShareReport


class BalancedRanks:
    """The ranks of a DDP script, all of which are workers, and the accounts of their micro-batches."""

    draws: Draws | None = None

    def __init__(self, identities: Sequence[WorkerIdentity]) -> None:
        self.n, self.identities = len(identities), tuple(identities)
        self.ledger = Ledger(self.n)

    def state(self) -> State:
        """Return the accounts."""
        return self.ledger.state()

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from saved accounts."""
        self.ledger.restore(state, workers)

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other ranks."""
        self.ledger.take_over(workers, rows)


class BalancedRounds:
    """How many rounds were done, and what decides the quotas; the weights are the script's own to save."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator: Allocator = allocator
        self.x: Array = np.zeros(0)
        self.k = 0

    def state(self) -> State:
        """Return the number of rounds."""
        return {"x": self.x, "k": np.array(self.k)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self.k = int(entry(state, "k", self.k))


class BalancedRun:
    """Decides the quotas of rounds, learns from their times, and records them."""

    def __init__(self, start: Start, rounds: BalancedRounds, ranks: BalancedRanks) -> None:
        self.rounds, self._ranks, self._trace = rounds, ranks, Trace()
        self._trace.cores = allocated_cores() or ranks.n
        self._trace.meter = EnergyMeter().joules
        self._between = True  # two rounds, so that the state is that of the latest one
        notes = begin(start, rounds, ranks, self._trace)
        if not self._trace.rows:
            self._trace.record()
        self._recorder: RunRecorder | None = None
        if start.file is not None:
            self._recorder = RunRecorder(start, start.file, rounds, ranks, self._trace)
            self._recorder.begin(notes)

    def decide(self) -> IntArray:
        """Return the quotas of the next round."""
        self._between = False
        n, B = self._ranks.n, self.rounds.allocator.budget
        quota = np.asarray(self.rounds.allocator.allocate(np.ones(n, np.bool_)))
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
                self.rounds.allocator.observe(worker, share.seconds)
        self.rounds.k = round.number
        self._trace.add(round, self._ranks.ledger)
        self._trace.record(Evaluation(round.logs.get("loss", np.nan)))
        self._between = True
        if self._recorder is not None:
            self._recorder.note(round)
            self._recorder.save_if_due(round)

    def close(self) -> None:
        """Save for the last time; a round that broke off leaves what was saved before."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None and self._between:
            self._trace.end()
            recorder.interrupt(BY_CALLER)


def own_identity(settings: str) -> str:
    """Return where this rank runs, and the settings that all must agree on, as a text for the others."""
    return json.dumps([host_name(), hardware(), settings])


def identities(texts: Sequence[str]) -> list[WorkerIdentity]:
    """Return who the ranks are, from what each says of itself; reject ranks with other settings."""
    said, found = [json.loads(text) for text in texts], []
    before, on_host = Counter[str](), Counter(host for host, _, _ in said)
    for rank, (host, own_hardware, settings) in enumerate(said):
        if settings != said[0][-1]:
            raise UsageError(
                f"rank {rank} has {settings}, but rank 0 {said[0][-1]}; use the same on all ranks"
            )
        found.append(WorkerIdentity(host, before[host], own_hardware, on_host[host]))
        before[host] += 1
    return found


def open_run(
    allocator: Allocator,
    name: str,
    ranks: Sequence[WorkerIdentity],
    table: RunTable,
    output: OutputOptions | None,
) -> BalancedRun:
    """Return the run of a script, brought to where it starts from; `name` is that of its allocator, or ""."""
    rounds = BalancedRounds(allocator)
    described = describe_run(rounds, None, Stop(), table)
    tables = described.tables | {"method": {"class": "Balance"}}
    if name:
        tables["allocator"] = {"name": name, "budget": allocator.budget}
    start = plan_script(replace(described, tables=tables), output)
    log_notes(start)
    return BalancedRun(start, rounds, BalancedRanks(ranks))
