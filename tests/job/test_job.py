"""Job files are strict: whatever cannot be meant is refused, in one sentence that says what to do."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata import FaultPolicy
from mpi_ata.errors import UsageError
from mpi_ata.job import Job, build_parts, load_job
from mpi_ata.job.build import build_problem
from mpi_ata.job.schema import RunDescription, RunTable
from mpi_ata.job.tables import difference, parse_setting, same_code
from mpi_ata.methods import Method

Change = dict[str, str | None]  # "table.key" or "table" to TOML text; None takes it away

GOOD: dict[str, dict[str, str]] = {
    "problem": {"name": '"quadratic"', "dimension": "4", "noise": "0.5"},
    "method": {"name": '"sgd"', "step_size": "0.4", "update": '"plain"'},
    "allocator": {"name": '"ata-empirical"', "budget": "5", "eta": "1.0"},
    "times": {"law": '"sqrt"', "scale": "29.0"},
    "stop": {"rounds": "3"},
    "run": {"workers": "3", "seed": "5", "evaluate_every": "10"},
}

PROBLEM = """
import numpy as np

class Mine:
    minimum = 0.0

    def __init__(self, size: int, shift: float = 1.0, tag: str | None = None) -> None:
        self.x0 = np.full(size, shift)

    def gradient(self, x, task):
        return x

    def loss(self, x):
        return float(x @ x) / 2
"""
MINE: Change = {
    "problem": None,
    "problem.file": '"mine.py"',
    "problem.class": '"Mine"',
    "problem.size": "4",
}

ALLOCATOR = """
import numpy as np

class First:
    def __init__(self, n: int, budget: int, means=None) -> None:
        self.n, self.budget, self.means = n, budget, means

    def allocate(self, available):
        return self.budget * (np.arange(self.n) == 0)

    def observe(self, worker, seconds, stopped=(), overhead=0.0): ...
"""

METHOD = """
class Walk:
    def __init__(self, x0, n: int, stride: float = 0.5) -> None:
        self.x, self.n, self.stride, self.k = x0, n, stride, 0

    def step(self, cluster): ...
