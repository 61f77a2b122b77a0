"""Runs that are kept: where, under which name, and what may change when they go on."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mpi_ata import Trace, VirtualCluster
from mpi_ata.cli import main
from mpi_ata.driver.plan import OutputOptions, Plan
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import begin
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import build_parts, load_job
from mpi_ata.runfile.load import describe
from mpi_ata.runfile.schema import from_tree, to_tree
from mpi_ata.runfile.store import RunFile
from tests.driver.driven import driven
from tests.driver.test_run import METHOD
from tests.faults.scene import (
    COMMAND,
    METHODS,
    differing,
    own_problem,
    record_of,
    saved_again,
    substance,
    written,
)

OUT = Path("run.h5")


def called(*arguments: str | Path) -> Result:
    """A command, run in this process."""
    return CliRunner().invoke(main, [*map(str, arguments)])


def run(job: Path, *arguments: str, code: int = 0) -> str:
    """What a run that is kept in run.h5 says beside its result."""
    done = called("run", job, "--virtual", "--out", OUT, *arguments)
    assert done.exit_code == code, done.output
    return done.stderr


def refused(job: Path, *arguments: str) -> str:
    """What is said against resuming: one sentence, and the file stays as it was."""
    before = OUT.read_bytes()
    said = run(job, "--resume", *arguments, code=2)
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    assert OUT.read_bytes() == before
    return said


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return written(tmp_path / "job.toml", rounds=10)


# Where a run is kept.


def test_unless_told_a_run_is_kept_under_a_fresh_name_that_is_printed(job: Path, tmp_path: Path) -> None:
    names = [called("run", job, "--virtual").stdout.splitlines()[-1] for _ in range(2)]
    assert all(re.fullmatch(r"saved +runs/job-\d{8}-\d{6}-[0-9a-f]{6}\.h5", name) for name in names)
    assert names[0] != names[1]
    assert {path.name for path in (tmp_path / "runs").glob("*.h5")} == {name.split("/")[1] for name in names}
    summary = json.loads(called("run", job, "--virtual", "--json").stdout.splitlines()[-1])
    assert record_of(tmp_path / summary["out"]).reason == "10 rounds"


def test_an_existing_file_is_never_overwritten_unasked(job: Path) -> None:
    run(job)
    before = OUT.read_bytes()
    assert "run.h5: exists; continue it with --resume, or choose another --out" in run(job, code=2)
    assert OUT.read_bytes() == before
    saved_again(OUT)
    OUT.unlink()
    assert "run.h5.previous: exists; continue it with --resume" in run(job, code=2)


def test_resuming_what_is_not_there_starts_afresh_and_says_so(job: Path) -> None:
    assert run(job, "--resume") == "Note: there is no run.h5 yet: starting a new run\n"
    assert record_of(OUT).reason == "10 rounds"


def test_a_finished_run_is_not_begun_again_but_shown_with_the_way_to_more(job: Path) -> None:
    first = called("run", job, "--virtual", "--out", OUT).stdout
    before = OUT.read_bytes()
    for words in (["--virtual"], [], ["--virtual", "--set", "stop.rounds=4"]):  # no ranks are started either
        again = called("run", job, *words, "--out", OUT, "--resume")
        assert again.exit_code == 0
        assert again.stderr.startswith("Note: run.h5 is already finished, at 10 rounds; to continue, set ano")
        lines = zip(again.stdout.splitlines(), first.splitlines(), strict=True)
        assert all(now == then or now.startswith("elapsed") for now, then in lines)
    told = called("run", job, "--virtual", "--out", OUT, "--resume", "--json").stdout
    summary = json.loads(called("run", job, "--virtual", "--json").stdout)
    assert json.loads(told) == summary | {"out": "run.h5", "elapsed": json.loads(told)["elapsed"]}
    assert OUT.read_bytes() == before


def test_a_single_worker_and_a_single_round_are_in_the_singular(job: Path) -> None:
    one = ["--workers", "1", "--set", "stop.rounds=1"]
    assert " s on 1 worker\n" in called("run", job, "--virtual", *one, "--out", OUT).stdout
    assert [event.text for event in record_of(OUT).events] == ["on 1 worker", "1 round"]


def test_a_second_run_with_the_same_file_ends_the_first(tmp_path: Path) -> None:
    def look(trace: Trace) -> None:
        if trace.round == 5:
            saved_again(OUT)  # as a second run would
            seen.append(OUT.read_bytes())

    seen = list[bytes]()
    job = written(tmp_path / "job.toml", rounds=10**6, run="checkpoint_rounds = 1")
    with pytest.raises(RunError, match=r"^run.h5 was saved by another process in the meantime; resume it to"):
        driven(job, look=look, output=OutputOptions(OUT))
    assert [OUT.read_bytes()] == seen


@contextmanager
def begun(job: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start a run, or resume it, and wait until it has the lock and has saved; in the end it is killed."""
    command = [str(COMMAND), "run", str(job), "--virtual", "--out", str(OUT), "--resume"]
    before = OUT.stat().st_mtime_ns if OUT.exists() else 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not OUT.exists() or OUT.stat().st_mtime_ns == before:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def test_a_run_that_is_under_way_is_not_resumed_and_one_that_was_killed_is_at_once(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=10**9, run="checkpoint_rounds = 20")
    with begun(job) as first:
        said = run(job, "--resume", code=2)
        way_out = "stop it or wait for its end, or choose another file"
        assert re.fullmatch(rf"Error: run.h5: process {first.pid} on \S+ is running it; {way_out}\n", said)
        assert first.poll() is None
    assert OUT.with_name("run.h5.lock").exists()
    with begun(job) as second:
        second.terminate()
        assert "watching" not in second.communicate()[1]
    assert second.returncode == 85
    assert sorted(path.name for path in Path.cwd().glob("run.h5*")) == ["run.h5", "run.h5.previous"]


