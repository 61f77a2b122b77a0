"""Workers that die, hang, crawl, fail and return garbage on real ranks: the run continues, and is right."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mpi_ata.launch import find_mpirun
from mpi_ata.launch.mpirun import fault_tolerance
from tests.faults.chaos import disturbed
from tests.faults.checks import check_point, check_result, outlives_deaths, summary
from tests.faults.disturbance import Part, Scene
from tests.faults.plan import DEATHS, FAILURES, GARBAGE, NOBODY, Fault, Plan, drawn
from tests.faults.scene import record_of
from tests.mpi.starting import COMMAND, finished, rank_pids, ranks_of, started
from tests.mpi.test_interrupted_on_ranks import TIMED, wait_for

SURVIVES = pytest.mark.skipif(not outlives_deaths(), reason="this MPI ends all ranks when one has died")
ENDS = pytest.mark.skipif(outlives_deaths(), reason="this MPI lets ranks outlive others")
SLOW = pytest.mark.slow
LONG = [SLOW, pytest.mark.every_mpi]
ENDED = "its process has ended: it was killed, crashed, exited or ran out of memory"


def scene_of(*faults: Fault, workers: int = 4, rounds: int = 40, way: str = "sgd uta") -> Scene:
    """Return a run with these faults."""
    return Scene(Path.cwd(), Plan(1, workers, rounds, way, 12, 10, faults))


def events_of(scene: Scene) -> set[tuple[int, str]]:
    """Return which kinds of events a run has recorded of which workers."""
    return {(event.worker, event.kind) for event in record_of(scene.out).events}


@pytest.mark.parametrize(
    "seed", [pytest.param(1, marks=LONG), *(pytest.param(seed, marks=SLOW) for seed in range(2, 5))]
)
def test_whatever_happens_to_its_workers_a_run_comes_to_the_right_result(seed: int) -> None:
    plan = drawn(seed, deaths=3 if outlives_deaths() else 1, ends=seed % 2, farm=seed == 4)
    assert disturbed(plan).total() >= 18  # the others were due after the last task of their worker


@SURVIVES
def test_a_worker_may_die_in_any_way_and_is_named() -> None:
    deaths = [Fault(worker, worker, 4 * worker, kind) for worker, kind in enumerate(DEATHS, start=1)]
    scene = scene_of(*deaths, workers=len(deaths) + 1)
    part = scene.part()
    assert part.code == 0, part.err
    check_result(scene, summary(part))
    for worker in range(1, len(deaths) + 1):
        assert f"lost worker {worker} (host " in part.err
    assert part.err.count(ENDED) == len(deaths)
    assert "Traceback" not in part.err


@ENDS
@TIMED  # on a busy machine the MPI may end the manager before it has noticed who died
@pytest.mark.parametrize(
    "kind", ["kill", *(pytest.param(kind, marks=SLOW) for kind in DEATHS if kind != "kill")]
)
def test_where_the_mpi_ends_all_ranks_one_sentence_names_the_worker_and_the_run_is_resumed(kind: str) -> None:
    scene = scene_of(Fault(0, 2, 15, kind))
    part = scene.part()
    if part.code == 1:
        assert "Error: worker 2 (host " in part.err
        rest = "has died, and this MPI has ended all ranks; what it saved is resumed by --resume"
        assert rest in part.err
    else:  # Open MPI 4 gives the manager time to save, or even to finish
        assert part.code in (0, 85)
        assert "lost worker 2 (host " in part.err
    if part.code:
        part = scene.part("--resume")
    assert part.code == 0, part.err
    check_result(scene, summary(part))


def test_tasks_that_fail_or_return_garbage_are_done_by_others() -> None:
    kinds = FAILURES | GARBAGE
    scene = scene_of(
        *(Fault(number, number % 3 + 1, 3 * number + 2, kind) for number, kind in enumerate(kinds))
    )
    part = scene.part()
    assert part.code == 0, part.err
    check_result(scene, summary(part))
    assert len(scene.fired()) == len(kinds)
    assert {(fault.worker, kinds[fault.kind]) for fault in scene.fired()} <= events_of(scene)


def test_when_the_manager_is_killed_all_ranks_end_whatever_they_are_doing() -> None:
    busy = [
        Fault(number, number + 1, 12, kind, math.inf) for number, kind in enumerate(("gil", "stop", "hang"))
    ]
    scene = scene_of(*busy)
    with started(scene.command(), scene.folder) as process:
        wait_for(lambda: len(scene.fired()) == len(busy), process)
        scene.watch_shared_memory()
        os.kill(rank_pids(str(scene.job))[0], signal.SIGKILL)
        began = time.monotonic()
        _, err = process.communicate(timeout=30)
        scene.check_nothing_left()
        assert time.monotonic() - began < 5
    assert process.returncode not in (0, 85)
    assert "what it saved is resumed by --resume" in err
    check_point(scene, record_of(scene.out))
    part = scene.part("--resume")
    assert part.code == 0, part.err
    check_result(scene, summary(part))


@SURVIVES
@SLOW
def test_a_run_goes_on_without_a_worker_that_dies_in_setup() -> None:
    scene = scene_of(Fault(0, 2, 0, "kill"))
    part = scene.part()
    assert part.code == 0, part.err
    check_result(scene, summary(part))
    assert record_of(scene.out).workers["tasks"][2] == 0


@SLOW
def test_a_run_goes_on_without_a_worker_that_hangs_in_setup() -> None:
    scene = scene_of(Fault(0, 2, 0, "hang", 600.0))
    part = scene.part()
    assert part.code == 0, part.err
    assert (2, "overdue") in events_of(scene)
    check_result(scene, summary(part))


@pytest.mark.every_mpi
@pytest.mark.slow
def test_a_run_ends_although_a_worker_is_stopped_for_good() -> None:
    scene = scene_of(Fault(0, 2, 10, "stop", math.inf))
    part = scene.part()
    assert part.code == 0, part.err
    assert (2, "overdue") in events_of(scene)
    check_result(scene, summary(part))
    assert summary(part)["tasks_lost"] == 1


@pytest.mark.slow
def test_a_worker_that_hangs_at_its_exit_is_ended_also_if_others_were_killed() -> None:
    scene = scene_of(
        Fault(0, 1, 5, "hang-at-exit"),
        Fault(1, 2, 8, "stop", seconds=1e9),
        Fault(2, NOBODY, 10, "terminate", outside=True),
    )
    part = scene.part()  # which checks that no process is left
    assert part.code == 85, part.err


HALF_SENT = """
import signal
from mpi_ata.clusters.mpi import buffers, channel