"""


def written(folder: Path, change: Change) -> Path:
    """The good job with a change, as a file."""
    tables: dict[str, dict[str, str | None]] = {name: dict(keys) for name, keys in GOOD.items()}
    for place, value in change.items():
        table, _, key = place.partition(".")
        if key:
            tables.setdefault(table, {})[key] = value
        else:
            del tables[table]
    lines = []
    for table, keys in tables.items():
        lines += [f"[{table}]", *(f"{key} = {value}" for key, value in keys.items() if value is not None)]
    path = folder / "job.toml"
    path.write_text("\n".join(lines))
    return path


def built(job: Job) -> Method:
    """Everything a job describes, built as a run builds it."""
    n = job.run.workers or 3
    return build_parts(job, n).method


def refusal(path: Path) -> str:
    """Why a job is refused: one sentence that names the file."""
    with pytest.raises(UsageError) as caught:
        built(load_job(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_a_good_job_is_built_with_every_value_in_its_place(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, {}))
    method: Any = built(job)
    assert (job.run.workers, job.run.seed, job.run.evaluate_every, job.stop.rounds) == (3, 5, 10, 3)
    assert (len(method.x), method.update.step_size) == (4, 0.4)
    assert (method.allocator.n, method.allocator.budget, method.allocator.eta) == (3, 5, 1.0)


def test_what_a_job_leaves_out_has_the_documented_default(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, {"run": None, "times": None, "method.update": None}))
    assert (job.run.workers, job.run.seed, job.run.evaluate_every, job.times) == (None, 0, 10, None)
    assert type(built(job)).__name__ == "SGD"


REFUSED = """
extra.key          1             unknown table 'extra'; valid tables: problem, method, allocator, times
problem.dimention  4             unknown key 'dimention' in [problem]; valid keys: dimension, noise
method.step        1             unknown key 'step' in [method]; valid keys: ; did you mean step_size?
method.x0          [1.0]         unknown key 'x0' in [method]
problem.nam        "x"           unknown key 'nam' in [problem]; valid keys: ; did you mean name?
allocator.n        5             unknown key 'n' in [allocator]; valid keys: budget
times.alpha        5             unknown key 'alpha' in [times]; valid keys: law
stop.round         5             unknown key 'round' in [stop]; valid keys: rounds, gap, loss, clock, elapsed
run.worker         5             unknown key 'worker' in [run]; valid keys: workers, seed, evaluate_every
run.replicated     false         use exchange = "chain" in [run], or mpi_ata.Balance
problem            -             the table [problem] is missing
method             -             the table [method] is missing
allocator          -             this method needs a table [allocator]
stop.rounds        -             the table [stop] is missing or empty
network.latency    0.1           [network] Network needs the key 'bandwidth'
problem.name       -             [problem] needs the key 'name'; valid values: quadratic
times.law          -             [times] needs the key 'law'; valid values: constant
method.step_size   -             [method] Plain needs the key 'step_size' (a number); --set method.step_size=
allocator.budget   -             [allocator] ATAEmpirical needs the key 'budget' (a whole number)
problem.name       "cubic"       unknown name 'cubic' in [problem]; valid values: quadratic
method.name        ["sgd"]       unknown name ['sgd'] in [method]; valid values: sgd
method.update      "adamm"       unknown update 'adamm' in [method]; valid values: plain; did you mean adam?
allocator.name     "atta"        unknown name 'atta' in [allocator]; valid values: ata, ata-auto
times.law          "cauchy"      unknown law 'cauchy' in [times]; valid values: constant, exponential
problem.dimension  "4"           dimension = '4' in [problem] must be a whole number
run.workers        3.0           workers = 3.0 in [run] must be a whole number: write 3
stop.rounds        1.5           rounds = 1.5 in [stop] must be a whole number
problem.noise      nan           noise = nan in [problem] must be finite
method.step_size   true          step_size = True in [method] must be a number
allocator.budget   true          budget = True in [allocator] must be a whole number
allocator.budget   [5]           budget = [5] in [allocator] must be a whole number
allocator.budget   nan           budget = nan in [allocator] must be a whole number
allocator.eta      {a=1}         eta = {'a': 1} in [allocator] must be a number
times.scale        [1.0]         scale = [1.0] in [times] must be a number
times.stoppable    0             stoppable = 0 in [times] must be true or false
times.report       3             report = 3 in [times] must be a string
stop.loss          -inf          loss = -inf in [stop] must be finite
run.seed           1979-05-27    in [run] must be a whole number
problem.dimension  0             [problem] dimension=0 must be at least 1
problem.noise      -0.1          [problem] noise=-0.1 must be at least 0
allocator.budget   0             [allocator] budget=0 must be at least 1
allocator.eta      -1            [allocator] eta=-1.0 must be above 0
times.scale        0             [times] scale=0.0 must be above 0
times.unit         0.0           [times] unit=0.0 must be above 0 seconds
times.report       "guessed"     [times] report='guessed' must be 'measured' or 'drawn'
stop.rounds        0             [stop] rounds=0 must be above 0
stop.gap           0.0           [stop] gap=0.0 must be above 0
stop.clock         -1            [stop] clock=-1.0 must be above 0
stop.elapsed       -1            [stop] elapsed=-1.0 must be above 0
run.workers        0             [run] workers=0 must be at least 1
run.seed           -1            [run] seed=-1 must be from 0 to 2**64 - 1
run.seed           18446744073709551616  [run] seed=18446744073709551616 must be from 0 to 2**64 - 1
run.evaluate_every 0             [run] evaluate_every=0 must be at least 1
faults.deadlin     3             unknown key 'deadlin' in [faults]; valid keys: deadline, on_task_error
faults.owned       true          unknown key 'owned' in [faults]
faults.deadline    inf           deadline = inf in [faults] must be finite
faults.deadline    -1            deadline=-1.0 must be at least 1, or 0 to wait forever
faults.on_task_error "retry"     on_task_error='retry' must be 'stop' or 'reissue'
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_a_job_cannot_mean_is_refused_with_the_value_and_the_rule(tmp_path: Path, line: str) -> None:
    place, value, sentence = line.split(maxsplit=2)
    found = refusal(written(tmp_path, {place: None if value == "-" else value}))
    assert [part for part in sentence.split("; ") if part not in found] == []


