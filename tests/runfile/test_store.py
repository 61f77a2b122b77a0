"""The run file as bytes: what is whole is read, what is not is refused, and nothing is executed."""

import ctypes
import errno
import io
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest

from mpi_ata.arrays import State
from mpi_ata.errors import DamagedError, TakenError, UsageError
from mpi_ata.runfile import lock
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.schema import texts, untexts
from mpi_ata.runfile.store import RunFile, check_writable_path, peek, read

ATTRIBUTES: dict[str, Any] = {"run": "abc", "rounds": 7, "clock": 0.1 + 0.2, "finished": True, "reason": ""}
GROUPS: dict[str, State] = {
    "method": {"x": np.array([1.5, -np.inf, np.nan]), "k": np.array(7), "small": np.zeros((2, 3), "f4")},
    "workers": {"host": texts(["a", "grüße", ""]), "busy": np.array([True, False, True])},
    "prior": {"tasks": np.zeros(0, np.int64), "host": texts([])},
    "cluster": {},
}


def sealed(image: bytes, number: int = 1) -> bytes:
    """A run file around HDF5 bytes, as docs/run-file.md describes it."""
    lines = f"mpi_ata run file\nformat {number}\nbytes {len(image)}\n".encode()
    return (lines + f"sha256 {sha256(lines + image).hexdigest()}\n".encode()).ljust(512, b"\n") + image


def hdf5(fill: Callable[[h5py.File], object]) -> bytes:
    """The bytes of an HDF5 file that somebody else made."""
    target = io.BytesIO()
    with h5py.File(target, "w") as file:
        fill(file)
    return target.getvalue()


def with_x(value: float) -> dict[str, State]:
    return GROUPS | {"method": {"x": np.array([value]), "k": np.array(1)}}


def x_of(groups: dict[str, State]) -> float:
    found: float = groups["method"]["x"].item()
    return found


@pytest.fixture
def file(tmp_path: Path) -> RunFile:
    return RunFile(tmp_path / "run.h5")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """An intact file, the only generation."""
    path = tmp_path / "whole.h5"
    RunFile(path).save(ATTRIBUTES, GROUPS)
    return path


def refusal(path: Path, kind: type[UsageError] = DamagedError) -> str:
    """What is said against a file: one sentence that begins with its name."""
    with pytest.raises(kind) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < len(str(path)) + 300
    return text


def test_what_is_saved_is_what_is_read(file: RunFile) -> None:
    file.save(ATTRIBUTES, GROUPS)
    attributes, groups, complaint = RunFile(file.path).load()
    assert attributes == ATTRIBUTES
    assert complaint == ""
    assert {group: set(arrays) for group, arrays in groups.items()} == {k: set(v) for k, v in GROUPS.items()}
    for group, arrays in GROUPS.items():
        for name, array in arrays.items():
            found = groups[group][name]
            assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert untexts(groups["workers"]["host"]) == ["a", "grüße", ""]
    assert untexts(groups["prior"]["host"]) == []


@pytest.mark.parametrize(
    ("name", "array", "fragment"),
    [
        ("z", np.zeros(3, np.complex128), "it is of complex128, but only real numbers and bytes"),
        ("z", np.array(["text"]), "it is of <U4, but"),
        ("z", np.array([None]), "it is of object, but"),
        ("z", np.zeros(1, "i8,f8"), "it is of [('f0'"),
        *(
            (name, np.zeros(3), "a name may not be empty, nor contain '/'")
            for name in ("a/b", "a\0b", "", ".")
        ),
    ],
)
def test_what_could_not_be_read_again_is_not_written(
    file: RunFile, name: str, array: Any, fragment: str
) -> None:
    file.save(ATTRIBUTES, with_x(1.0))
    with pytest.raises(UsageError) as caught:
        file.save(ATTRIBUTES, GROUPS | {"method": {name: array}})
    assert str(caught.value).startswith(f"method: {name!r} cannot be saved: ")
    assert fragment in str(caught.value)
    assert x_of(RunFile(file.path).load()[1]) == 1.0


