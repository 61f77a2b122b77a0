"""Jobs on a real Slurm continue without a worker that dies, where the MPI allows it."""

from pathlib import Path

import pytest

from tests.slurm.site import BOTH, FOUR, Site, kinds, record

pytestmark = pytest.mark.cluster

DYING = """
import os, signal, time
import numpy as np
from pathlib import Path

class Own:
    x0 = np.ones(3)

    def gradient(self, x, task):
        time.sleep(0.02)
        if task.round >= 10 and task.worker == 1:
            {death}
        return 0.1 * x
"""


@BOTH
@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"], ids=["kill", "exit"]
)
def test_the_others_finish_a_run_whose_worker_dies(site: Site, command: Path, death: str) -> None:
    job = site.own(DYING.format(death=death))
    submitted = site.submit(job, *FOUR, "--set", "stop.rounds=60", command=command)
    assert site.wait_over(submitted["job"]) == "COMPLETED", site.story(submitted["job"])
    found = record(submitted["run"])
    assert (found.summary["rounds"], found.summary["tasks_used"]) == (60, 60 * 6)
    assert found.method["x"] == pytest.approx((1 - 0.03) ** 60)  # all tasks give the same gradient
    assert found.summary["tasks_lost"] == 1
    assert kinds(submitted["run"]).count("lost") == 1
    assert kinds(submitted["run"]).count("resumed") == 0
    host = found.identities[1].host
    assert f"lost worker 1 (host {host}, slot 0)" in site.log(submitted)