def test_a_removed_key_in_an_older_run_file_is_ignored() -> None:
    assert RunDescription.of_tables({"run": {"seed": 3, "replicated": False}}, {}).run == RunTable(seed=3)


@pytest.mark.parametrize(
    ("law", "scale", "fragment"),
    [
        ("mix", "0.5", "scale=0.5 must be at least 1"),
        ("constant", "[1.0, 2.0]", "must be one number or a list of 3"),
        ("constant", "[1.0, inf, 2.0]", "scale = [1.0, inf, 2.0] in [times] must be finite"),
        ("constant", '"slow"', "scale = 'slow' in [times] must be a number or a list"),
    ],
)
def test_parameters_that_a_law_cannot_have_are_refused(
    tmp_path: Path, law: str, scale: str, fragment: str
) -> None:
    assert fragment in refusal(written(tmp_path, {"times.law": f'"{law}"', "times.scale": scale}))


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"[problem\n", "is not valid TOML: "),
        (b"[run]\nseed = 1\nseed = 2\n", "is not valid TOML: "),
        (b'[problem]\nname = "\xff"\n', "is not valid TOML: "),
        (b"seed = 3\n[problem]\nname = 'quadratic'\n", "'seed' is outside of any table"),
        (b"[[stop]]\nrounds = 3\n", "[[stop]] is a list of tables; write [stop]"),
        (b"", "the table [problem] is missing"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, content: bytes, fragment: str) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    assert fragment in refusal(path)


def test_a_job_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere.toml")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


READS = "class Reads:\n    def __init__(self, data):\n        open(data)\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_is_looked_for_elsewhere_is_found_beside_the_job(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "reads.py").write_text(READS)
    if is_there:
        (folder / "numbers.npz").touch()
    keys = {"file": "reads.py", "class": "Reads", "data": "numbers.npz"}
    change: Change = {"problem": None} | {f"problem.{key}": f'"{value}"' for key, value in keys.items()}
    way_out = "; to look for it beside the job file, annotate the parameter: data: Path"
    assert refusal(written(folder, change)).endswith(way_out) == is_there


def test_an_allocator_given_by_file_and_class_is_told_workers_and_means(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(ALLOCATOR)
    change: Change = {"allocator": None, "allocator.file": '"first.py"', "allocator.class": '"First"'}
    method: Any = built(load_job(written(tmp_path, change | {"allocator.budget": "7"})))
    assert method.allocator.allocate(np.ones(3, np.bool_)).tolist() == [7, 0, 0]
    assert method.allocator.means == pytest.approx(58 * np.sqrt([1, 2, 3]))


def test_a_method_given_by_file_and_class_may_do_without_allocator_and_update(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(METHOD)
    walk: Change = {"method": None, "method.file": '"walk.py"', "method.class": '"Walk"'}
    method: Any = built(load_job(written(tmp_path, walk | {"allocator": None, "method.stride": "0.25"})))
    assert (method.n, method.stride, method.x.tolist()) == (3, 0.25, [0.0] * 4)
    assert "remove the table [allocator]" in refusal(written(tmp_path, walk))


def test_a_file_is_looked_up_beside_the_job_file_and_its_class_takes_the_keys_as_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "mine.py").write_text(PROBLEM)
    assert (
        build_problem(load_job(written(tmp_path, MINE | {"problem.shift": "2.0"}))).x0.tolist() == [2.0] * 4
    )


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"problem.class": None}, "[problem] needs both 'file' and 'class'; 'class' is missing"),
        ({"problem.file": None}, "[problem] needs both 'file' and 'class'; 'file' is missing"),
        ({"problem.name": '"quadratic"'}, "[problem] has both 'name' and 'file'; keep one of them"),
        ({"problem.file": "3"}, "file = 3 in [problem] must be a string"),
        ({"problem.file": '"theirs.py"'}, "theirs.py' is not a file; paths are relative to the job file"),
        ({"problem.file": '"."'}, "is not a file"),
        ({"problem.file": f'"{"a" * 1000}.py"'}, "is not a file"),
        ({"problem.file": '"job.toml"'}, "job.toml' is not a Python file; its name must end in .py"),
        ({"problem.class": '"np"'}, "mine.py; there are: Mine"),
        ({"problem.colour": "1"}, "unknown key 'colour' in [problem]; valid keys: size, shift, tag"),
        ({"problem.size": None}, "[problem] Mine needs the key 'size' (a whole number)"),
        ({"problem.size": "4.0"}, "size = 4.0 in [problem] must be a whole number"),
        ({"problem.shift": '"far"'}, "shift = 'far' in [problem] must be a number"),
        ({"problem.tag": "3"}, "tag = 3 in [problem] must be a string"),
        ({"problem.size": "-4"}, "[problem] negative dimensions are not allowed"),
    ],
)
def test_a_part_given_by_file_is_held_to_the_same_rules(
    tmp_path: Path, change: Change, fragment: str
) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM)
    assert fragment in refusal(written(tmp_path, MINE | change))


