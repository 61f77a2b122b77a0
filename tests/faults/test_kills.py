"""No kill breaks a run file; `make soak` kills many more."""

import json
import os
import subprocess
import sys

import pytest

from tests.faults.scene import ROOT

pytestmark = pytest.mark.slow


def killed(*arguments: str) -> dict[str, int]:
    """How often something was killed; a promise that was broken ends the whole with an error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.kills", *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return count


def test_a_kill_at_any_step_of_a_save_breaks_nothing() -> None:
    count = killed("steps")
    assert count["kills"] >= 70
    assert count["at the start"] < count["kills"] / 2


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_kill_at_any_moment_breaks_nothing(seed: str) -> None:
    count = killed("75", seed)
    assert count["kills"] >= 75
    assert count["at the start"] < count["kills"] / 2