def test_a_file_that_its_owner_made_private_stays_private_when_it_is_saved_again(file: RunFile) -> None:
    file.save(ATTRIBUTES, GROUPS)
    file.path.chmod(0o600)
    for _ in range(2):
        file.save(ATTRIBUTES, GROUPS)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.path, file.previous)] == [0o600] * 2


@pytest.mark.parametrize("value", [3, 2.5, True, [1, 2], b"bytes", np.float32(1.5), []])
def test_plain_values_in_a_state_are_kept_as_the_arrays_that_they_mean(file: RunFile, value: Any) -> None:
    file.save(ATTRIBUTES, {"method": {"value": value}})
    found = RunFile(file.path).load()[1]["method"]["value"]
    assert found.dtype == np.asarray(value).dtype
    assert found.tolist() == np.asarray(value).tolist()


def test_everybody_can_read_it_as_hdf5_and_the_seal_is_as_documented(whole: Path) -> None:
    with h5py.File(whole, "r") as file:
        assert (file["method/x"][0], file.attrs["rounds"]) == (1.5, 7)
    data = whole.read_bytes()
    assert data == sealed(data[512:])


def test_a_file_cut_off_at_any_length_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    lengths = {0, 1, 16, 17, 100, 511, 512, 513, 520, len(data) - 1}
    lengths |= set(range(0, len(data), 97))
    for length in sorted(lengths):
        whole.write_bytes(data[:length])
        text = refusal(whole)
        assert ("is empty" if length == 0 else "whole" if length < 512 else "truncated") in text


def test_a_single_flipped_bit_anywhere_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    places = [*range(130, 512), *range(512, len(data), 61), len(data) - 1]
    bits = [*range(8 * 130), *(8 * place + place % 8 for place in places)]  # every one of the first lines
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        whole.write_bytes(flipped)
        refusal(whole)


