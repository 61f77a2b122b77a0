"""What mpi-ata new writes runs as it is."""

import json

from tests.mpi.starting import COMMAND, finished


def test_a_new_job_runs_and_reaches_its_loss() -> None:
    assert finished([str(COMMAND), "new", "my_job"]).returncode == 0
    done = finished([str(COMMAND), "run", "my_job.toml", "--json"])
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["loss"] < 0.006
    assert summary["tasks_used"] == 8 * summary["rounds"]