# What may change.


def test_an_edit_that_an_earlier_setting_hides_is_reported(job: Path) -> None:
    run(job, "--set", "method.step_size=0.3", "--set", "stop.rounds=5")
    job.write_text(job.read_text().replace("step_size = 0.4", "step_size = 0.2"))
    said = run(job, "--resume")
    note = "Note: method.step_size is still 0.3, by an earlier --set (in the file: {}); "
    assert said.count(note.format(0.2)) == 1
    job.write_text(job.read_text().replace("step_size = 0.2", "step_size = 0.3"))
    assert "is still" not in run(job, "--resume", "--set", "stop.rounds=50")


def test_another_job_is_refused_naming_the_keys(job: Path) -> None:
    run(job)
    text = job.read_text()
    job.write_text(text.replace("budget = 7", "budget = 8").replace("noise = 0.1", "noise = 0.2"))
    assert "differs from the job of that run in problem.noise, allocator.budget; resume" in refused(job)
    job.write_text(text.replace("seed = 5", "seed = 6"))
    assert "in run.seed;" in refused(job)
    job.write_text(text.replace('update = "plain"', "").replace("[stop]", "[stop]\n# a comment"))
    run(job, "--resume")


def test_when_to_stop_and_what_to_tell_may_change(job: Path) -> None:
    run(job)
    text = job.read_text()
    for old, new in [
        ("rounds = 10", "rounds = 20\nclock = 1e9"),
        ("evaluate_every = 3", "evaluate_every = 2"),
        ("checkpoint_rounds = 2", 'checkpoint_seconds = 3.0\ngrace = 5.0\nlog = ["csv"]'),
        ("[stop]", "[faults]\ndeadline = 7\n[stop]"),
    ]:
        text = text.replace(old, new)
    job.write_text(text)
    said = run(job, "--resume")
    assert "Note: changed stop.rounds: 10 -> 20\n" in said
    assert "Note: changed stop.clock: not given -> 1000000000.0\n" in said
    assert record_of(OUT).reason == "20 rounds"


def helpers(folder: Path, number: str) -> None:
    """Two files beside the problem's: it imports the first, which imports the second."""
    (folder / "first.py").write_text("import second\n")
    (folder / "second.py").write_text(f"NUMBER = {number}\n")
    (folder / "not_imported.py").write_text(f"NUMBER = {number}\n")


def test_another_file_that_the_problem_imports_from_beside_it_is_refused(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=10, problem=own_problem(tmp_path, "import first"))
    helpers(tmp_path, "1")
    run(job, "--set", "stop.rounds=5")
    same = load_job(job).digest
    helpers(tmp_path, "2")
    assert refused(job).endswith(
        "differs from the job of that run in the file second.py; resume with these changes by "
        "--accept-changes, or start a new run with another --out\n"
    )
    assert load_job(job).digest != same, "the ranks compare it, too"
    said = run(job, "--resume", "--set", "stop.rounds=6", "--accept-changes")
    assert "Note: changed the file second.py:\n@@ -1 +1 @@\n-NUMBER = 1\n+NUMBER = 2" in said
    helpers(tmp_path, "2  # a comment")
    assert "second.py" not in run(job, "--resume", "--set", "stop.rounds=7")


