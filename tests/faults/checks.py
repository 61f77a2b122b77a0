"""What must be true of a run, whatever happened to its workers."""

import json
from collections import Counter
from typing import Any

import numpy as np

from mpi_ata.launch import find_mpirun
from mpi_ata.launch.mpirun import fault_tolerance
from mpi_ata.runfile.schema import Record
from tests.faults.disturbance import Part, Scene
from tests.faults.plan import DEATHS, EVENTS
from tests.faults.scene import record_of


def outlives_deaths() -> bool:
    """Return whether runs go on without a worker that has died, with this MPI and our launcher."""
    return bool(fault_tolerance(find_mpirun()))


def summary(part: Part) -> dict[str, Any]:
    """Return the result that a part of a run has printed; MPICH's launcher may print more after it."""
    line = next(line for line in reversed(part.out.splitlines()) if line.startswith("{"))
    figures: dict[str, Any] = json.loads(line)
    return figures


def check_early_end(scene: Scene, part: Part) -> None:
    """Check that a run ended early only for a reason, with the documented exit code and one sentence."""
    fired = [fault.kind for fault in scene.fired()]
    reasons = fired.count("terminate") + (0 if outlives_deaths() else sum(kind in DEATHS for kind in fired))
    assert len(scene.parts) <= reasons, scene.told(f"it ended early, with exit code {part.code}")
    assert part.code in (85, 1), scene.told(f"exit code {part.code}")
    assert "Traceback" not in part.err, scene.told("a traceback")
    if part.code == 1:  # the worker is named unless the MPI was faster than the manager
        assert part.err.count("what it saved is resumed by --resume") == 1, scene.told("no way out")
    if scene.out.exists():
        check_point(scene, record_of(scene.out))


def check_point(scene: Scene, record: Record) -> None:
    """Check that a run is where it must be after so many rounds: bit for bit."""
    expected = scene.plan.point_after(int(record.method["k"]))
    np.testing.assert_array_equal(record.method["x"], expected, scene.told("a wrong point"))


def check_result(scene: Scene, figures: dict[str, Any]) -> None:
    """Check the result of a run, its accounts and its events."""
    plan, record = scene.plan, record_of(scene.out)
    assert (figures["rounds"], figures["finished"]) == (plan.rounds, True), scene.told(str(figures))
    check_point(scene, record)
    used, wasted, lost = (figures[f"tasks_{name}"] for name in ("used", "wasted", "lost"))
    assert used == plan.rounds * plan.budget, scene.told(str(figures))
    assert figures["tasks_started"] == used + wasted + lost, scene.told(str(figures))
    assert record.workers["tasks"].sum() == used, scene.told(str(record.workers["tasks"]))
    if not any(event.kind == "resumed" for event in record.events):
        check_accounts(scene, record, figures)
        check_events(scene, record)


def check_accounts(scene: Scene, record: Record, figures: dict[str, Any]) -> None:
    """Compare the accounts of an uninterrupted run with what the workers themselves have counted.

    A dead worker has lost one task, but it may have begun none when it was killed from outside, or more where
    an order comes back as a whole.  Orders that are open after the last round are in the totals alone.
    """
    plan = scene.plan
    dead = [fault for fault in scene.fired() if fault.kind in DEATHS]
    begun = np.array([scene.begun(worker) for worker in range(plan.workers)])
    known = record.workers["tasks"] + record.cluster["undelivered"]
    uncertain = record.cluster["stopping"] + record.cluster["running"]
    uncertain[[fault.worker for fault in dead]] = 1
    told = scene.told(f"begun {begun}, known {known}, uncertain {uncertain}, {figures}")
    assert (known <= begun).all(), told
    assert (begun - known <= plan.budget * uncertain).all(), told
    assert figures["tasks_lost"] <= uncertain.sum(), told
    outside = sum(scene.is_outside(fault) for fault in dead)
    more = begun.sum() - figures["tasks_started"]
    assert -outside <= more <= plan.budget * len(dead) * plan.together, told


def check_events(scene: Scene, record: Record) -> None:
    """Check that each fault is among the events, under the name of its worker."""
    events = Counter((event.worker, event.kind) for event in record.events)
    for fault in scene.fired():
        kind = EVENTS.get(fault.kind)
        if kind is None or (kind == "overdue" and not scene.waits_for(fault)):
            continue
        assert events[fault.worker, kind], scene.told(f"{fault} is not among the events {dict(events)}")
