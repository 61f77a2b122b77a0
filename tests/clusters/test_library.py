"""Loading MPI leaves the process as it was."""

import os
import subprocess
import sys

from mpi_ata.launch.environment import FAULT_TOLERANT

SCRIPT = """
import signal
signal.signal(signal.SIGALRM, print)
signal.setitimer(signal.ITIMER_REAL, 100, 7)
import mpi_ata.clusters.mpi.library
left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
assert 50 < left <= 100 and interval == 7, (left, interval)
assert signal.getsignal(signal.SIGALRM) is print
"""


def test_an_alarm_of_the_script_survives_loading_mpi() -> None:
    environment = os.environ | {FAULT_TOLERANT: "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