def test_many_long_files_beside_the_problem_are_kept_as_checksums(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=10, problem=own_problem(tmp_path, "import package"))
    (tmp_path / "package").mkdir()
    for number in range(20):
        (tmp_path / "package" / f"m{number}.py").write_text(f"TEXT = '{number * 1000:0100000}'\n")
    (tmp_path / "package" / "__init__.py").write_text("")
    files = load_job(job).files
    assert len(files) == 22
    assert all(text.startswith("sha256 ") for name, text in files.items() if "/" in name)
    assert "import package" in files["problem.file"]


def test_set_excuses_another_problem_file_but_not_an_edit_of_the_same_one(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=10, problem=own_problem(tmp_path, "pass"))
    named = ["--set", "problem.file=own.py"]
    run(job, *named)
    own_problem(tmp_path, "time.sleep(0)")
    assert "in the file own.py; resume with these changes by" in run(job, "--resume", *named, code=2)
    (tmp_path / "own.py").rename(tmp_path / "other.py")
    run(job, "--resume", "--set", "problem.file=other.py")


def test_changes_are_accepted_on_request_and_recorded_as_a_difference(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=10, problem=own_problem(tmp_path, "pass"))
    run(job, "--set", "stop.rounds=5")
    own_problem(tmp_path, "time.sleep(0)")
    job.write_text(job.read_text().replace("step_size = 0.4", "step_size = 0.3"))
    lines = "     def gradient(self, x, task):\n-        pass\n+        time.sleep(0)"
    difference = f"the file own.py:\n@@ -7,3 +7,3 @@\n{lines}"
    said = run(job, "--resume", "--set", "stop.rounds=10", "--accept-changes")
    assert f"Note: changed {difference}" in said
    changed = [event.text for event in record_of(OUT).events if event.kind == "changed"]
    assert changed[:2] == ["method.step_size: 0.4 -> 0.3", "stop.rounds: 5 -> 10"]
    assert changed[2].startswith(difference)
    assert "\n    +        time.sleep(0)\n" in called("show", OUT).stdout
    assert run(job, "--resume").startswith("Note: run.h5 is already finished"), "they need no option again"


def test_what_is_set_when_resuming_counts_and_is_kept_as_an_event(job: Path) -> None:
    run(job)
    before = record_of(OUT).method["x"]
    said = run(job, "--resume", "--set", "stop.rounds=20", "--set", "method.step_size=1e-12")
    assert "Note: changed method.step_size: 0.4 -> 1e-12\n" in said
    np.testing.assert_allclose(record_of(OUT).method["x"], before, rtol=1e-9)
    changed = [event.text for event in record_of(OUT).events if event.kind == "changed"]
    assert changed == ["method.step_size: 0.4 -> 1e-12", "stop.rounds: 10 -> 20"]
    said = run(job, "--resume", "--set", "stop.rounds=30")  # what was set before stays set
    assert "step_size" not in said
    assert record_of(OUT).job.settings == ("method.step_size=1e-12", "stop.rounds=30")
    text = called("show", OUT).stdout
    assert "changed: stop.rounds: 20 -> 30" in text
    assert "method.step_size=1e-12" in text


def test_what_was_set_at_first_need_not_be_said_again(job: Path) -> None:
    run(job, "--set", "run.seed=77", "--workers", "3", "--set", "stop.rounds=9")
    assert run(job, "--resume", "--set", "stop.rounds=18") == (
        "Note: resumed at round 9 on 3 workers\nNote: changed stop.rounds: 9 -> 18\n"
    )
    again = substance(OUT)
    for path in Path().glob("run.h5*"):
        path.unlink()
    run(job, "--set", "run.seed=77", "--workers", "3", "--set", "stop.rounds=18")
    assert set(differing(again, substance(OUT))) <= {"job/settings"}


def test_a_key_that_is_set_may_also_differ_in_the_file_and_what_is_set_wrongly_is_refused(job: Path) -> None:
    run(job)
    job.write_text(job.read_text().replace("step_size = 0.4", "step_size = 0.1"))
    assert "in method.step_size;" in refused(job)
    run(job, "--resume", "--set", "method.step_size=0.1")
    assert "unknown key 'stepsize'" in refused(job, "--set", "method.stepsize=1")
    wrong = refused(job, "--set", "problem.dimension=11", "--set", "method.step_size=0.1")
    assert "'x' of the state is float64 of shape (10,)" in wrong


