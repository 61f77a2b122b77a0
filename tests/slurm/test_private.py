"""The private Slurm of the tests leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.conftest import running
from tests.slurm.private import NODES, ROOT, PrivateSlurm, until

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


@pytest.mark.cluster
def test_a_shell_in_a_step_of_srun_needs_overlap_as_doctor_says(slurm: PrivateSlurm) -> None:
    inner = "timeout 5 srun --ntasks=1 true; echo $?"
    assert slurm.ask("srun", "--ntasks=1", "sh", "-c", inner).endswith("124")  # it waits for itself
    assert slurm.ask("srun", "--ntasks=1", "sh", "-c", inner, SLURM_OVERLAP="1").endswith("0")
    asked = (sys.executable, "-c", "from mpi_ata.doctor.checks import slurm; print(slurm().remedy)")
    assert "set SLURM_OVERLAP=1" in slurm.ask("srun", "--ntasks=1", *asked)
    assert slurm.ask("srun", "--ntasks=1", *asked, SLURM_OVERLAP="1") == "None"
