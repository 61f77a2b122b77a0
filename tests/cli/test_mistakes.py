"""Mistakes in a user's problem: each is reported in one sentence, with the line or the rule."""

from pathlib import Path

import pytest

from tests.cli.commands import JOB, call

IMPORTS = "import json, random, sys\nimport numpy as np\n"  # 2 lines
START, GRADIENT = "    x0 = np.ones(3)\n", "    def gradient(self, x, task): return x\n"


def run_with(folder: Path, members: str, *arguments: str) -> tuple[int, str]:
    """Run a job whose problem has these members; return its exit code and what it wrote to stderr."""
    (folder / "mine.py").write_text(f"{IMPORTS}class Mine:\n{members}")
    job = folder / "job.toml"
    job.write_text(JOB.replace('name = "quadratic"\ndimension = 10', 'file = "mine.py"\nclass = "Mine"'))
    done = call("run", str(job), "--virtual", "--out", str(folder / "run.h5"), *arguments)
    return done.exit_code, done.stderr


def rejected(folder: Path, members: str) -> str:
    """Return the first line of what is said about a problem that cannot be used."""
    code, err = run_with(folder, members)
    assert code in (1, 2), err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2  # the second says what is left of the run
    return err.splitlines()[0]


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ("pass", "loss(x) of the problem returned None (is a return statement missing?); it must"),
        ("return x", "returned an array of float64 of shape (3,); it must be one number"),
        ("return '1.0'", "returned '1.0' of type str; it must be one number"),
        ("return 1j", "returned 1j of type complex; it must be one number"),
        ("return np.nan", "the loss is nan before the first round; check loss() or evaluate(), and x0"),
        ("sys.exit(4)", "loss(x) of the problem failed: mine.py:6 calls sys.exit(4); raise an exception"),
    ],
)
def test_a_loss_that_is_no_number_is_named(tmp_path: Path, returns: str, sentence: str) -> None:
    members = f"{START}{GRADIENT}    def loss(self, x): {returns}\n"
    assert sentence in rejected(tmp_path, members)


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ("return [1]", "evaluate(x) of the problem returned [1] of type list; it must"),
        ("pass", "evaluate(x) of the problem returned None (is a return statement missing?); it must"),
        (
            "return {'a': 'b'}",
            "the entry 'a' of what evaluate(x) returned is 'b' of type str; it must",
        ),
        (
            "return {'a': x}",
            "the entry 'a' of what evaluate(x) returned is an array of float64",
        ),
    ],
)
def test_an_evaluation_that_is_no_dict_of_numbers_is_named(
    tmp_path: Path, returns: str, sentence: str
) -> None:
    assert sentence in rejected(tmp_path, f"{START}{GRADIENT}    def evaluate(self, x): {returns}\n")


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (
            "",
            "Mine has no x0 to start from: AttributeError: 'Mine' object has no attribute 'x0'",
        ),
        ("x0 = np.ones(0)", "x0 of Mine has shape (0,); it must have at least one entry"),
        ("x0 = np.array(1.0)", "x0 of Mine has shape (); it must have at least one entry"),
        ("x0 = np.ones(3, int)", "must be a numpy array of float32 or float64"),
        ("x0 = np.array(['a'])", "np.array([1.0, 2.0]), not an array of <U1 of shape (1,)"),
        ("x0 = 'abc'", "np.array([1.0, 2.0]), not 'abc' of type str"),
        ("x0 = np.ones(3) * 1j", "np.array([1.0, 2.0]), not an array of complex128 of shape (3,)"),
        ("x0 = np.array([np.nan])", "x0 of Mine contains NaN or infinite numbers; a run cannot start there"),
        ("def x0(self): return np.ones(3)", "np.array([1.0, 2.0]), not a method"),
        ("@property\n    def x0(self): return self.y", "mine.py:5: AttributeError: 'Mine' object has no"),
    ],
)
def test_a_point_that_a_run_cannot_start_from_is_named(tmp_path: Path, start: str, sentence: str) -> None:
    said = rejected(tmp_path, f"    {start}\n{GRADIENT}" if start else GRADIENT)
    assert sentence in said


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "return x * np.nan",
            "worker 0 (host virtual, slot 0) in round 1: a result contains NaN; check",
        ),
        ("return x * np.inf", "in round 1: a result contains infinite numbers; check gradient()"),
        (
            "return x * 1j",
            "a task of worker 0 in round 1 returned an array of complex128 of shape (3,)",
        ),
        (
            "return 'abc'",
            "returned 'abc' of type str; gradient(x, task) must return an array like x",
        ),
        (
            "return x, 1.0",
            "of type tuple; gradient(x, task) must return an array like x",
        ),
        ("return [[1], [1, 2]]", "returned [[1], [1, 2]] of type list; gradient(x, task) must return"),
        ("pass", "returned None (is a return statement missing?); gradient(x, task) must return"),
        ("yield x", "returned a generator; gradient(x, task) must return an array like x"),
        ("sys.exit()", "failed in round 1: mine.py:5 calls sys.exit(); raise an exception"),
        (
            "x -= 1",
            "mine.py:5: ValueError: output array is read-only; x is read-only for tasks, which may",
        ),
        ("x[0] = 1", "ValueError: assignment destination is read-only; x is read-only for tasks, which may"),
    ],
)
def test_a_task_that_returns_what_cannot_be_used_is_named(tmp_path: Path, body: str, sentence: str) -> None:
    said = rejected(tmp_path, f"{START}    def gradient(self, x, task): {body}\n")
    assert sentence in said