def share_nothing(name, create):
    raise OSError("as if the ranks were on several nodes")

buffers.shared_file = share_nothing
sent, isend = [], channel.Channel.isend

def isend_half(self, part, to, tag=channel.MESSAGE):
    isend(self, part, to, tag)
    sent.append(tag)
    half = tag == channel.MESSAGE and channel.HEADER.unpack_from(part)[1] == channel.ARRIVAL
    if half and len(sent) > 20 and self._rank == 2:
        os.kill(os.getpid(), signal.{signal})

channel.Channel.isend = isend_half
"""


@pytest.mark.parametrize(
    ("sent", "kind"),
    [pytest.param("SIGSTOP", "overdue", marks=LONG), pytest.param("SIGKILL", "lost", marks=SURVIVES)],
)
def test_a_worker_that_stops_or_dies_in_the_middle_of_a_message_is_replaced_by_others(
    sent: str, kind: str
) -> None:
    scene = Scene(Path.cwd(), Plan(1, 4, 40, "sgd uta", 12, 2000, ()))
    with open(scene.folder / "scripted.py", "a") as file:
        file.write(HALF_SENT.format(signal=sent))
    part = scene.part()
    assert part.code == 0, part.err
    assert (1, kind) in events_of(scene)
    check_point(scene, record_of(scene.out))
    figures = summary(part)
    assert (figures["tasks_used"], figures["tasks_lost"]) == (480, 1)


ASKS_OFTEN = """
import os, resource, signal
from contextlib import suppress
from mpi_ata.clusters.mpi.library import MPI, acknowledged_losses

