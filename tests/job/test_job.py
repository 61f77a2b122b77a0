"""Job files are strict: whatever cannot be meant is refused, in one sentence that says what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata.errors import UsageError
from mpi_ata.job import Job, build_parts, load_job
from mpi_ata.job.build import build_problem
from mpi_ata.job.schema import RunDescription, RunTable
from mpi_ata.job.tables import parse_setting
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


@pytest.mark.parametrize(
    ("place", "value", "fragment"),
    [
        (
            "extra.key",
            "1",
            "unknown table 'extra'; valid tables: problem, method, allocator, times, network, stop, run",
        ),
        ("problem.dimention", "4", "unknown key 'dimention' in [problem]; valid keys: dimension, noise"),
        ("method.step", "1", "unknown key 'step' in [method]; valid keys: "),
        ("method.x0", "[1.0]", "unknown key 'x0' in [method]"),
        ("allocator.budgt", "5", "unknown key 'budgt' in [allocator]; valid keys: budget, eta"),
        ("allocator.n", "5", "unknown key 'n' in [allocator]"),
        ("times.alpha", "5", "unknown key 'alpha' in [times]; valid keys: "),
        ("stop.round", "5", "unknown key 'round' in [stop]; valid keys: rounds, gap, loss, clock, elapsed"),
        ("run.worker", "5", "unknown key 'worker' in [run]; valid keys: workers, seed, evaluate_every"),
        ("run.replicated", "false", 'use exchange = "chain" in [run], or mpi_ata.Balance'),
        ("problem", None, "the table [problem] is missing"),
        ("method", None, "the table [method] is missing"),
        ("allocator", None, "this method needs a table [allocator]"),
        ("stop", None, "the table [stop] is missing"),
        ("stop.rounds", None, "the table [stop] is missing or empty"),
        ("network.latency", "0.1", "[network] Network needs the key 'bandwidth'"),
        ("problem.name", None, "[problem] needs the key 'name'; valid values: quadratic"),
        ("method.name", None, "[method] needs the key 'name'; valid values: sgd"),
        ("method.step_size", None, "[method] Plain needs the key 'step_size' (a number)"),
        ("allocator.name", None, "[allocator] needs the key 'name'; valid values: ata, "),
        ("allocator.budget", None, "[allocator] ATAEmpirical needs the key 'budget' (a whole number)"),
        ("times.law", None, "[times] needs the key 'law'; valid values: constant, "),
    ],
)
def test_unknown_and_missing_tables_and_keys_are_refused_with_the_valid_ones(
    tmp_path: Path, place: str, value: str | None, fragment: str
) -> None:
    assert fragment in refusal(written(tmp_path, {place: value}))


def test_a_removed_key_in_an_older_run_file_is_ignored() -> None:
    assert RunDescription.of_tables({"run": {"seed": 3, "replicated": False}}, {}).run == RunTable(seed=3)


@pytest.mark.parametrize(
    ("place", "value", "fragment"),
    [
        ("problem.dimension", '"4"', "dimension = '4' in [problem] must be a whole number"),
        ("problem.dimension", "4.0", "dimension = 4.0 in [problem] must be a whole number"),
        ("problem.noise", '"low"', "noise = 'low' in [problem] must be a number"),
        ("problem.noise", "nan", "noise = nan in [problem] must be finite"),
        ("method.step_size", "true", "step_size = True in [method] must be a number"),
        ("method.step_size", "-inf", "step_size = -inf in [method] must be finite"),
        ("allocator.budget", "true", "budget = True in [allocator] must be a whole number"),
        ("allocator.budget", "[5]", "budget = [5] in [allocator] must be a whole number"),
        ("allocator.budget", "nan", "budget = nan in [allocator] must be a whole number"),
        ("allocator.eta", "{a = 1}", "eta = {'a': 1} in [allocator] must be a number"),
        ("allocator.eta", "inf", "eta = inf in [allocator] must be finite"),
        ("times.scale", "[1.0, 2.0, 3.0]", "scale = [1.0, 2.0, 3.0] in [times] must be a number"),
        ("times.unit", '"1 s"', "unit = '1 s' in [times] must be a number"),
        ("times.stoppable", "0", "stoppable = 0 in [times] must be"),
        ("times.report", "3", "report = 3 in [times] must be a string"),
        ("stop.rounds", "1.5", "rounds = 1.5 in [stop] must be a whole number"),
        ("stop.gap", "false", "gap = False in [stop] must be a number"),
        ("stop.loss", "nan", "loss = nan in [stop] must be finite"),
        ("run.workers", "3.0", "workers = 3.0 in [run] must be a whole number"),
        ("run.workers", "true", "workers = True in [run] must be a whole number"),
        ("run.seed", "1979-05-27", "in [run] must be a whole number"),
    ],
)
def test_values_of_the_wrong_type_are_refused_with_the_right_type(
    tmp_path: Path, place: str, value: str, fragment: str
) -> None:
    assert fragment in refusal(written(tmp_path, {place: value}))


@pytest.mark.parametrize(
    ("place", "value", "fragment"),
    [
        ("problem.dimension", "0", "dimension=0 must be at least 1"),
        ("problem.noise", "-0.1", "noise=-0.1 must be at least 0"),
        ("method.step_size", "0", "step_size=0.0 must be above 0"),
        ("allocator.budget", "0", "budget=0 must be at least 1"),
        ("allocator.eta", "-1", "eta=-1.0 must be above 0"),
        ("times.scale", "0", "scale=0.0 must be above 0"),
        ("times.unit", "0.0", "unit=0.0 must be above 0 seconds"),
        ("times.report", '"guessed"', "report='guessed' must be 'measured' or 'drawn'"),
        ("stop.rounds", "0", "rounds=0 must be above 0"),
        ("stop.gap", "0.0", "gap=0.0 must be above 0"),
        ("stop.clock", "-1", "clock=-1.0 must be above 0"),
        ("stop.elapsed", "0", "elapsed=0.0 must be above 0"),
        ("run.workers", "0", "workers=0 must be at least 1"),
        ("run.seed", "-1", "seed=-1 must be from 0 to 2**64 - 1"),
        ("run.seed", str(2**64), f"seed={2**64} must be from 0 to 2**64 - 1"),
        ("run.evaluate_every", "0", "evaluate_every=0 must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused_with_the_range(
    tmp_path: Path, place: str, value: str, fragment: str
) -> None:
    table = place.partition(".")[0]
    assert f"[{table}] {fragment}" in refusal(written(tmp_path, {place: value}))


@pytest.mark.parametrize(
    ("place", "value", "fragment"),
    [
        ("problem.name", '"cubic"', "unknown name 'cubic' in [problem]; valid values: quadratic"),
        ("method.name", '"sdg"', "unknown name 'sdg' in [method]; valid values: sgd"),
        ("method.name", "['sgd']", "unknown name ['sgd'] in [method]; valid values: sgd"),
        ("method.update", '"adamm"', "unknown update 'adamm' in [method]; valid values: plain"),
        (
            "allocator.name",
            '"atta"',
            "unknown name 'atta' in [allocator]; valid values: ata, ata-auto, ata-empirical, gta, ofta, uta",
        ),
        (
            "times.law",
            '"cauchy"',
            "unknown law 'cauchy' in [times]; valid values: constant, exponential, linear, mix, sqrt",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(
    tmp_path: Path, place: str, value: str, fragment: str
) -> None:
    assert fragment in refusal(written(tmp_path, {place: value}))


@pytest.mark.parametrize(
    ("law", "scale", "fragment"),
    [
        ("mix", "0.5", "scale=0.5 must be at least 1"),
        ("constant", "[1.0, 2.0]", "must be one number or a list of 3"),
        ("constant", "[1.0, 2.0, 0.0]", "must be above 0"),
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


def test_a_problem_given_by_file_and_class_takes_its_keys_as_constructor_parameters(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM)
    problem = build_problem(load_job(written(tmp_path, MINE | {"problem.shift": "2.0"})))
    assert type(problem).__name__ == "Mine"
    assert problem.x0.tolist() == [2.0] * 4


def test_an_allocator_given_by_file_and_class_is_told_workers_and_means(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(ALLOCATOR)
    change: Change = {"allocator": None, "allocator.file": '"first.py"', "allocator.class": '"First"'}
    method: Any = built(load_job(written(tmp_path, change | {"allocator.budget": "7"})))
    assert method.allocator.allocate(np.ones(3, np.bool_)).tolist() == [7, 0, 0]
    assert method.allocator.means == pytest.approx(58 * np.sqrt([1, 2, 3]))


def test_a_method_given_by_file_and_class_may_do_without_allocator_and_update(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(METHOD)
    change: Change = {
        "method": None,
        "allocator": None,
        "method.file": '"walk.py"',
        "method.class": '"Walk"',
        "method.stride": "0.25",
    }
    method: Any = built(load_job(written(tmp_path, change)))
    assert (method.n, method.stride, method.x.tolist()) == (3, 0.25, [0.0] * 4)


def test_an_allocator_for_a_method_that_has_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(METHOD)
    change: Change = {"method": None, "method.file": '"walk.py"', "method.class": '"Walk"'}
    assert "remove the table [allocator]" in refusal(written(tmp_path, change))


def test_a_file_is_looked_up_beside_the_job_file_not_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (tmp_path / "mine.py").write_text(PROBLEM)
    assert len(build_problem(load_job(written(tmp_path, MINE))).x0) == 4


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"problem.class": None}, "[problem] needs both 'file' and 'class'; 'class' is missing"),
        ({"problem.file": None}, "[problem] needs both 'file' and 'class'; 'file' is missing"),
        ({"problem.name": '"quadratic"'}, "[problem] has both 'name' and 'file'; keep one of them"),
        ({"problem.file": "3"}, "file = 3 in [problem] must be a string"),
        ({"problem.file": '"theirs.py"'}, "theirs.py' is not a file; paths are relative to the job file"),
        ({"problem.file": '"."'}, "is not a file"),
        ({"problem.file": '"job.toml"'}, "job.toml' is not a Python file; its name must end in .py"),
        ({"problem.class": '"Yours"'}, "[problem] no class 'Yours' in "),
        ({"problem.class": '"Yours"'}, "there are: Mine"),
        ({"problem.class": '"np"'}, "no class 'np'"),
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


@pytest.mark.parametrize(
    ("old", "new", "fragment"),
    [
        ("class Mine:", "class Mine", "mine.py:4: SyntaxError: "),
        (
            "import numpy as np",
            "import not_there",
            "mine.py:2: ModuleNotFoundError: No module named 'not_there'",
        ),
        ("minimum = 0.0", "minimum = 1 / 0", "mine.py:5: ZeroDivisionError: division by zero"),
        ("np.full(size, shift)", "check(size)", "mine.py:8: NameError: "),
        ("self.x0 = ", "raise ValueError('size is odd')  # ", "[problem] size is odd"),
        ("self.x0 = ", "raise KeyError('size')  # ", "mine.py:8: KeyError: 'size'"),
        (
            "np.full(size, shift)",
            "np.zeros(size, int)",
            "np.array([1.0, 2.0]), not an array of int64 of shape (4,)",
        ),
        ("np.full(size, shift)", "[0.0]", "np.array([1.0, 2.0]), not [0.0] of type list"),
        ("self.x0", "self.start", "[problem] Mine has no x0 to start from: "),
        (
            "np.full(size, shift)",
            "np.full(size, np.nan)",
            "x0 of Mine contains NaN or infinite numbers",
        ),
        (
            "np.full(size, shift)",
            "np.array([1.0, np.inf])",
            "x0 of Mine contains NaN or infinite numbers",
        ),
        ("def gradient", "def grad", "[problem] Mine needs gradient(x, task)"),
    ],
)
def test_mistakes_in_a_users_file_are_told_with_their_line(
    tmp_path: Path, old: str, new: str, fragment: str
) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace(old, new))
    assert fragment in refusal(written(tmp_path, MINE))


@pytest.mark.parametrize("error", ["ValueError", "RuntimeError"])
def test_a_users_message_of_several_lines_becomes_one_sentence(tmp_path: Path, error: str) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace("self.x0 = ", f"raise {error}('odd\\nsize')  # "))
    assert "odd" in refusal(written(tmp_path, MINE))


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_problem_decides_in_which_precision_the_point_is_kept(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "mine.py").write_text(PROBLEM.replace("shift)", f"shift, np.{dtype})"))
    assert built(load_job(written(tmp_path, MINE))).x.dtype == dtype


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("23", 23),
        ("-1", -1),
        ("1_000", 1000),
        ("1e-5", 1e-5),
        (" 0.5 ", 0.5),
        ("true", True),
        ("false", False),
        ("[1, 2.5]", [1, 2.5]),
        ("gta", "gta"),
        ('"gta"', "gta"),
        ("'gta'", "gta"),
        ('"23"', "23"),
        ("my problem.py", "my problem.py"),
        ("a=b", "a=b"),
        ('"a=b"', "a=b"),
        ("", ""),
        ("1\nx = 2", "1\nx = 2"),
        ("1\n[run]\nseed = 2", "1\n[run]\nseed = 2"),
        ('1\nvalue.x = "2"', '1\nvalue.x = "2"'),
    ],
)
def test_a_setting_is_read_as_in_a_job_file_and_a_bare_word_as_a_text(text: str, value: object) -> None:
    table, key, found, _ = parse_setting(f"allocator.budget={text}")
    assert (table, key) == ("allocator", "budget")
    assert found == value
    assert type(found) is type(value)


@given(st.text())
def test_no_text_in_a_setting_reaches_another_key(text: str) -> None:
    table, key, *_ = parse_setting(f"allocator.budget={text}")
    assert (table, key) == ("allocator", "budget")


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000])
def test_a_monstrous_setting_is_a_text_like_any_other(text: str) -> None:
    assert parse_setting(f"run.seed={text}")[:3] == ("run", "seed", text)


@pytest.mark.parametrize(
    "setting", ["", "=", "budget", "budget=3", "allocator.budget", "allocator.=3", ".b=3"]
)
def test_a_setting_that_is_not_table_key_value_is_refused_with_an_example(
    tmp_path: Path, setting: str
) -> None:
    with pytest.raises(
        UsageError, match=r"is not table\.key=value, as in --set allocator\.budget=23"
    ) as caught:
        load_job(written(tmp_path, {}), [setting])
    assert repr(setting) in str(caught.value)


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
    ("name", "keys"),
    [
        ("ata-empirical", {"budget": 5, "eta": 1.0}),
        ("ata", {"budget": 5}),
        ("uta", {"budget": 5}),
        ("ofta", {"budget": 5}),
        ("gta", {"budget": 5}),
    ],
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
