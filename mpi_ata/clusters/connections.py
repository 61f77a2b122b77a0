"""The manager's connections to its workers: messages, doorbells, lifelines and shared memory."""

import atexit
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.batch import Batch
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import EMPTY, LOST, METER, Channel, Message
from mpi_ata.clusters.doorbell import Doorbell, Found
from mpi_ata.clusters.exchange.opening import introduce, open_links, port_of
from mpi_ata.clusters.handshake import check_same, first_ranks, handshake, shared_buffers
from mpi_ata.clusters.lifeline import Lifelines
from mpi_ata.clusters.mpi import MPI, acknowledged_losses, end_all_ranks, note_loss, survives_losses
from mpi_ata.launch import host_name
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.launch.verdict import note_start
from mpi_ata.layout import MANAGER, rank_of, workers_in

LOOK_UP = 0.5  # seconds after which a waiting manager checks whether it was asked to end


class Connections:
    """Sends messages to workers and receives theirs, and notices whose process has ended."""

    def __init__(self, comm: MPI.Comm, template: Array, digest: bytes, exchange: str = "star") -> None:
        self.n = workers_in(comm.Get_size())
        self.drained = True  # whether no message was waiting when the latest was asked for
        self.suspended = 0.0  # seconds for which this process was stopped, or did something else
        self._latest = time.perf_counter()  # when it last waited
        self.dead: set[int] = set()  # ranks whose processes have ended
        self.postponed: list[Message] = []  # received earlier, to be handled before all others
        self._unreported: list[int] = []  # those of them that next_message() has not returned yet
        self._comm, self._template = comm, template
        self.links = open_links(exchange, template)
        self._meet(digest)
        self._joules = dict.fromkeys(first_ranks(self.ranks), math.nan)  # of other nodes, by their first rank
        self.rank = [rank_of(worker) for worker in range(self.n)]  # by worker: a call would cost more
        self.ring = [self._ringer(rank) for rank in self.rank]  # functions that wake a worker
        self._bell.watch(self._lifelines.fileno(), self.find_dead)
        self.channel = Channel(comm, MPI.ANY_SOURCE, template, self.find_dead, self.dead)

    def _meet(self, digest: bytes) -> None:
        """Exchange addresses with all ranks; shared files are unlinked as soon as all have opened them."""
        try:
            self._bell = Doorbell()
            token = secrets.token_hex(16)
            self._lifelines = Lifelines(token)
            self.shared = shared_buffers(host_name(), self._bell.name, self._template, owner=True)
            try:
                self.ranks = handshake(
                    self._comm, self._bell, digest, self._lifelines.port, token, port_of(self.links)
                )
                introduce(self.links, MANAGER, self.ranks)
                self._watch_lifelines()
                self._comm.Barrier()
                self._comm.Barrier()  # workers of other nodes reserve memory in between
                note_start()
            finally:
                self._bell.unlink_flags()
                if self.shared is not None:
                    self.shared.unlink()
        except BaseException:  # the other ranks would wait for this one forever
            atexit.register(end_all_ranks, self._comm)
            raise

    def _watch_lifelines(self) -> None:
        connected = np.zeros(self._comm.Get_size(), np.uint8)
        self._comm.Gather(np.zeros(1, np.uint8), connected, MANAGER)
        self._lifelines.watch(np.flatnonzero(connected).tolist())
        self.unwatched = [w for w in range(self.n) if not connected[rank_of(w)]]  # only by deadlines

    def _ringer(self, rank: int) -> Callable[[], None]:
        peer = self.ranks[rank]
        return self._bell.ringer(peer.host, peer.bell, peer.port, rank)

    def check_same_job(self) -> None:
        """Raise RunError where a rank has another package, job or problem than the manager."""
        check_same(self.ranks)

    def send(self, worker: int, kind: int, order: int = 0, flags: int = 0) -> None:
        """Send a short message to a worker, without waiting, and wake it."""
        self.channel.send(self.rank[worker], kind, order, flags=flags)
        self.ring[worker]()

    def wake(self, workers: list[int]) -> None:
        """Wake those of these workers that may be asleep."""
        if self._bell.all_awake():
            return
        for worker in workers:
            self.ring[worker]()

    def begin_waiting(self) -> float:
        """Return the time; what has passed since the latest wait is not the workers' fault.

        MPI may send nothing while nobody waits for an answer.
        """
        now = time.perf_counter()
        self.suspended += now - self._latest
        self._latest = now
        return now

    def next_message(
        self, until: float = math.inf, expired: Callable[[], bool] = lambda: False
    ) -> Message | None:
        """Return the next message, or None after a while; raise GraceExpired if it is time to give up."""
        if expired():
            raise GraceExpired
        began = self.begin_waiting()
        message = self.poll()
        self.drained = message is None
        if message is None:
            message = self._wait(self.poll, min(until, began + LOOK_UP))
        self._end_waiting(began)
        return message

    def all_arrive(self, batch: Batch) -> bool:
        """Return whether all results of a batch come within a short time, and no other message before."""
        if self.postponed:
            return False
        began = self.begin_waiting()
        while batch.left and self._wait(partial(self._read, batch), began + LOOK_UP):
            pass
        self._end_waiting(began)
        return not batch.left

    def _read(self, batch: Batch) -> bool | None:
        """Read the results of a batch that have come; False if another message came, or a rank has died."""
        return False if self._unreported else batch.read(self.channel)

    def _end_waiting(self, began: float) -> None:
        self._latest = time.perf_counter()
        # A process that slept for longer than it asked for was stopped, and perhaps the workers with it.
        self.suspended += max(self._latest - began - 2 * LOOK_UP, 0.0)

    def joules(self) -> float:
        """Return the energy that the other nodes have reported; NaN if one of them does not know, or died."""
        return math.nan if self.dead & self._joules.keys() else math.fsum(self._joules.values())

    def _wait(self, look: Callable[[], Found | None], until: float) -> Found | None:
        """Return what `look` finds, as soon as it finds something; None if that is not before `until`."""
        while self.channel.sending() and time.perf_counter() < until:  # it advances only while polled
            if (found := look()) is not None:
                return found
            os.sched_yield()
        if time.perf_counter() >= until:
            self.find_dead()
        return self._bell.wait(look, until)

    def poll(self) -> Message | None:
        """Return the next message; all messages of a dead worker come before the report of its loss."""
        if self.postponed:
            return self.postponed.pop(0)
        message = self.channel.poll()
        if message is not None and message.kind == METER:
            self._joules[message.sender] = message.seconds[0]
        if message is None and self._unreported:
            return Message(self._unreported.pop(0), LOST, 0, 0, 0, NOWHERE, NOWHERE, 0, [], EMPTY)
        return message

    def find_dead(self) -> set[int]:
        """Look for ranks that have died, and return all of them."""
        found = [*self._lifelines.broken(), *(acknowledged_losses(self._comm) if survives_losses else ())]
        for rank in found:
            if rank not in self.dead:
                self.dead.add(rank)
                self._unreported.append(rank)
                self.channel.abandon(rank)
        return self.dead

    def abandon(self, worker: int) -> None:
        """Stop waiting for a worker to receive what was sent to it."""
        self.channel.abandon(rank_of(worker))

    def end_stragglers(self, workers: Iterable[int], code: int) -> None:
        """End workers that do not leave: now, or with all ranks when this process exits."""
        self._leave_without_finalize()
        if survives_losses and not set(self.unwatched).intersection(workers):
            for worker in workers:  # MPI_Abort would leave some behind
                self._lifelines.cut(rank_of(worker))
        else:
            atexit.register(end_all_ranks, self._comm, code)

    def _leave_without_finalize(self) -> None:
        """Let the workers wait for the end of this process, since MPI_Finalize would wait for dead ones."""
        note_loss()
        self._lifelines.hold_until_exit()

    def close(self) -> None:
        """Close all connections; every worker is ready to leave, or dead."""
        self.find_dead()
        if self.dead:
            self._leave_without_finalize()
        else:
            self._lifelines.dismiss()
        self.channel.close()
        self._bell.close()
        if self.links is not None:
            self.links.close()
        if self.shared is not None:
            self.shared.close()
