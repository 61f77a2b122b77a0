"""The programs in docs/tasks.md run as they are printed there."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "tasks.md"
PROBLEM, LOOP, FARM = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text())
(JOB,) = re.findall(r"(?s)```toml\n(.*?)```", PAGE.read_text())


def output_of(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_runs_and_estimates_pi(tmp_path: Path) -> None:
    (tmp_path / "my_problem.py").write_text(PROBLEM)
    (tmp_path / "job.toml").write_text(JOB + '\n[times]\nlaw = "sqrt"\n')
    found = re.search(
        r"(?m)^pi +([\d.]+)$", output_of(tmp_path, "-m", "mpi_ata", "run", "job.toml", "--virtual")
    )
    # The standard error of 4 times a share of 100 x 20 x 10,000 points is 0.0004.
    assert found is not None
    assert abs(float(found[1]) - 3.14159) < 0.002


def test_the_loop_runs_and_estimates_pi(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(PROBLEM + LOOP)
    # Of 10 x 8 x 10,000 points it is 0.0018.
    assert abs(float(output_of(tmp_path, "loop.py")) - 3.14159) < 0.009


def test_the_farm_prints_its_results_in_order(tmp_path: Path) -> None:
    (tmp_path / "farm.py").write_text(FARM)
    assert output_of(tmp_path, "farm.py").split() == ["10", "40", "90"]