@pytest.mark.parametrize("other", ["gta", "ata"])
def test_an_exchanged_allocator_starts_from_what_the_run_knows(job: Path, other: str) -> None:
    run(job, "--set", "allocator.eta=2.0")
    tasks = record_of(OUT).workers["tasks"]
    alpha = ["--set", "allocator.alpha=4.0"] if other == "ata" else []
    said = run(job, "--resume", "--set", "stop.rounds=11", "--set", f"allocator.name={other}", *alpha)
    assert f"changed allocator.name: ata-empirical -> {other}" in said
    assert "5 of 5 workers recognised" in said
    record = record_of(OUT)
    if other == "ata":  # it counts on with the tasks of all rounds, so that its bounds are narrow
        assert (record.allocator["K"] == record.workers["tasks"]).all()
        assert record.allocator["k"] == 11
    assert (record.workers["tasks"] >= tasks).all()


OTHERS = "from mpi_ata import GTA as Everyone, Plain as Step\n"
STEP_BY_NAME, GTA_BY_NAME = ["method.update=plain"], ["allocator.name=gta"]
STEP_BY_FILE = ["method.update_file=others.py", "method.update_class=Step"]
GTA_BY_FILE = ["allocator.file=others.py", "allocator.class=Everyone"]


@pytest.mark.parametrize(
    ("first", "then"), [(STEP_BY_NAME, STEP_BY_FILE), (GTA_BY_NAME, GTA_BY_FILE), (GTA_BY_FILE, GTA_BY_NAME)]
)
def test_what_was_set_by_name_may_be_set_by_file_when_resuming_and_the_other_way_round(
    tmp_path: Path, first: list[str], then: list[str]
) -> None:
    (tmp_path / "others.py").write_text(OTHERS)
    job = written(tmp_path / "job.toml", "sgd uta", rounds=10)
    text = job.read_text().replace('update = "adam"\n', "")
    job.write_text(text)
    for settings, rounds in ((first, 10), (then, 20)):
        given = [word for setting in settings for word in ("--set", setting)]
        said = run(job, "--resume", "--set", f"stop.rounds={rounds}", *given)
        assert record_of(OUT).reason == f"{rounds} rounds"
    assert "not given -> " in said
    assert " -> not given" in said
    assert set(record_of(OUT).job.settings) == {"stop.rounds=20", *then}


@pytest.mark.parametrize("signalled", [False, True])
def test_a_run_that_diverges_keeps_its_last_good_save_from_which_a_smaller_step_goes_on(
    tmp_path: Path, signalled: bool
) -> None:
    too_far = "if task.round == 10 and not Path('smaller').exists(): return 0 * x + 1e308"
    every = "checkpoint_rounds = 1000" if signalled else "checkpoint_rounds = 1"
    problem = own_problem(tmp_path, too_far)
    job = written(tmp_path / "job.toml", "sgd gta", rounds=20, run=every, problem=problem)

    def look(trace: Trace) -> None:
        if signalled and trace.round == 10:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunError, match=r"^the run diverged by round 10; try a smaller step_size"):
        driven(job, look=look, output=OutputOptions(OUT))
    saved = record_of(OUT).method
    assert saved["k"] == (0 if signalled else 9)
    assert np.isfinite(saved["x"]).all()
    Path("smaller").touch()
    run(job, "--resume", "--set", "method.step_size=0.1")
    assert record_of(OUT).reason == "20 rounds"


@pytest.mark.parametrize("rounds", [20, 10**9])
def test_what_is_shown_in_the_end_is_what_was_saved(tmp_path: Path, rounds: int) -> None:
    def look(trace: Trace) -> None:
        if trace.round == 30:
            signal.raise_signal(signal.SIGTERM)

    job = written(tmp_path / "job.toml", rounds=rounds)
    summary = driven(job, look=look, output=OutputOptions(OUT)).summary()
    saved = record_of(OUT).summary
    assert summary["finished"] == (rounds == 20)
    assert [name for name in summary.keys() & saved.keys() if summary[name] != saved[name]] == []
    assert {"elapsed", "clock", "rounds"} <= set(saved)


# Parts of the user's own.

