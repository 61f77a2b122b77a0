"""The private Slurm of the tests leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.conftest import running
from tests.slurm.private import NODES, ROOT, until

HOLDING = """
import sys, time
from pathlib import Path
from tests.slurm.private import private_slurm
with private_slurm(Path(sys.argv[1])) as cluster:
    print(cluster.ask("sbatch", "--parsable", "--nodes=2", "--wrap", "srun sleep 1000"), flush=True)
    time.sleep(1000)
"""


@pytest.mark.cluster
def test_nothing_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    command = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, process_group=0) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        until(lambda: len(cluster_processes(folder)) >= len(NODES) + 2, 20)
        time.sleep(1.0)
        os.kill(holder.pid, signal.SIGKILL)
    until(lambda: cluster_processes(folder) == [], 20, lambda: str(cluster_processes(folder)))


@pytest.mark.parametrize(
    ("ci", "end"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["at-home", "in-ci"]
)
def test_without_root_tests_are_skipped_but_fail_in_ci(
    ci: str, end: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(end, match="a private Slurm needs root"):
        next(running())


def cluster_processes(folder: Path) -> list[str]:
    """Return the processes on this machine that belong to a private Slurm in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