FOREIGN = {
    "png": b"\x89PNG\r\n\x1a\n" + bytes(2000),
    "zeros": b"\0" * 4096,
    "text": b"hello\n",
    "boast": b"mpi_ata run file, or so they say" * 100,
    "letters": b"mpi_ata run file\nformat x\nbytes 0\nsha256 0\n" + bytes(600),
    "digits": b"mpi_ata run file\nformat " + b"9" * 5000 + b"\n",
    "lines": b"mpi_ata run file\n" + b"\n" * 600,
    "hdf5": hdf5(lambda file: file.create_dataset("x", data=[1.0])),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_and_what_was_appended_are_refused(whole: Path, content: bytes) -> None:
    with whole.open("ab") as file:
        file.write(content)
    assert "checksum" in refusal(whole)
    whole.write_bytes(content)
    refusal(whole)


def external_storage(file: h5py.File) -> None:
    Path("secret").write_bytes(b"s" * 8)
    file.create_group("g").create_dataset("x", (1,), "f8", external=[("secret", 0, 8)])


def virtual_dataset(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((1,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (1,))
    file.create_group("g").create_virtual_dataset("x", layout)


def allocated_never(shape: tuple[int, ...]) -> Callable[[h5py.File], object]:
    """A data set that claims a shape but has no storage."""

    def fill(file: h5py.File) -> None:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
        space = h5py.h5s.create_simple(shape)
        h5py.h5d.create(file.create_group("g").id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plan)

    return fill


def many_names_for_one_array(file: h5py.File) -> None:
    group = file.create_group("g")
    group["x"] = np.zeros(5000)
    for number in range(1000):
        group[f"x{number}"] = group["x"]


def compressed_names(file: h5py.File) -> None:
    """Fill a file with a group whose names take a thousandth of their size; h5py cannot make one itself."""
    (path, *_) = re.findall(r"/\S+/libhdf5[-.]\S+", Path("/proc/self/maps").read_text())
    library, plan = ctypes.CDLL(path), h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    identity = ctypes.c_int64(plan.id)
    assert library.H5Pset_link_phase_change(identity, 0, 0) == library.H5Pset_deflate(identity, 9) == 0
    group = h5py.Group(h5py.h5g.create(file.id, b"g", gcpl=plan))
    group["x"] = 1.0
    for number in range(100):
        group[f"{'x' * 60_000}{number}"] = group["x"]


def dataset(*arguments: Any, **options: Any) -> Callable[[h5py.File], object]:
    """Fill a file with one array, /g/x."""
    return lambda file: file.create_group("g").create_dataset("x", *arguments, **options)


def entry(name: str, value: Any) -> Callable[[h5py.File], object]:
    """Fill a file with one entry of this name."""
    return lambda file: file.require_group("g").file.__setitem__(name, value)


ELSEWHERE = "array /g/x that is filtered, chunked or stored elsewhere"
NUMBERS = np.zeros(99)
HOSTILE: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "variable text": (dataset(data="text", dtype=h5py.string_dtype()), "/g/x of object, but only numbers"),
    "variable arrays": (dataset((1,), h5py.vlen_dtype(np.int64)), "array /g/x of object"),
    "references": (dataset((1,), h5py.ref_dtype), "array /g/x of object"),
    "opaque": (dataset(data=np.void(b"cos\nsystem")), "/g/x"),
    "compound": (dataset(data=np.zeros(1, [("a", "f8")])), "/g/x"),
    "complex": (dataset(data=np.zeros(1, complex)), "/g/x"),
    "no space": (dataset(data=h5py.Empty("f8")), "/g/x"),
    "external link": (entry("g/x", h5py.ExternalLink("/etc/passwd", "/")), "/g/x that is no dataset"),
    "external group": (entry("h", h5py.ExternalLink("other.h5", "/g")), "/h that is no group of its own"),
    "soft link": (entry("g/x", h5py.SoftLink("/nowhere")), "/g/x that is no dataset of its own"),
    "soft link in circles": (entry("h", h5py.SoftLink("/h")), "/h that is no group of its own"),
    "group in circles": (lambda file: file.__setitem__("g", file["/"]), "/g/g that is no dataset"),
    "nested group": (lambda file: file.create_group("g/x"), "/g/x that is no dataset"),
    "array at the top": (lambda file: file.create_dataset("x", data=[1.0]), "/x that is no group"),
    "named type": (entry("t", np.dtype("f8")), "/t that is no group"),
    "compressed": (dataset(data=NUMBERS, compression="gzip"), ELSEWHERE),
    "checksummed": (dataset(data=NUMBERS, fletcher32=True), ELSEWHERE),
    "chunked": (dataset((10,), "f8", chunks=(5,)), ELSEWHERE),
    "external storage": (external_storage, ELSEWHERE),
    "virtual": (virtual_dataset, ELSEWHERE),
    "huge": (allocated_never((10**12,)), "claims to hold arrays of 8,000,000,000,000 bytes, but can"),
    "rows without columns": (
        dataset((10**9, 0), "S1"),
        "arrays of 1,000,000,000 bytes, but can have at most",
    ),
    "many names": (many_names_for_one_array, "claims to hold arrays of 40,040,000 bytes, but can have"),
    "compressed names": (compressed_names, "has a group /g that is filtered"),
    "no HDF5": (lambda file: None, "is not readable as HDF5"),
    "text attribute": (lambda file: file.attrs.__setitem__("run", "variable"), "an attribute run"),
    "array attribute": (lambda file: file.attrs.__setitem__("run", [1, 2]), "an attribute run"),
}


@pytest.mark.parametrize(("fill", "complaint"), HOSTILE.values(), ids=HOSTILE)
def test_hdf5_with_a_true_seal_but_other_contents_is_refused(
    tmp_path: Path, fill: Callable[[h5py.File], object], complaint: str
) -> None:
    path = tmp_path / "hostile.h5"
    path.write_bytes(sealed(b"no HDF5" * 100 if "readable" in complaint else hdf5(fill)))
    assert complaint in refusal(path)


def test_a_file_with_holes_does_not_take_the_memory_that_it_claims(tmp_path: Path) -> None:
    path = tmp_path / "holes.h5"
    path.write_bytes(sealed(hdf5(dataset((10**10,), "S1"))))
    os.truncate(path, 10**11)
    with pytest.raises(DamagedError, match="10,000,000,000 bytes, but can have at most 67,108,864"):
        peek(path, "g")


def test_a_newer_format_is_refused_also_where_there_is_an_older_generation(file: RunFile) -> None:
    file.save(ATTRIBUTES, GROUPS)
    file.save(ATTRIBUTES, GROUPS)
    newer = sealed(file.path.read_bytes()[512:], number=2)
    file.path.write_bytes(newer)
    with pytest.raises(UsageError, match=r"run.h5: has format 2, but this mpi_ata knows up to 1") as caught:
        RunFile(file.path).load()
    assert not isinstance(caught.value, DamagedError)
    assert file.path.read_bytes() == newer


def test_opening_a_file_executes_nothing_of_it(tmp_path: Path) -> None:
    # A pickle that would make a file, and Python sources that would: as text, as opaque data, as names.
    gadget = b"cos\nsystem\n(S'touch executed'\ntR."
    source = b"__import__('pathlib').Path('executed').touch()"
    arrays = {"text": np.array(gadget), "texts": np.array([source]), "opaque": np.array(np.void(gadget))}
    for name, array in arrays.items():
        path = tmp_path / f"{name}.h5"
        path.write_bytes(sealed(hdf5(partial(h5py.File.create_dataset, name="g/x", data=array))))
        child = "import sys, pathlib; from mpi_ata.runfile.store import read; read(pathlib.Path(sys.argv[1]))"
        command = [sys.executable, "-c", child, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ("DamagedError" in done.stderr) == (name == "opaque")
    assert not Path("executed").exists()


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / "missing.h5", UsageError)
    assert "Is a directory" in refusal(tmp_path, UsageError)


@contextmanager
def as_nobody() -> Iterator[Path]:
    """An open folder, and no rights beyond those of everybody else, also where root runs the tests."""
    with TemporaryDirectory() as name:
        root = os.geteuid() == 0
        if root:
            os.chown(name, 65534, 65534)
            os.setresuid(65534, 65534, 0)
        try:
            yield Path(name)
        finally:
            if root:
                os.setresuid(0, 0, 0)
            Path(name).chmod(0o700)


def test_without_permission_a_file_is_not_read_nor_an_older_one_and_a_folder_refused_before_the_run() -> None:
    with as_nobody() as folder:
        file = RunFile(folder / "run.h5")
        for _ in range(2):
            file.save(ATTRIBUTES, GROUPS)
        file.path.chmod(0)
        with pytest.raises(UsageError, match="cannot be read: Permission denied"):
            RunFile(file.path).load()
        folder.chmod(0o555)
        with pytest.raises(UsageError, match="is not writable; choose another file"):
            check_writable_path(folder / "new.h5")


def test_a_bad_sector_is_damage(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1.0, 2.0):
        file.save(ATTRIBUTES, with_x(value))
    whole = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == file.path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", failing)  # no disk here has one
    _, groups, complaint = RunFile(file.path).load()
    assert x_of(groups) == 1.0
    assert "Input/output error; using run.h5.previous, the save before it" in complaint


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "gone"])
def test_where_the_newest_is_damaged_the_one_before_is_used_and_kept(file: RunFile, damage: str) -> None:
    for value in (1.0, 2.0):
        file.save(ATTRIBUTES, with_x(value))
    data = file.path.read_bytes()
    broken = {"truncated": data[:-9], "flipped": data[:-1] + b"?", "empty": b"", "foreign": b"PNG"}
    if damage == "gone":
        file.path.unlink()
    else:
        file.path.write_bytes(broken[damage])
    again = RunFile(file.path)
    assert again.exists()
    _, groups, complaint = again.load()
    assert x_of(groups) == 1.0
    assert ("using run.h5.previous, the save before it" in complaint) == (damage != "gone")
    again.save(ATTRIBUTES, with_x(3.0))
    assert (x_of(read(file.path)[1]), x_of(read(file.previous)[1])) == (3.0, 1.0)
    again.save(ATTRIBUTES, with_x(4.0))
    assert (x_of(read(file.path)[1]), x_of(read(file.previous)[1])) == (4.0, 3.0)
    assert names(file.path.parent) == ["run.h5", "run.h5.previous"]


