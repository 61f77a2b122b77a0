"""How far a run is can be read without reading the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.driver.plan import OutputOptions
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.progress import Progress, is_finished, list_runs, read_progress
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from tests.driver.driven import driven
from tests.faults.scene import saved_again, written
from tests.marks import slow

OUT = Path("run.h5")


def saved(tmp_path: Path, rounds: int = 12) -> None:
    driven(written(tmp_path / "job.toml", rounds=rounds), output=OutputOptions(OUT))


def bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_progress_says_what_the_record_says_and_nothing_before_the_first_save(tmp_path: Path) -> None:
    assert read_progress(OUT) == Progress()
    saved(tmp_path)
    record, now = load_record(RunFile(OUT))[0], read_progress(OUT)
    assert (now.finished, now.rounds, now.limit, now.trouble) == (True, 12, 12, "")
    assert now.elapsed == record.summary["elapsed"]
    assert now.worker_time == record.summary["worker_time"]
    assert now.saved == OUT.stat().st_mtime


def test_reading_the_progress_of_a_large_run_reads_little_of_its_file(tmp_path: Path) -> None:
    saved(tmp_path)
    attributes, groups = to_tree(load_record(RunFile(OUT))[0])
    groups["method"]["x"] = np.zeros(4_000_000)
    file = RunFile(Path("large.h5"))
    file.save(attributes, groups)
    read_progress(file.path)  # imports
    before = bytes_read()
    now = read_progress(file.path)
    assert now.rounds == 12
    assert bytes_read() - before < 100_000 < file.path.stat().st_size / 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", np.inf),
        ("elapsed", "long"),
        ("settings", np.zeros((1, 0), "S1")),
        ("settings", np.arange(3)),
        ("text", np.array(["a = " + "[" * 10_000], "S")),
    ],
)
def test_contents_that_no_run_writes_are_damage_in_a_list_of_runs(
    tmp_path: Path, name: str, value: Any
) -> None:
    saved(tmp_path)
    attributes, groups = to_tree(load_record(RunFile(OUT))[0])
    (attributes if name in attributes else groups["job"])[name] = value  # type: ignore[index]
    (tmp_path / "other").mkdir()
    RunFile(tmp_path / "other" / "forged.h5").save(attributes, groups)
    assert [run.state for run in list_runs(tmp_path / "other")] == ["damaged"]


def test_a_damaged_file_is_reported_and_the_save_before_it_counts(tmp_path: Path) -> None:
    saved(tmp_path)
    saved_again(OUT)
    OUT.write_bytes(OUT.read_bytes()[:1000])
    now = read_progress(OUT)
    assert now.trouble.startswith("run.h5: is truncated")
    assert now.saved == Path("run.h5.previous").stat().st_mtime
    assert now.limit == 12
    Path("run.h5.previous").unlink()
    now = read_progress(OUT)
    assert (now.rounds, now.saved) == (0, None)
    assert now.trouble.startswith("run.h5: is truncated")


@pytest.mark.parametrize("where", [0.5, *slow(0.2, 0.9)])
def test_no_flipped_byte_crashes_it_or_changes_a_number(tmp_path: Path, where: float) -> None:
    saved(tmp_path)
    whole, right = OUT.read_bytes(), read_progress(OUT)
    step = max(1, len(whole) // 400)
    for position in range(int(where * step), len(whole), step):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        OUT.write_bytes(damaged)
        now = read_progress(OUT)
        if not now.trouble:
            found = now.rounds, now.elapsed, now.worker_time
            assert found == (right.rounds, right.elapsed, right.worker_time)


def test_a_finished_run_counts_as_finished_only_where_its_whole_file_is_intact(tmp_path: Path) -> None:
    saved(tmp_path)
    assert is_finished(OUT)
    whole = OUT.read_bytes()
    place = whole.index(load_record(RunFile(OUT))[0].method["x"].tobytes())
    OUT.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    assert read_progress(OUT).finished, "the summary alone does not show it"
    assert not is_finished(OUT)
    assert "checksum does not match" in read_progress(OUT, verified=True).trouble
