"""Run files of every released format can be read, and are what their documentation says.

tests/formats/1.h5 is of
mpi-ata run jobs/asgd.toml --virtual --set stop.rounds=30 --workers 4 --out 1.h5
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata.keeper import load
from mpi_ata.record import told
from mpi_ata.store import FORMAT, RunFile

FORMATS = sorted(Path(__file__).with_name("formats").glob("*.h5"))
DOCUMENT = Path(__file__).parent.parent / "docs" / "run-file.md"


def test_there_is_a_file_of_each_format() -> None:
    assert [path.stem for path in FORMATS] == [str(number) for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_a_file_of_any_format_is_read(path: Path) -> None:
    record, complaint = load(RunFile(path))
    found = told(record)
    assert complaint == ""
    assert (found["rounds"], found["workers"], found["tasks_used"]) == (30, 4, 690)
    assert record.method["x"].shape == (100,)


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_the_example_of_the_documentation_reads_it(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "run.h5")
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["30", "30"]


@pytest.mark.parametrize("path", FORMATS[-1:], ids=lambda path: path.name)
def test_every_group_is_documented(path: Path) -> None:
    _, groups, _ = RunFile(path).load()
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(groups)
