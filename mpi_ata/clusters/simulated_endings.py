"""How orders of simulated workers end without delivery: stopped, wasted, or lost with their worker."""

import numpy as np

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.clusters.simulated import SimulatedWorkers


class Endings:
    """Ends orders: for the workers, in the accounts, and in the sequence that tasks may share."""

    def __init__(
        self, workers: SimulatedWorkers, ledger: Ledger, draws: Draws | None, stoppable: bool
    ) -> None:
        self._workers, self._ledger, self._draws, self._stoppable = workers, ledger, draws, stoppable
        self.probes: set[int] = set()  # workers on probation that have a single task as a trial
        self.dropped: dict[int, int] = {}  # tasks begun in orders that end unused when their worker wakes up

    def waste(self, worker: int, tasks: int) -> None:
        """End an order, and book its tasks that will not be used."""
        own = self._workers
        self._ledger.stop(worker, tasks, own.now - own.began.item(worker))
        own.number[worker] += tasks
        self.drop(np.array([worker]))

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        workers, own = np.asarray(workers), self._workers
        if not workers.size:
            return np.zeros(0)
        begun = ((own.left[workers] > 0) & (own.began[workers] <= own.now)).astype(np.int64)
        spent: Array = begun * (own.now - own.began[workers])
        for j, order in enumerate(own.orders[workers]):
            if order is not None and order.together:
                begun[j] = own.begun(int(workers[j]))
        rest = 0.0 if self._stoppable else own.finish(workers, begun)
        self._ledger.stop(workers, begun, spent + rest)
        own.number[workers] += begun
        self.drop(workers)
        return spent

    def lose(self, workers: IntArray) -> IntArray:
        """Drop orders with the tasks that their workers have begun; return the lost tasks of each."""
        tasks = np.array([self._workers.begun(worker) for worker in workers.tolist()], np.int64)
        self._ledger.lose(workers, tasks)
        self.drop(workers)
        return tasks

    def drop(self, workers: IntArray) -> None:
        """Drop the orders of these workers."""
        self._workers.drop(workers)
        if self._draws is not None:
            for worker in workers.tolist():
                self._draws.give_back(worker)
        if self.probes or self.dropped:
            for worker in workers.tolist():
                self.probes.discard(worker)
                self.dropped.pop(worker, None)

    def state(self) -> State:
        """Return which workers have orders whose results will not be used, if there are any."""
        if not self.probes and not self.dropped:
            return {}
        return {"unwanted": np.isin(np.arange(len(self._workers.left)), [*self.probes, *self.dropped])}
