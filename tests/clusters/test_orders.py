"""The orders of real workers, as far as they need no worker."""

import time
from typing import Any

import numpy as np
import pytest

from mpi_ata.clusters.orders import Order, Orders
from mpi_ata.clusters.wire import Wire

WITHIN = 0.5  # seconds that this process may lose between two lines


def stopping_since(seconds: float) -> Orders:
    """Orders of which worker 0 has not confirmed a stop."""
    nobody: Any = None  # nothing is sent
    orders, now = Orders(nobody, None, Wire(np.zeros(1), 0)), time.perf_counter()
    orders.stopping[0] = order = Order(1, np.zeros(1), 1, 1, False, 1)
    order.sent = order.latest = order.stopped = now - seconds
    return orders


def long(worker: int, seconds: float) -> bool:
    return seconds > 100.0


def test_the_time_on_a_stopped_task_is_reported_as_it_passes() -> None:
    orders = stopping_since(20.0)
    assert orders.overruns(long)[0] == pytest.approx(20.0, abs=WITHIN)
    assert orders.overruns(long)[0] == pytest.approx(0.0, abs=WITHIN)


def test_what_was_reported_of_a_worker_that_hangs_is_taken_back_and_not_counted_again() -> None:
    orders = stopping_since(20.0)
    reported = orders.overruns(long)[0]
    orders.stopping[0].stopped -= 1000.0
    assert orders.overruns(long)[0] == -reported
    orders.stopping[0].stopped -= 1000.0
    assert orders.overruns(long)[0] == 0.0


@pytest.mark.parametrize(("seconds", "counted"), [(20.0, 30.0), (2000.0, 0.0)])
def test_when_a_stop_is_confirmed_the_worker_has_the_last_word_unless_it_was_hanging(
    seconds: float, counted: float
) -> None:
    orders = stopping_since(seconds)
    before = orders.overruns(long)[0]
    orders.account_unused(0, 30.0)
    orders.confirm_stop(0)
    assert before + orders.overruns(long)[0] == pytest.approx(counted)