PARTS = f"""
{METHOD}
class Even:
    def __init__(self, n, budget: int):
        self.n, self.budget = n, budget
    def allocate(self, available):
        return np.full(self.n, self.budget // self.n)
    def observe(self, worker, seconds, stopped=(), overhead=0.0):
        pass

class Step:
    def __init__(self, step_size: float):
        self.step_size = step_size
    def __call__(self, x, g):
        return x - self.step_size * g
"""
SGD = 'name = "sgd"\nstep_size = 0.1'
STEP = 'update_file = "mine.py"\nupdate_class = "Step"'


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ('file = "mine.py"\nclass = "Greedy"', "Greedy"),
        (f'{SGD}\n[allocator]\nfile = "mine.py"\nclass = "Even"\nbudget = 10', "Even"),
        (f'{SGD}\n{STEP}\n[allocator]\nname = "uta"\nbudget = 10', "Step"),
    ],
)
def test_a_part_of_ones_own_that_cannot_be_saved_is_recorded_but_not_resumed(
    job: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    (job.parent / "mine.py").write_text(PARTS)
    monkeypatch.setitem(METHODS, "own", method)
    written(job, "own", rounds=10)
    missing = f"{name} has no state() and restore(state)"
    assert run(job) == f"Note: {missing}: the run is recorded, but cannot be resumed\n"
    record = record_of(OUT)
    assert (record.summary["rounds"], record.reason) == (10, "10 rounds")
    assert called("show", OUT).exit_code == 0
    more = refused(job, "--set", "stop.rounds=20")
    assert f"run.h5: cannot be resumed: {missing}" in more
    OUT.unlink()
    outcome = driven(job, look=lambda trace: os.kill(os.getpid(), signal.SIGTERM), output=OutputOptions(OUT))
    assert (outcome.reason, outcome.resumable) == (None, False)
    assert "\nstate          stopped early by SIGTERM; it cannot be resumed\n" in called("show", OUT).stdout


def test_a_method_of_ones_own_need_not_save_its_number_of_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = "return {name: each for name, each in super().state().items() if name != 'k'}"
    own = f"from mpi_ata import SGD\nclass Own(SGD):\n    def state(self):\n        {without}\n"
    (tmp_path / "mine.py").write_text(own)
    parts = 'file = "mine.py"\nclass = "Own"\nstep_size = 0.1\n[allocator]\nname = "uta"\nbudget = 10'
    monkeypatch.setitem(METHODS, "own", parts)
    job = written(tmp_path / "job.toml", "own", rounds=10)
    run(job)
    assert "resumed at round 10 on 5 workers" in run(job, "--resume", "--set", "stop.rounds=12")
    assert record_of(OUT).reason == "12 rounds"


def test_a_state_that_could_not_be_read_again_is_refused_before_the_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = "def state(self):\n        return super().state() | {'a/b': 1.0}"
    (tmp_path / "mine.py").write_text(f"from mpi_ata import UTA\nclass Slashed(UTA):\n    {state}\n")
    allocator = '[allocator]\nfile = "mine.py"\nclass = "Slashed"\nbudget = 10'
    monkeypatch.setitem(METHODS, "own", f"{SGD}\n{allocator}")
    problem = own_problem(tmp_path, "Path('begun').touch()")
    said = run(written(tmp_path / "job.toml", "own", problem=problem), code=2)
    assert said.startswith("Error: allocator: 'a/b' cannot be saved: ")
    assert not OUT.exists()
    assert not Path("begun").exists()


# Files that are whole but not what they should be.


def mutations(attributes: dict[str, Any], groups: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Trees of which one thing is missing or of another kind."""
    for name in attributes:
        rest = {key: value for key, value in attributes.items() if key != name}
        yield rest, groups
        yield rest | {name: "text"}, groups
    for group, arrays in groups.items():
        yield attributes, {key: value for key, value in groups.items() if key != group}
        for name, array in arrays.items():
            others = {key: value for key, value in arrays.items() if key != name}
            yield attributes, groups | {group: others}
            for other in (np.zeros(77), np.array(b"x"), np.array(-3)):
                if (other.shape, other.dtype) != (array.shape, array.dtype):
                    yield attributes, groups | {group: others | {name: other}}


@pytest.mark.parametrize("method", ["sgd ata-empirical", "ringmaster"])
def test_a_whole_file_with_anything_missing_or_wrong_is_refused_in_a_sentence(
    tmp_path: Path, method: str
) -> None:
    path = written(tmp_path / "job.toml", method, rounds=4, run="checkpoint_seconds = 1000.0")
    run(path)
    attributes, groups = to_tree(record_of(OUT))
    job, refusals, accepted = load_job(path), list[str](), 0
    for changed in mutations(dict(attributes), dict(groups)):
        problem, times, made = build_parts(job)
        assert times is not None
        file = RunFile(tmp_path / f"{accepted}.h5")
        try:
            record = from_tree(*changed)
            describe(record)
            cluster, trace = VirtualCluster(problem, times, job.run.seed), Trace()
            plan = Plan(job, file, record)
            notes = begin(plan, made, cluster, trace)
            RunRecorder(plan, file, made, cluster, trace).begin(notes)
            accepted += 1
        except UsageError as error:
            refusals.append(str(error))
    assert [text for text in refusals if "\n" in text] == []
    assert len(refusals) > 200
    assert accepted < 100  # of things that are told, but that no run needs
