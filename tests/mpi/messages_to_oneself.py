"""Sends messages of many sizes, and batches, to its own rank, and asserts that they arrive as they were."""

import time

import numpy as np
from mpi4py import MPI

from mpi_ata.arrays import Array
from mpi_ata.clusters import channel
from mpi_ata.clusters.batch import Batch

channel.PIECE = 1000  # so that pieces are many, and the last one is shorter


def send_messages() -> None:
    """Send messages of many sizes."""
    for dtype in (np.float32, np.float64):
        for size in (1, 504, 512, 513, 1030, 10_000):
            template: Array = np.zeros((1, size), dtype)
            template += np.linspace(0, 1, size)
            box = channel.Channel(MPI.COMM_SELF, 0, template)
            for count in (0, 1, 511, 512, 513, 3000):
                seconds = np.linspace(0.1, 0.2, count).tolist()
                box.send(0, channel.ARRIVAL, 7, 1 << 40, count, channel.TOGETHER, seconds, template, 3, 4)
                while (message := box.poll()) is None:
                    pass
                assert message[:8] == (0, channel.ARRIVAL, 7, 1 << 40, count, 3, 4, channel.TOGETHER)
                assert message.seconds == seconds
                assert message.payload.dtype == template.dtype
                assert message.payload.tolist() == template.tolist()
                box.flush()
            box.send(0, channel.FAILED, payload=np.frombuffer(b"why", np.uint8))
            while (message := box.poll()) is None:
                pass
            assert (message.payload.tobytes(), message.flags) == (b"why", 0)
            box.close()


def filled_batch(box: channel.Channel, seconds: list[float]) -> Batch:
    """Return a batch of three orders, two of which have come back, the last one first."""
    batch = Batch(np.array([4, 5, 7]), [0, 0, 0], np.zeros(2), 11, 3, [1, 2, 1])
    batch.send(box)
    orders = [read(box) for _ in range(3)]
    assert [(order.kind, order.order, order.round, order.tasks) for order in orders] == [
        (channel.ORDER, 11, 3, 1),
        (channel.ORDER, 12, 3, 2),
        (channel.ORDER, 13, 3, 1),
    ]
    time.sleep(1e-3)
    box.send(0, channel.ARRIVAL, 13, 3, 1, 0, [2e-4], np.array([5.0, 6.0]))
    box.send(0, channel.ARRIVAL, 12, 3, 2, 0, seconds, np.array([3.0, 4.0]))
    while batch.left > 1:
        batch.read(box)
    return batch


def read(box: channel.Channel) -> channel.Message:
    """Return the next message."""
    while (message := box.poll()) is None:
        pass
    return message


def send_batches() -> None:
    """Send orders in a batch, and answer them, as expected or not."""
    box = channel.Channel(MPI.COMM_SELF, 0, np.zeros(2))
    batch = filled_batch(box, [1e-4, 1e-4])
    assert batch.read(box) is None
    box.send(0, channel.ARRIVAL, 11, 3, 1, 0, [1e-4], np.array([1.0, 2.0]))
    while batch.read(box) is None:
        pass
    arrivals = batch.arrivals()
    assert arrivals is not None
    assert arrivals.workers.tolist() == [4, 5, 7]
    assert arrivals.results.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert arrivals.seconds == [[1e-4], [1e-4, 1e-4], [2e-4]]
    assert arrivals.spent == [1e-4, 2e-4, 2e-4]
    assert all(5e-4 < overhead < 1.0 for overhead in arrivals.overheads)

    batch = filled_batch(box, [1e-4, 1e-4])
    box.send(0, channel.FAILED, 11, payload=np.frombuffer(b"why", np.uint8))
    while (found := batch.read(box)) is None:
        pass
    assert not found
    assert [(m.order, m.tasks, m.payload.tolist()) for m in batch.messages()] == [
        (13, 1, [5.0, 6.0]),
        (12, 2, [3.0, 4.0]),
    ]
    assert read(box).payload.tobytes() == b"why"

    batch = filled_batch(box, [1e-4, 1e-4])
    box.send(0, channel.ARRIVAL, 11, 3, 2, 0, [1e-4, 1e-4], np.array([1.0, 2.0]))  # one task was ordered
    while (found := batch.read(box)) is None:
        pass
    assert not found
    assert read(box).seconds == [1e-4, 1e-4]

    for seconds, result in (
        ([-1.0, 1.0], 1.0),
        ([0.0, 9.0], 1.0),
        ([0.0, 0.0], np.nan),
        ([0.0, 0.0], np.inf),
    ):
        batch = filled_batch(box, seconds)
        box.send(0, channel.ARRIVAL, 11, 3, 1, 0, [1e-4], np.array([1.0, result]))
        while batch.left:
            batch.read(box)
        assert batch.arrivals() is None, (seconds, result)
        assert len(batch.messages()) == 3
    box.close()


def send_to_the_dead() -> None:
    """Send a message that cannot be sent before somebody receives it."""
    large: Array = np.ones(1_000_000)
    for dead in ((), (0,)):
        box = channel.Channel(MPI.COMM_SELF, 0, large, dead=dead)
        box.send(0, channel.ARRIVAL, 7, payload=large)
        assert box.sending() == (not dead)
        assert read(box).payload.tolist() == large.tolist()
        box.close()


send_messages()
send_batches()
send_to_the_dead()
print("all arrived")