X0 = "np.full(size, shift)"


@pytest.mark.parametrize(
    ("old", "new", "fragment"),
    [
        ("class Mine:", "class Mine", "mine.py:4: SyntaxError: "),
        ("import numpy as np", "import not_there", "mine.py:2: ModuleNotFoundError: No module named 'not_"),
        ("minimum = 0.0", "minimum = 1 / 0", "mine.py:5: ZeroDivisionError: division by zero"),
        (X0, "check(size)", "mine.py:8: NameError: "),
        ("self.x0 = ", "raise ValueError('size\\nis odd')  # ", "[problem] size is odd (mine.py:8)"),
        ("self.x0 = ", "raise RuntimeError('is\\nodd')  # ", "mine.py:8: RuntimeError: is odd"),
        (X0, "np.zeros(size, int)", "np.array([1.0, 2.0]), not an array of int64 of shape (4,)"),
        (X0, "[0.0]", "np.array([1.0, 2.0]), not [0.0] of type list"),
        ("self.x0", "self.start", "[problem] Mine has no x0 to start from: "),
        (X0, "np.full(size, np.nan)", "x0 of Mine contains NaN or infinite numbers"),
        ("def gradient", "def grad", "[problem] Mine needs gradient(x, task)"),
    ],
)
def test_mistakes_in_a_users_file_are_told_with_their_line(
    tmp_path: Path, old: str, new: str, fragment: str
) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace(old, new))
    assert fragment in refusal(written(tmp_path, MINE))


@pytest.mark.parametrize("place", ["import numpy as np", "self.x0 = "])
def test_a_users_file_cannot_end_the_program(tmp_path: Path, place: str) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace(place, "raise SystemExit(0)  # "))
    assert " calls sys.exit(0); raise an exception" in refusal(written(tmp_path, MINE))


def test_types_are_checked_with_postponed_annotations_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from __future__ import annotations\n" + PROBLEM)
    assert "must be a whole number" in refusal(written(tmp_path, MINE | {"problem.size": "4.0"}))


@pytest.mark.parametrize(
    ("limit", "lacking", "fragment"),
    [
        ("stop.gap", "minimum", "[problem] Mine needs an attribute minimum"),
        ("stop.gap", "loss", "[problem] Mine needs loss(x)"),
        ("stop.loss", "loss", "[problem] Mine needs loss(x)"),
    ],
)
def test_a_limit_that_the_problem_cannot_tell_is_refused(
    tmp_path: Path, limit: str, lacking: str, fragment: str
) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace(lacking, "other"))
    assert fragment in refusal(written(tmp_path, MINE | {limit: "0.1"}))