def test_where_both_generations_are_damaged_both_are_named(file: RunFile) -> None:
    for _ in range(2):
        file.save(ATTRIBUTES, GROUPS)
    file.path.write_bytes(b"")
    file.previous.write_bytes(b"x")
    with pytest.raises(DamagedError, match=r"run.h5: is empty; and .*run.h5.previous: is not a run file"):
        RunFile(file.path).load()


def test_what_a_killed_run_left_half_written_is_removed(file: RunFile) -> None:
    file.save(ATTRIBUTES, GROUPS)
    left = file.path.with_name("run.h5.new-0123abcd")
    left.write_bytes(b"half")
    other = file.path.with_name("other.h5.new-0123abcd")
    other.write_bytes(b"of another run")
    again = RunFile(file.path)
    again.load()
    assert left.exists()  # who only reads removes nothing
    again.save(ATTRIBUTES, GROUPS)
    assert names(file.path.parent) == ["other.h5.new-0123abcd", "run.h5", "run.h5.previous"]


def test_of_two_runs_with_one_file_the_later_goes_on(file: RunFile) -> None:
    file.save(ATTRIBUTES, with_x(1.0))
    later = RunFile(file.path)
    later.load()
    later.save(ATTRIBUTES, with_x(2.0))
    with pytest.raises(TakenError, match=r"run.h5 was saved by another process in the meantime"):
        file.save(ATTRIBUTES, with_x(-1.0))
    later.save(ATTRIBUTES, with_x(3.0))
    assert (x_of(read(file.path)[1]), x_of(read(file.previous)[1])) == (3.0, 2.0)
    assert names(file.path.parent) == ["run.h5", "run.h5.previous"]


