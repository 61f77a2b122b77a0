"""Runs on real ranks, to which everything happens at once: each must come to the right result.

    python -m tests.faults.chaos 1000 5         so many faults, with plans drawn from this seed on

Each run has a seed of its own, which is part of every complaint; `python -m tests.faults.chaos 1 SEED`
repeats it.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from tests.faults.checks import check_early_end, check_result, outlives_deaths, summary
from tests.faults.disturbance import Scene
from tests.faults.plan import Plan, drawn

LEFT = ("mpi_ata-*", "mpich_shm*", "ucx_shm*", "sm_segment*", "vader_segment*", "hydra_*", "ompi.*", "prte*")
OTHERS_SECONDS = 60.0


def disturbed(plan: Plan) -> Counter[str]:
    """Run a plan to its end, however often it has to be resumed, and check all; the faults by kind."""
    with TemporaryDirectory(prefix="chaos-") as name:
        scene = Scene(Path(name).resolve(), plan)
        while (part := scene.part("--resume")).code != 0:
            check_early_end(scene, part)
        if plan.is_farm:
            assert "all items" in part.out, scene.told("a farm without its last words")
        else:
            check_result(scene, summary(part))
        return Counter(fault.kind for fault in scene.fired())


def left_behind() -> set[str]:
    """Return what MPI libraries and this package have in shared memory and among temporary files."""
    folders = [Path("/dev/shm"), Path(gettempdir())]  # noqa: S108
    return {str(path) for folder in folders for name in LEFT for path in folder.glob(name)}


def check_nothing_left(new: set[str]) -> None:
    """Check that these files vanish: those that exist are of others who use MPI here at the same time."""
    until = time.monotonic() + OTHERS_SECONDS
    while left := [name for name in new if Path(name).exists()]:
        assert time.monotonic() < until, left
        time.sleep(1.0)


def soak(count: int, seed: int) -> Counter[str]:
    """Let at least so many faults happen, in as many runs as that takes; nothing is left behind."""
    faults: Counter[str] = Counter()
    before = left_behind()
    while faults.total() < count:
        plan = drawn(seed, deaths=3 if outlives_deaths() else 1, ends=seed % 2, farm=seed % 4 == 0)
        began, found = time.monotonic(), disturbed(plan)
        took = time.monotonic() - began
        print(f"seed {seed}: {plan.way}, {plan.exchange}: {found.total()} faults in {took:.0f} s", flush=True)
        faults += found
        seed += 1
    check_nothing_left(left_behind() - before)
    return faults


if __name__ == "__main__":
    print(json.dumps(soak(int(sys.argv[1]), int(sys.argv[2]))))
