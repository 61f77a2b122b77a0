"""Mistakes in a user's problem or job: each is reported in one sentence, with the line or the rule."""

from pathlib import Path

import pytest

from tests.cli.commands import JOB, call

IMPORTS = "import json, sys\nimport numpy as np\n"  # 2 lines
START, GRADIENT = "    x0 = np.ones(3)\n", "    def gradient(self, x, task): return x\n"
WHOLE = START + GRADIENT
LOSS, EVALUATE = f"{WHOLE}    def loss(self, x): {{}}\n", f"{WHOLE}    def evaluate(self, x): {{}}\n"
POINT, TASK = f"    {{}}\n{GRADIENT}", f"{START}    def gradient(self, x, task): {{}}\n"
BUILT, SETUP = f"{WHOLE}    def __init__(self): {{}}\n", f"{WHOLE}    def setup(self, worker, n): {{}}\n"


def run_with(folder: Path, members: str) -> tuple[int, str]:
    """Run a job whose problem has these members; return its exit code and what it wrote to stderr."""
    (folder / "mine.py").write_text(f"{IMPORTS}class Mine:\n{members}")
    job = folder / "job.toml"
    job.write_text(JOB.replace('name = "quadratic"\ndimension = 10', 'file = "mine.py"\nclass = "Mine"'))
    done = call("run", str(job), "--virtual", "--out", str(folder / "run.h5"))
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("members", "code", "sentence"),
    [
        (LOSS, "pass", "loss(x) of the problem returned None (is a return statement missing?); it must"),
        (LOSS, "return x", "an array of float64 of shape (3,); it must be one number"),
        (LOSS, "return '1.0'", "returned '1.0' of type str; it must be one number"),
        (LOSS, "return 1j", "returned 1j of type complex; it must be one number"),
        (LOSS, "return np.nan", "nan before the first round; check loss() or evaluate(), and x0"),
        (LOSS, "sys.exit(4)", "loss(x) of the problem failed: mine.py:6 calls sys.exit(4); raise an"),
        (EVALUATE, "return [1]", "evaluate(x) of the problem returned [1] of type list; it must"),
        (EVALUATE, "pass", "evaluate(x) of the problem returned None (is a return"),
        (EVALUATE, "return {'a': 'b'}", "the entry 'a' of what evaluate(x) returned is 'b' of type str"),
        (EVALUATE, "return {'a': x}", "the entry 'a' of what evaluate(x) returned is an array of float64"),
        (POINT, "", "Mine has no x0 to start from: AttributeError: 'Mine' object has no attribute 'x0'"),
        (POINT, "x0 = np.ones(0)", "x0 of Mine has shape (0,); it must have at least one entry"),
        (POINT, "x0 = np.array(1.0)", "x0 of Mine has shape (); it must have at least one entry"),
        (POINT, "x0 = np.ones(3, int)", "must be a numpy array of float32 or float64"),
        (POINT, "x0 = np.array(['a'])", "not an array of <U1 of shape (1,)"),
        (POINT, "x0 = 'abc'", "not 'abc' of type str"),
        (POINT, "x0 = np.ones(3) * 1j", "not an array of complex128 of shape (3,)"),
        (POINT, "x0 = np.array([np.nan])", "x0 of Mine contains NaN or infinite numbers; a run cannot start"),
        (POINT, "def x0(self): return np.ones(3)", "np.array([1.0, 2.0]), not a method"),
        (POINT, "@property\n    def x0(self): return self.y", "mine.py:5: AttributeError: 'Mine' object has"),
        (TASK, "return x * np.nan", "worker 0 (host virtual, slot 0) in round 1: a result contains NaN;"),
        (TASK, "return x * np.inf", "in round 1: a result contains infinite numbers; check gradient()"),
        (TASK, "return x * 1j", "a task of worker 0 in round 1 returned an array of complex128 of shape"),
        (TASK, "return 'abc'", "'abc' of type str; gradient(x, task) must return an array like x"),
        (TASK, "return x, 1.0", "of type tuple; gradient(x, task) must return an array like x"),
        (TASK, "return [[1], [1, 2]]", "returned [[1], [1, 2]] of type list; gradient(x, task) must return"),
        (TASK, "pass", "None (is a return statement missing?); gradient(x, task) must return"),
        (TASK, "yield x", "returned a generator; gradient(x, task) must return an array like x"),
        (TASK, "sys.exit()", "failed in round 1: mine.py:5 calls sys.exit(); raise an exception"),
        (TASK, "x -= 1", "mine.py:5: ValueError: output array is read-only; x is read-only for tasks"),
        (TASK, "x[0] = 1", "ValueError: assignment destination is read-only; x is read-only for tasks"),
        (TASK.replace(", task", ""), "return x", "3 were given; it is called as gradient(x, task)"),
        (SETUP, "sys.exit('no data')", "setup(worker, n) of the problem failed: mine.py:6 calls"),
        (BUILT, "int('abc')", "invalid literal for int() with base 10: 'abc' (mine.py:6)"),
        (BUILT, "json.loads(3)", "mine.py:6: TypeError: the JSON object must be str"),
        (BUILT, "self.y", "mine.py:6: AttributeError: 'Mine' object has no attribute 'y'"),
        (BUILT, "sys.exit()", "mine.py:6 calls sys.exit(); raise an exception that says what is wrong"),
        (f"{WHOLE}{{}}\n", "json.loads(3)", "cannot be imported: mine.py:6: TypeError: the JSON object must"),
        ("    {}\n", "x0 = np.ones(3", "mine.py:4: SyntaxError: '(' was never closed"),
    ],
)
def test_what_a_run_cannot_use_is_named(tmp_path: Path, members: str, code: str, sentence: str) -> None:
    exit_code, said = run_with(tmp_path, members.format(code))
    assert exit_code in (1, 2), said
    assert "Traceback" not in said
    assert sentence in said.splitlines()[0]
    assert len(said.splitlines()) <= 2  # the second says what is left of the run