def test_of_two_runs_that_begin_one_file_only_one_does_and_writes_it_anew_if_it_is_removed(
    file: RunFile,
) -> None:
    late = RunFile(file.path)
    file.save(ATTRIBUTES, with_x(1.0))
    with pytest.raises(TakenError):
        late.save(ATTRIBUTES, with_x(2.0))
    assert x_of(read(file.path)[1]) == 1.0
    file.path.unlink()
    file.save(ATTRIBUTES, GROUPS)
    assert names(file.path.parent) == ["run.h5"]


# Its lock.

LOCK = Path("run.h5.lock")
OTHER_HOST = {"host": "node7", "table": "of another boot"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch locks for a second, not a minute."""
    monkeypatch.setattr(lock, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.2)


def left_lock(**changes: object) -> None:
    """Leave the lock of a killed process, which was this one but for some changes."""
    LOCK.write_text(json.dumps(asdict(lock.this_process()) | {"token": "0", "beat": 3} | changes))


def attempts_in_processes(count: int) -> list[int]:
    """Let so many processes acquire the lock of run.h5 and hold it; return their exit codes."""
    program = "from mpi_ata.runfile.lock import *; RunLock(Path('run.h5')).acquire(); input()"
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(command, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    while sum(process.poll() is None for process in processes) > 1:
        time.sleep(0.05)
    for process in processes:
        process.communicate(b"\n")
    return [process.returncode for process in processes]


def test_of_several_processes_one_gets_the_lock_also_of_a_killed_one_and_leaves_nothing_behind() -> None:
    for _ in range(2):
        assert sorted(attempts_in_processes(4)) == [0, 1, 1, 1]
        assert names(Path.cwd()) == []
        left_lock(process=os.getpid(), began="1")  # its number is used again


def test_a_lock_names_its_process_for_as_long_as_that_lives() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        stat = Path(f"/proc/{other.pid}/stat").read_text()
        left_lock(process=other.pid, began=stat.split()[21], slurm_job="55")
        with pytest.raises(UsageError, match=f"run.h5: process {other.pid} on .* .Slurm job 55. is running"):
            RunLock(Path("run.h5")).check()
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it is dead, but its parent has not noticed
        RunLock(Path("run.h5")).check()
        assert not LOCK.exists()


def test_a_process_may_give_up_its_own_run_and_resume_it() -> None:
    first, second = RunLock(Path("run.h5")), RunLock(Path("run.h5"))
    first.acquire()
    second.acquire()
    first.release()
    assert LOCK.exists()
    second.release()
    assert not LOCK.exists()


def test_the_lock_of_another_host_is_removed_if_nothing_changes_it_for_a_while(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    left_lock(**OTHER_HOST)
    began = time.monotonic()
    RunLock(Path("run.h5")).check()
    assert 1.0 <= time.monotonic() - began < 10.0
    assert names(Path.cwd()) == []
    text = f"run.h5: process {os.getpid()} on node7 was running it; watching for 1 s whether it still does"
    assert caplog.messages == [text]


def test_a_run_on_another_host_is_running_as_long_as_its_lock_is_fresh() -> None:
    assert not RunLock(Path("run.h5")).is_held()
    left_lock(**OTHER_HOST)
    assert RunLock(Path("run.h5")).is_held()
    long_ago = time.time() - 70
    os.utime("run.h5.lock", (long_ago, long_ago))
    assert not RunLock(Path("run.h5")).is_held()


def test_a_living_lock_of_another_host_is_kept(quick: None) -> None:
    holder = RunLock(Path("run.h5"))
    holder.acquire()
    before = LOCK.read_text()
    other = replace(lock.this_process(), table="of another boot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "this_process", lambda: other)
        with pytest.raises(UsageError, match=f"process {os.getpid()} on .* is running it; stop it or wait"):
            RunLock(Path("run.h5")).check()
    assert LOCK.read_text() != before
    holder.release()
    assert not LOCK.exists()


def test_a_process_that_this_user_may_not_see_is_watched(
    quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbid)  # as for a process of another user
    left_lock(process=1 << 22)  # larger than any, as if /proc did not show it
    RunLock(Path("run.h5")).check()
    assert "watching for 1 s" in caplog.text
    left_lock(process=1, began=lock._began(1))
    with pytest.raises(UsageError, match=r"process 1 on .* is running it"):
        RunLock(Path("run.h5")).check()


def test_a_forked_child_does_not_give_up_the_run_of_its_parent() -> None:
    held = RunLock(Path("run.h5"))
    held.acquire()
    if not (child := os.fork()):
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert LOCK.exists()
    held.release()
    assert not LOCK.exists()


def test_there_is_a_lock_where_the_file_system_has_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    held = RunLock(Path("run.h5"))
    assert held._create()
    assert not RunLock(Path("run.h5"))._create()
    assert json.loads(LOCK.read_text())["process"] == os.getpid()
    held.release()
    assert names(Path.cwd()) == []


def test_an_unreadable_lock_is_watched_too(quick: None) -> None:
    LOCK.write_text("{")
    RunLock(Path("run.h5")).check()
    assert not LOCK.exists()


@pytest.mark.parametrize(("restarts", "watched"), [(0, False), (1, True)])
def test_the_earlier_start_of_a_requeued_slurm_job_is_known_to_be_over(
    restarts: int,
    watched: bool,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    left_lock(**OTHER_HOST, restarts=restarts)
    RunLock(Path("run.h5")).check()
    assert not LOCK.exists()
    assert bool(caplog.messages) == watched


def test_where_no_lock_can_be_written_there_is_none() -> None:
    made = RunLock(Path("no/such/folder/run.h5"))
    made.acquire()
    made.release()
    assert names(Path.cwd()) == []


def test_a_link_stays_one_and_a_change_of_folder_changes_nothing(tmp_path: Path) -> None:
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    (home / "run.h5").symlink_to(scratch / "run.h5")
    os.chdir(home)
    file = RunFile(Path("run.h5"))
    file.save(ATTRIBUTES, GROUPS)
    os.chdir(tmp_path)
    file.save(ATTRIBUTES, GROUPS)
    assert (home / "run.h5").is_symlink()
    assert names(home) == ["run.h5"]
    assert names(scratch) == ["run.h5", "run.h5.previous"]


def test_where_no_file_can_be_is_refused_before_the_run_and_folders_are_created(
    tmp_path: Path,
) -> None:
    fixed = tmp_path / "fixed.h5"
    fixed.touch(0o444)
    for path, complaint in [
        (tmp_path, "is a folder; name a file in it"),
        (fixed, "is read-only; make it writable, or choose another file"),
        (fixed / "run.h5", "the folder .*fixed.h5 cannot be created: File exists; choose another file"),
    ]:
        with pytest.raises(UsageError, match=complaint):
            check_writable_path(path)
    check_writable_path(tmp_path / "new" / "folder" / "run.h5")
    assert (tmp_path / "new" / "folder").is_dir()
