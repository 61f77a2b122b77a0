"""What an MPI library leaves in shared memory is found and removed, and nothing else."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.launch.mpirun import FOLDER, remove_segments, segments_below

pytestmark = pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="there is no shared memory in files")
HOLDING = """
import mmap, sys
files = [open(path, "r+b") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 0) for file in files]
print("held", flush=True)
sys.stdin.read()
"""


def test_only_files_that_ranks_of_an_mpi_have_open_are_removed() -> None:
    names = [f"{name}{os.getpid()}" for name in ("mpich_shm_test-", "sm_segment.test-", "data-of-a-user-")]
    files = [Path(FOLDER) / name for name in names]
    unused = Path(FOLDER) / f"mpich_shm_unused-{os.getpid()}"
    for path in (*files, unused):
        path.write_bytes(bytes(mmap.PAGESIZE))
    try:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", HOLDING, *map(str, files)]
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            segments = segments_below(os.getpid())
            process.communicate(timeout=20)
        assert set(files[:2]) == {path for path in segments if str(os.getpid()) in path.name}
        remove_segments(set(files[:2]))
        assert [path.exists() for path in (*files, unused)] == [False, False, True, True]
    finally:
        for path in (*files, unused):
            path.unlink(missing_ok=True)