def test_without_a_gap_to_stop_at_nobody_asks_a_problem_for_its_minimum(tmp_path: Path) -> None:
    raising = "@property\n    def minimum(self): raise ValueError('not known')"
    (tmp_path / "mine.py").write_text(PROBLEM.replace("minimum = 0.0", raising))
    assert build_parts(load_job(written(tmp_path, MINE))).problem.x0.size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_problem_decides_in_which_precision_the_point_is_kept(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace("shift)", f"shift, np.{dtype})"))
    assert built(load_job(written(tmp_path, MINE))).x.dtype == dtype


VALUES = {"23": 23, "-1": -1, "1e-5": 1e-5, " 0.5 ": 0.5, "true": True, "[1, 2.5]": [1, 2.5]}
QUOTED = {'"gta"': "gta", "'gta'": "gta", '"23"': "23", '"a=b"': "a=b"}
BARE = ["gta", "my problem.py", "a=b", "", "1\nx = 2", "1\n[run]\nseed = 2", "9" * 5000, "[" * 5000]


@pytest.mark.parametrize(
    ("text", "value"), [*VALUES.items(), *QUOTED.items(), *((text, text) for text in BARE)]
)
def test_a_setting_is_read_as_in_a_job_file_and_a_bare_word_as_a_text(text: str, value: object) -> None:
    found = parse_setting(f"allocator.budget={text}")
    assert found[:3] == ("allocator", "budget", value)
    assert type(found.value) is type(value)


@given(st.text())
def test_no_text_in_a_setting_reaches_another_key(text: str) -> None:
    table, key, *_ = parse_setting(f"allocator.budget={text}")
    assert (table, key) == ("allocator", "budget")


@pytest.mark.parametrize(
    "setting", ["", "=", "budget", "budget=3", "allocator.budget", "allocator.=3", ".b=3"]
)
def test_a_setting_that_is_not_table_key_value_is_refused_with_an_example(
    tmp_path: Path, setting: str
) -> None:
    rule = "is not table.key=value, as in --set allocator.budget=23"
    with pytest.raises(UsageError, match=re.escape(f"--set {setting!r} {rule}")):
        load_job(written(tmp_path, {}), [setting])


def test_settings_override_add_and_the_last_one_wins(tmp_path: Path) -> None:
    path = written(tmp_path, {"run": None})
    job = load_job(path, ["stop.rounds=7", "run.seed=1", "run.seed=2", "times.law=linear"])
    assert (job.stop.rounds, job.run.seed) == (7, 2)
    law: Any = job.times and job.times.law.factory
    assert law.__name__ == "Linear"


@pytest.mark.parametrize(
    ("setting", "fragment"),
    [
        ("allocator.budget=1\nx = 2", "must be a whole number"),
        ("allocator.budget=five", "budget = 'five' in [allocator] must be a whole number"),
        ("stop.rouns=3", "unknown key 'rouns' in [stop]"),
        ("stops.rounds=3", "unknown table 'stops'"),
    ],
)
def test_settings_are_held_to_the_rules_of_the_file(tmp_path: Path, setting: str, fragment: str) -> None:
    path = written(tmp_path, {})
    with pytest.raises(UsageError) as caught:
        built(load_job(path, [setting]))
    assert str(caught.value).startswith(f"{path}: ")
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keys"), [("ata-empirical", {"budget": 5, "eta": 1.0}), ("ata", {"budget": 5})]
)
def test_another_allocator_takes_over_only_the_keys_that_it_knows(
    tmp_path: Path, name: str, keys: dict[str, Any]
) -> None:
    job = load_job(written(tmp_path, {}))
    other = job.with_allocators([name])[0]
    assert other.allocator is not None
    assert other.allocator.keys == keys
    assert (other.problem, other.method, other.stop) == (job.problem, job.method, job.stop)
    assert job.allocator is not None
    assert job.allocator.keys == {"budget": 5, "eta": 1.0}


def test_what_is_set_for_the_own_allocator_is_no_mistake_for_another(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, {}), ["allocator.eta=0.5", "allocator.budget=7"])
    own, other = job.with_allocators(["own", "gta"])
    assert own.allocator is not None
    assert own.allocator.keys == {"budget": 7, "eta": 0.5}
    assert other.allocator is not None
    assert other.allocator.keys == {"budget": 7}