if MPI.COMM_WORLD.Get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
request = MPI.COMM_WORLD.Irecv(bytearray(1), 1)
while acknowledged_losses(MPI.COMM_WORLD) != [1]:
    with suppress(MPI.Exception):
        request.Test()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(50_000):
    acknowledged_losses(MPI.COMM_WORLD)
print("grown by", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
os._exit(0)
"""


@SURVIVES
def test_asking_who_has_died_takes_no_memory() -> None:
    mpirun, script = find_mpirun(), Path("asks.py")
    script.write_text(ASKS_OFTEN)
    done = finished([mpirun, *fault_tolerance(mpirun), "-n", "2", sys.executable, str(script)])
    assert int(done.stdout.split()[-1]) < 1000, "kB: a group that is not freed takes more than 100 bytes"


NO_LIFELINE = """
from mpi_ata.clusters.mpi import liveness

def refuse(address):
    raise OSError("as if a firewall were in between")

liveness.connect = refuse
"""


@SURVIVES
def test_workers_that_cannot_reach_the_manager_by_tcp_end_with_it_too() -> None:
    scene = scene_of()
    with open(scene.folder / "scripted.py", "a") as file:
        file.write(NO_LIFELINE)
    mpirun = find_mpirun()
    with started([mpirun, *fault_tolerance(mpirun), "-n", "5", *scene.command()], scene.folder) as process:
        wait_for(lambda: scene.round() > 5, process)
        os.kill(rank_pids(str(scene.job))[0], signal.SIGKILL)
        wait_for(lambda: not ranks_of(str(scene.job)), seconds=20)
        _, err = process.communicate(timeout=20)
    assert "cannot reach the manager over TCP" in err


@SURVIVES
@pytest.mark.every_mpi
@pytest.mark.slow
def test_a_run_that_has_lost_a_worker_can_be_interrupted_and_resumed() -> None:
    scene = scene_of(Fault(0, 2, 5, "kill"), Fault(1, NOBODY, 20, "terminate", outside=True))
    part = scene.part()
    assert part.code == 85, part.err
    record = record_of(scene.out)
    check_point(scene, record)
    assert (2, "lost") in events_of(scene)
    part = scene.part("--resume")
    assert part.code == 0, part.err
    check_result(scene, summary(part))
    assert np.all(record_of(scene.out).workers["tasks"] >= record.workers["tasks"])
    assert record_of(scene.out).workers["tasks"][2] > record.workers["tasks"][2]  # it is back


@TIMED
@SLOW
def test_where_workers_own_their_data_the_run_is_saved_and_names_the_one_that_died() -> None:
    scene = scene_of(Fault(0, 2, 15, "kill"), way="owned")
    part = scene.part()
    assert part.code == 1
    assert part.err.count("Error: worker 2 (host ") == 1
    assert "Traceback" not in part.err
    record = record_of(scene.out)
    assert int(record.method["k"]) in ((14,) if outlives_deaths() else (10, 14))  # its MPI may be faster
    check_point(scene, record)
    part = scene.part("--resume")
    assert part.code == 0, part.err
    check_point(scene, record_of(scene.out))


@SLOW
@pytest.mark.parametrize("whom", ["manager", "everyone"])
def test_nobody_is_suspected_because_the_whole_run_or_its_manager_was_suspended(whom: str) -> None:
    scene = scene_of(rounds=300)
    with started(scene.command(), scene.folder) as process:
        wait_for(lambda: scene.round() > 30, process)
        ranks = rank_pids(str(scene.job))
        pids = [ranks[0]] if whom == "manager" else list(ranks.values())
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(5)  # longer than a deadline
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert not {kind for _, kind in events_of(scene)} & {"overdue", "lost"}
    check_result(scene, summary(Part(0, out, err)))


def test_a_comparison_ends_with_one_sentence_when_a_worker_dies() -> None:
    scene = scene_of(Fault(0, 2, 5, "kill"))
    done = finished([str(COMMAND), "compare", str(scene.job), "--allocators", "uta,ata-empirical"])
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Error: ") == 1
    wait_for(lambda: not ranks_of(str(scene.job)), seconds=5)
