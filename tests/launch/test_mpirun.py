"""How ranks are started: what runs on them, in which environment, and what is left behind and removed."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_ata import launch
from mpi_ata.errors import UsageError
from mpi_ata.launch import run_script
from mpi_ata.launch.exit_report import read_report, report_file
from mpi_ata.launch.mpirun import (
    check_rank_memory,
    files_below,
    remove_files,
    run_command,
    split_command,
)


def test_more_ranks_than_fit_into_memory_are_rejected() -> None:
    check_rank_memory(2)
    with pytest.raises(UsageError, match="1,000,001 ranks would need about 62,500 GB of memory"):
        check_rank_memory(1_000_001)


@pytest.mark.parametrize(("own", "chosen"), [({}, "^ofi"), ({"OMPI_MCA_btl": "tcp,self"}, "tcp,self")])
def test_ranks_do_not_wait_for_a_network_that_nothing_uses_unless_the_user_asks_for_it(
    own: dict[str, str], chosen: str
) -> None:
    environment = dict(own)
    launch.set_mpi_defaults(environment)
    assert environment["OMPI_MCA_btl"] == chosen


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        ("script.py -m 3", "", "script.py -m 3"),
        ("-u -X dev -Wignore -W error script.py a", "-u -X dev -Wignore -W error", "script.py a"),
        ("-m train 3", "", "-m train 3"),
        ("-X importtime -um train 3", "-X importtime -u", "-m train 3"),
        ("-Ximporttime -mtrain 3", "-Ximporttime", "-m train 3"),
    ],
)
def test_options_of_python_are_kept_apart_from_what_it_runs(words: str, options: str, rest: str) -> None:
    assert split_command(words.split()) == (options.split(), rest.split())


SCRIPT = """
import pickle, sys, mpi_ata.launch
from pathlib import Path

def own(): pass

assert pickle.loads(pickle.dumps(own)) is own
assert Path(__file__).is_absolute() and sys.path[0] == str(Path(__file__).parent), sys.path
print(*sys.argv[1:])
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(3)", 3),
        ("sys.exit('text')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 1),
    ],
)
@pytest.mark.parametrize("called", [["script.py"], ["-m", "script"]])
def test_a_script_on_a_rank_runs_as_python_runs_it_and_reports_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[str], last: str, code: int
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    with report_file() as path:
        done = run_command([sys.executable, run_script.__file__, *called, last, "b"])
        assert (done.code, read_report(path).code) == (code, code), done.err
    assert done.out == f"{last} b\n"
    assert "runpy" not in done.err
    assert "run_script" not in done.err
    assert ("Traceback" in done.err) == (last in ("1 / 0", "raise KeyboardInterrupt"))


def test_a_usage_error_on_a_rank_is_reported_as_2(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import mpi_ata\nmpi_ata.minimize(budget=3, rond=2)\n")
    with report_file() as path:
        done = run_command([sys.executable, run_script.__file__, str(tmp_path / "script.py")])
        assert (done.code, read_report(path).code) == (2, 2)
    assert done.err.startswith("Error: minimize() has no argument 'rond'")
    assert f"{tmp_path}/script.py, line 2" in done.err


HOLDING = """
import mmap, sys
files = [open(path, "r+b") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 0) for file in files]
files[0].close()
print("held", flush=True)
sys.stdin.read()
"""
NAMES = ("mpich_shm_test-", "ucx_shm_posix_test-", "sm_segment.test-", "data-of-a-user-")
SHARED = Path("/dev/shm")  # noqa: S108


@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no shared memory in files")
def test_only_files_that_ranks_of_an_mpi_have_open_are_removed() -> None:
    files = [SHARED / f"{name}{os.getpid()}" for name in NAMES]
    files.insert(0, Path(f"/tmp/hydra_hwloc_xmlfile_test-{os.getpid()}"))  # noqa: S108
    unused = SHARED / f"mpich_shm_unused-{os.getpid()}"
    for path in (*files, unused):
        path.write_bytes(bytes(mmap.PAGESIZE))
    try:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", HOLDING, *map(str, files)]
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found = files_below(os.getpid())
            process.communicate(timeout=20)
        assert set(files[:4]) == {path for path in found if str(os.getpid()) in path.name}
        remove_files(set(files[:4]))
        assert [path.exists() for path in (*files, unused)] == [False] * 4 + [True, True]
    finally:
        for path in (*files, unused):
            path.unlink(missing_ok=True)