def test_a_task_with_other_parameters_is_told_how_it_is_called(tmp_path: Path) -> None:
    said = rejected(tmp_path, f"{START}    def gradient(self, x): return x\n")
    assert said.endswith("takes 2 positional arguments but 3 were given; it is called as gradient(x, task)")


def test_a_list_of_numbers_like_x_is_a_result(tmp_path: Path) -> None:
    assert run_with(tmp_path, f"{START}    def gradient(self, x, task): return list(x)\n") == (0, "")


def test_a_setup_that_exits_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    said = rejected(tmp_path, f"{START}{GRADIENT}    def setup(self, worker, n): sys.exit('no data')\n")
    assert "setup(worker, n) of the problem failed: mine.py:6 calls sys.exit('no data');" in said


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("int('abc')", "invalid literal for int() with base 10: 'abc' (mine.py:6)"),
        ("json.loads(3)", "mine.py:6: TypeError: the JSON object must be str"),  # raised in the library
        ("self.y", "mine.py:6: AttributeError: 'Mine' object has no attribute 'y'"),
        ("sys.exit()", "mine.py:6 calls sys.exit(); raise an exception that says what is wrong instead"),
    ],
)
def test_an_error_in_a_constructor_points_at_the_users_line(tmp_path: Path, body: str, sentence: str) -> None:
    said = rejected(tmp_path, f"{START}{GRADIENT}    def __init__(self): {body}\n")
    assert sentence in said


def test_a_file_that_cannot_be_imported_is_named_with_the_users_line(tmp_path: Path) -> None:
    said = rejected(tmp_path, f"{START}{GRADIENT}json.loads(3)\n")
    assert "cannot be imported: mine.py:6: TypeError: the JSON object must be str" in said
    said = rejected(tmp_path, "    x0 = np.ones(3\n")
    assert "mine.py:4: SyntaxError: '(' was never closed" in said


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "step_size",
            "stepsize",
            "unknown key 'stepsize' in [method]; {}; did you mean step_size?",
        ),
        ("eta = 1.0", "Eta = 1.0", "unknown key 'Eta' in [allocator]; valid keys: {}; did you mean eta?"),
        ("[stop]", "[stops]", "unknown table 'stops'; valid tables: {}; did you mean stop?"),
        ('"sgd"', '"SDG"', "unknown name 'SDG' in [method]; valid values: {}; did you mean sgd?"),
        ('"sqrt"', '"sqr"', "unknown law 'sqr' in [times]; valid values: {}; did you mean sqrt?"),
        ('"sqrt"', "sqrt", "is not valid TOML: Invalid value (at line {}); texts need quotes"),
        ("rounds = 50", "rounds = 5e1", "rounds = 50.0 in [stop] must be a whole number: write 50"),
        ("[run]", "[[run]]", "[[run]] is a list of tables; write [run]"),
    ],
)
def test_a_misspelt_word_of_a_job_is_named_with_the_one_that_was_meant(
    job: str, old: str, new: str, sentence: str
) -> None:
    Path(job).write_text(JOB.replace(old, new))
    said = call("run", job, "--virtual")
    before, _, after = sentence.partition("{}")
    assert said.exit_code == 2
    assert said.stderr.startswith(f"Error: {job}: {before}")
    assert said.stderr.endswith(f"{after}\n")


@pytest.mark.parametrize("text", [JOB.replace("\n", "\r\n"), f"\ufeff{JOB}"], ids=["line-ends", "mark"])
def test_a_job_from_an_editor_of_windows_runs(job: str, text: str) -> None:
    Path(job).write_bytes(text.encode())
    assert call("run", job, "--virtual", "--set", "run . seed = 3").exit_code == 0


def test_a_run_file_is_no_job_and_a_job_no_run_file(job: str) -> None:
    assert call("run", job, "--virtual", "--out", "run.h5").exit_code == 0
    said = call("run", "run.h5", "--virtual").stderr
    assert said == "Error: run.h5: is an HDF5 file; name a job file, or use mpi-ata show run.h5\n"
    assert call("show", job).stderr.endswith(f"; run a job file with mpi-ata run {job}\n")
    Path(job).write_bytes(JOB.encode("utf-16"))
    said = call("run", job, "--virtual").stderr
    assert said == f"Error: {job}: is not valid TOML: it is not text in UTF-8; save it as such\n"