def test_the_update_and_the_allocator_of_a_method_are_checked_when_a_job_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"update.*'foo'"):
        load_job(written(tmp_path, {}), ["method.update=foo"])
    with pytest.raises(UsageError, match=r"remove the table \[allocator\]"):
        load_job(written(tmp_path, {"method.name": '"ringmaster"'}))


def test_another_method_drops_the_keys_of_the_old_one_and_quotas_it_has_no_use_for(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, {"method.name": '"mindflayer"', "method.limit": "3.0"}))
    asgd, ringmaster = job.with_methods(["asgd:step_size=0.1", "ringmaster : delay=4"])
    assert (asgd.allocator, asgd.method.keys) == (job.allocator, {"step_size": 0.1, "update": "plain"})
    assert ringmaster.allocator is None
    assert ringmaster.method.keys == {"budget": 5, "step_size": 0.4, "update": "plain", "delay": 4}
    with pytest.raises(UsageError, match=r"unknown name 'asdg' in \[method\]"):
        job.with_methods(["asdg"])
    with pytest.raises(UsageError, match="unknown key 'dellay'"):
        built(load_job(job.path, ["method.name=ringmaster", "method.delay=4", "method.dellay=4"]))


@pytest.mark.parametrize("name", ["ata", "gta"])
def test_an_exchanged_allocator_hides_no_misspelt_key(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, {"allocator.etta": "3.0"})
    sentence = r"unknown key 'etta' in \[allocator\]; valid keys: (alpha, )?budget, eta, forget, overhead;"
    with pytest.raises(UsageError, match=sentence):
        load_job(path, [f"allocator.name={name}"])
    job = load_job(path)
    with pytest.raises(UsageError, match=sentence):
        job.with_allocators([name])


@pytest.mark.parametrize("own", ['"ata-empirical"', '"misspelt"', None])
def test_whatever_allocator_a_file_names_another_can_be_set(tmp_path: Path, own: str | None) -> None:
    eta = "1.0" if own == '"ata-empirical"' else None
    job = load_job(written(tmp_path, {"allocator.name": own, "allocator.eta": eta}), ["allocator.name=gta"])
    assert job.allocator is not None
    assert (job.allocator.factory.__name__, job.allocator.keys) == ("GTA", {"budget": 5})


def test_every_key_about_faults_can_be_set_and_has_a_default(tmp_path: Path) -> None:
    given = ["deadline=4", "on_task_error=reissue", "on_bad_result=reissue", "max_failures=1"]
    job = load_job(written(tmp_path, {}), [f"faults.{setting}" for setting in given])
    assert job.faults == FaultPolicy(4.0, "reissue", "reissue", 1)
    assert load_job(written(tmp_path, {})).faults == FaultPolicy(10.0, "stop", "stop", 3)


CODE = "class A:\n    def f(self, x):\n        return x + 1\n"
SAME = [CODE + "\n\n# a\n", CODE.replace("x + 1", "(x  +  1)  # b"), CODE.replace("\n    def", "\n\n    def")]
OTHERS = [CODE.replace("1", "2"), CODE + "b = 1\n", CODE + "b = (\n", "sha256 ab"]


@pytest.mark.parametrize("other", [*SAME, *OTHERS])
def test_comments_blank_lines_and_formatting_are_no_change_but_all_else_is(other: str) -> None:
    assert same_code(CODE, other) == (other in SAME)


def test_a_difference_shows_the_lines_that_differ_and_is_cut_if_it_is_long() -> None:
    text = "@@ -2,2 +2,2 @@\n     def f(self, x):\n-        return x + 1\n+        return x + 2"
    assert difference(CODE, CODE.replace("1", "2")) == text
    before, after = ("\n".join(f"{word} = {j}" for j in range(1000)) for word in ("a", "b"))
    cut = difference(before, after)
    assert len(cut) <= 1000
    assert cut.endswith(f"... and {2001 - 40:,} more lines")
