"""What every cluster promises where tasks cannot be stopped, in the scene of the contract."""

import numpy as np
import pytest

from mpi_ata.clusters import Cluster
from tests.clusters.contract import EVERYONE, at

TWO = np.array([2])


def check_a_stopped_task_runs_to_its_end_before_the_next_order_begins(c: Cluster, unit: float) -> None:
    began = c.now()
    c.start(EVERYONE, at(0.0), 1)
    assert c.wait().worker == 0
    assert c.stop(EVERYONE)[2] == pytest.approx(unit, rel=0.5), "so long it was at its task when stopped"
    c.start(TWO, at(0.0), 2)
    assert c.wait().worker == 2
    assert c.now() - began == pytest.approx(10 * unit, rel=0.1)
    assert c.ledger.stopped.tolist() == [0, 1, 1]
    assert c.ledger.stopped_time == pytest.approx([0, 2 * unit, 5 * unit], rel=0.2)


def check_an_order_stopped_before_it_began_costs_nothing(c: Cluster, unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1)
    assert c.wait().worker == 0
    c.stop(EVERYONE)
    c.start(np.array([0, 2]), at(0.0), 2)
    assert c.wait().worker == 0
    assert c.stop(EVERYONE).tolist() == [0, 0, 0]
    c.start(TWO, at(0.0), 3)
    assert c.wait().worker == 2
    assert c.ledger.stopped.tolist() == [0, 1, 1]


def check_an_order_together_ends_with_the_task_that_it_is_at(c: Cluster, unit: float) -> None:
    began = c.now()
    c.start(TWO, at(0.0), 1, 3, together=True)
    c.start(np.array([1]), at(0.0), 1)
    assert c.wait().worker == 1
    c.stop(TWO)
    c.start(TWO, at(0.0), 2)
    assert c.wait().worker == 2
    assert c.now() - began == pytest.approx(10 * unit, rel=0.1)
    assert c.ledger.stopped.tolist() == [0, 0, 1]


def check_the_time_after_a_stop_is_an_overrun(c: Cluster, unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1)
    assert c.wait().worker == 0
    c.stop(EVERYONE)
    c.start(np.array([0]), at(0.0), 2)
    assert c.wait().worker == 0
    first = c.overruns()
    assert first == pytest.approx({1: unit, 2: unit}, rel=0.5), "worker 2 is still at it"
    c.start(TWO, at(0.0), 3)
    assert c.wait().worker == 2
    assert first[2] + c.overruns()[2] == pytest.approx(4 * unit, rel=0.2)
    assert not c.overruns()


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