def test_a_list_of_numbers_like_x_is_a_result(tmp_path: Path) -> None:
    assert run_with(tmp_path, TASK.format("return list(x)")) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("step_size", "stepsize", "unknown key 'stepsize' in [method]; ", "; did you mean step_size?"),
        ("eta = 1.0", "Eta = 1.0", "unknown key 'Eta' in [allocator]; valid keys: ", "; did you mean eta?"),
        ("[stop]", "[stops]", "unknown table 'stops'; valid tables: ", "; did you mean stop?"),
        ('"sgd"', '"SDG"', "unknown name 'SDG' in [method]; valid values: ", "; did you mean sgd?"),
        ('"sqrt"', '"sqr"', "unknown law 'sqr' in [times]; valid values: ", "; did you mean sqrt?"),
        ('"sqrt"', "sqrt", "is not valid TOML: Invalid value (at line ", "); texts need quotes"),
        ("rounds = 50", "rounds = 5e1", "rounds = 50.0 in [stop] must be a whole number", ": write 50"),
        ("[run]", "[[run]]", "[[run]] is a list of tables", "; write [run]"),
    ],
)
def test_a_misspelt_word_of_a_job_is_named_with_the_one_that_was_meant(
    job: str, old: str, new: str, before: str, after: str
) -> None:
    Path(job).write_text(JOB.replace(old, new))
    said = call("run", job, "--virtual")
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
    Path("run.h5").rename("my run.h5")
    assert call("run", "my run.h5", "--virtual").stderr.endswith("use mpi-ata show 'my run.h5'\n")
    assert call("my run.h5").stderr.endswith("did you mean mpi-ata show 'my run.h5'?\n")
    Path("my job.toml").write_text(JOB)
    assert call("show", "my job.toml").stderr.endswith("; run a job file with mpi-ata run 'my job.toml'\n")
    Path(job).write_bytes(JOB.encode("utf-16"))
    assert "is not valid TOML: it is not text in UTF-8" in call("run", job, "--virtual").stderr
