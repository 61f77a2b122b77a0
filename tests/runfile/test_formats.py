"""Files of every format that was ever released can be used, and docs/run-file.md tells what is in them."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import Result

from mpi_ata import load
from mpi_ata.driver.recorder import RoundSample
from mpi_ata.runfile.schema import SHARES
from mpi_ata.runfile.store import FORMAT
from tests.cli.commands import call
from tests.faults.scene import ROOT, record_of, written

FOLDER = Path(__file__).with_name("formats")
DOCUMENT = (ROOT / "docs" / "run-file.md").read_text()


def schema(path: Path) -> dict[str, str]:
    """All that is in a file, and of which kind; lengths left out."""
    with h5py.File(path) as file:
        found = {name: file.attrs.get_id(name).dtype.kind for name in file.attrs}
        for group in file:
            for name, array in file[group].items():
                found[f"{group}/{name}"] = f"{array.dtype.kind}{array.ndim}"
    return found


def mpi_ata(*words: str | Path) -> Result:
    """Run a command in this process."""
    return call(*map(str, words))


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A copy of the collection, to work in."""
    for path in FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_file_of_any_format_is_told_of_gone_on_with_and_warm_started_from(
    collection: Path, number: int
) -> None:
    job, file = collection / f"{number}.toml", collection / f"{number}.h5"
    shown = mpi_ata("show", file, "--json")
    assert shown.exit_code == 0, shown.stderr
    told = json.loads(shown.stdout.splitlines()[-1])
    assert (told["rounds"], told["workers"], told["finished"]) == (30, 3, True)
    loaded = load(file)
    assert (loaded.summary["rounds"], loaded.x.shape, len(loaded.workers)) == (30, (3,), 3)
    done = mpi_ata("run", job, "--virtual", "--out", "new.h5", "--warm-start", file)
    assert done.exit_code == 0, done.stderr
    assert "3 of 3 workers recognised" in done.stderr
    done = mpi_ata("run", job, "--virtual", "--out", file, "--resume", "--set", "stop.rounds=35")
    assert done.exit_code == 0, done.stderr
    assert "resumed at round 30 on 3 workers" in done.stderr
    assert record_of(file).summary["rounds"] == 35


def test_a_new_file_has_all_that_the_newest_one_of_the_collection_has(collection: Path) -> None:
    # Where this fails a column is gone or of another kind: see tests/runfile/formats/README.md.
    for path in collection.glob("*.h5"):
        path.unlink()
    commands = re.findall(r"(?m)^\$ mpi-ata (.*)$", (FOLDER / "README.md").read_text())
    for command in commands:
        assert mpi_ata(*shlex.split(command)).exit_code == 0
    name = f"{FORMAT}.h5"
    assert schema(FOLDER / name).items() <= schema(collection / name).items()


def documented(heading: str) -> set[str]:
    """The names in the table below a heading of the document."""
    section = re.split(rf"(?m)^## {re.escape(heading)}\n", DOCUMENT)[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| (`[^|]*) \|", section)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    job = written(folder / "job.toml", "asgd ata-empirical")
    assert mpi_ata("run", job, "--virtual", "--out", folder / "RUN.h5").exit_code == 0
    return folder / "RUN.h5"


def test_each_column_and_attribute_is_documented(run: Path) -> None:
    inherited = set(re.findall(r"`([^`]+)`", DOCUMENT.split("## /prior")[1].split("\n## ")[0]))
    on_ranks = {*SHARES, "billed", "slurm_jobs", "failure"}
    with h5py.File(run) as file:
        for group in ("job", "workers", "trace", "events"):
            assert documented(f"/{group}") == set(file[group])
        assert documented("Attributes of the file") == {*file.attrs, *on_ranks}
        assert set(file["prior"]) <= inherited
    assert documented("/rounds") == set(RoundSample().state())


def test_the_example_of_the_document_runs(run: Path) -> None:
    pytest.importorskip("pandas")
    shutil.copy(run, "RUN.h5")
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    rounds, gap = printed_by(example).split()
    assert int(rounds) == 40
    assert 0 < float(gap) < 1  # the least


def printed_by(example: str) -> str:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_of(path: Path) -> tuple[dict[str, Any], str]:
    """What show tells, as JSON and as text."""
    found: dict[str, Any] = json.loads(mpi_ata("show", path, "--json").stdout.splitlines()[-1])
    return found, mpi_ata("show", path).stdout


def test_show_tells_job_progress_totals_events_and_workers(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", "sgd gta", rounds=20)
    assert mpi_ata("run", job, "--virtual", "--out", "a.h5", "--workers", "4").exit_code == 0
    found, text = told_of(tmp_path / "a.h5")
    assert (found["job"], found["settings"]) == (job.read_text(), ["run.workers=4"])
    assert (found["rounds"], found["finished"], found["reason"]) == (20, True, "20 rounds")
    assert found["tasks_started"] == found["tasks_used"] + found["tasks_wasted"] + found["tasks_lost"]
    assert (found["tasks_used"], found["billed"]) == (140, None)
    assert [event["kind"] for event in found["events"]] == ["started", "ended"]
    workers = found["workers_table"]
    assert [(worker["host"], worker["slot"]) for worker in workers] == [("virtual", i) for i in range(4)]
    assert sum(worker["tasks"] for worker in workers) == 140
    assert sum(worker["share"] for worker in workers) == pytest.approx(1)
    means = [worker["mean"] for worker in workers]
    assert means == sorted(means)  # worker i takes about sqrt(i + 1) as long
    assert all(worker["spread"] > 0 and worker["overhead"] == 0 for worker in workers)
    for words in ["state          finished at 20 rounds", "--set run.workers=4", job.read_text().strip()]:
        assert words in text
    (line,) = [line for line in text.splitlines() if line.startswith("3 ")]
    assert line.split()[:5] == ["3", "virtual", "3", f"{workers[3]['tasks']:,}", f"{workers[3]['mean']:.3g}"]


def test_show_tells_of_a_worker_that_did_nothing(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", "sgd ata-empirical", rounds=1, workers=200)
    assert mpi_ata("run", job, "--virtual", "--out", "a.h5").exit_code == 0
    found, text = told_of(tmp_path / "a.h5")
    idle = [worker for worker in found["workers_table"] if not worker["tasks"]]
    assert len(idle) == 193
    assert [idle[0][name] for name in ("mean", "spread", "overhead", "share")] == [None, None, None, 0]
    assert "... and 100 more" in text
    assert "200 x drawn: Sqrt" in text


def test_show_says_where_the_result_is_and_how_to_read_it(run: Path, tmp_path: Path) -> None:
    done = mpi_ata("show", run)
    assert f"the point x  10 of float64, in {run}\n" in done.stdout
    point = record_of(run).method["x"]
    for name in ("in Python", "with h5py"):
        (command,) = re.findall(rf"(?m)^{name} +(.*)$", done.stdout)
        code = f"import h5py, mpi_ata, numpy; numpy.save('x.npy', {command})"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert np.array_equal(np.load("x.npy"), point)
