"""A run that starts from what earlier runs learned of the workers: what is taken over, refused and told."""

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mpi_ata import ATAEmpirical, Plain, Sqrt, UsageError, minimize
from mpi_ata.arrays import Array
from mpi_ata.cli import main
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.priors import COLUMNS, RunStats, discount, match_prior
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.faults.scene import own_problem, saved_again, written
from tests.job.test_job import ALLOCATOR

Start = Callable[..., Record]


def started(*arguments: object) -> Result:
    """What a virtual run of the job prints."""
    return CliRunner().invoke(main, ["run", "job.toml", "--virtual", "--json", *map(str, arguments)])


def warm(*paths: object) -> list[object]:
    return [word for path in paths for word in ("--warm-start", path)]


def record(path: str) -> Record:
    return load_record(RunFile(Path(path)))[0]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Lets a run of the job end well, and gives its record; seeds differ from run to run."""
    written(tmp_path / "job.toml", rounds=30, workers=4)
    seeds = iter(range(100))

    def begun(out: str, *arguments: object) -> Record:
        done = started("--out", out, "--set", f"run.seed={next(seeds)}", *arguments)
        assert done.exit_code == 0, done.stderr
        return record(out)

    return begun


def learned(sources: Sequence[RunStats], places: Any) -> dict[str, Array]:
    return match_prior(sources, places).columns


def test_the_allocator_goes_on_where_the_earlier_run_has_ended(start: Start) -> None:
    first = start("1.h5")
    second = start("2.h5", *warm("1.h5"), "--set", "stop.rounds=20")
    assert int(second.allocator["k"]) == 30 + 20
    assert (second.allocator["K"] == first.allocator["K"] + second.workers["tasks"]).all()
    assert second.allocator["T"] == pytest.approx(first.allocator["T"] + second.workers["seconds"])
    assert [event.kind for event in second.events] == ["started", "warm-started", "ended"]
    assert int(second.method["k"]) == 20  # the optimizer starts anew
    assert second.workers["tasks"].sum() == 20 * 7  # and what it learns by itself is kept apart


@pytest.mark.slow
def test_a_chain_of_runs_counts_each_once_however_it_is_given(start: Start) -> None:
    records = [start("1.h5"), start("2.h5", *warm("1.h5")), start("3.h5", *warm("2.h5"))]
    own = {name: sum(r.workers[name] for r in records) for name in ("tasks", "seconds", "squares")}
    least = np.minimum.reduce([r.workers["least"] for r in records])
    given = [["3.h5"], ["."], ["1.h5", "2.h5", "3.h5"], ["3.h5", ".", "1.h5"]]
    Path("later").mkdir()
    for number, paths in enumerate(given):
        later = start(f"later/{number}.h5", *warm(*paths), "--set", "stop.rounds=1")
        known = learned(later.prior, later.identities)
        assert sorted(source.run for source in later.prior) == sorted(r.run for r in records)
        assert sum(source.rounds for source in later.prior) == 90
        assert (known["tasks"] == own["tasks"]).all()
        assert known["seconds"] == pytest.approx(own["seconds"], rel=1e-12)
        assert known["squares"] == pytest.approx(own["squares"], rel=1e-12)
        assert (known["least"] == least).all()


def test_everything_known_travels_through_the_file(start: Start) -> None:
    first = start("1.h5", "--set", "allocator.name=gta")
    second = start("2.h5", *warm("1.h5"))
    assert first.workers["unfinished"].all()
    for name in COLUMNS:
        assert np.array_equal(second.prior[0].columns[name], first.workers[name])
        assert second.prior[0].columns[name].dtype == first.workers[name].dtype
    paid = first.workers["seconds"] + first.workers["unfinished"]
    assert second.allocator["T"] == pytest.approx(paid + second.workers["seconds"])


PROBLEMS = [
    (["problem.dimension=5"], "dimension = 10, here 5"),
    (["problem.noise=0.5"], "noise = 0.1, here 0.5"),
]


@pytest.mark.parametrize(("settings", "words"), PROBLEMS)
def test_runs_of_another_problem_are_refused_unless_asked_for(
    start: Start, settings: list[str], words: str
) -> None:
    start("1.h5")
    changed = [word for setting in settings for word in ("--set", setting)]
    refused = started(*warm("1.h5"), *changed)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith(f"Error: 1.h5: is of another problem ({words}")
    assert refused.stderr.endswith("use it anyway with --any-problem\n")
    taken = started(*warm("1.h5"), *changed, "--any-problem")
    assert taken.exit_code == 0
    assert "4 of 4 workers recognised" in taken.stderr


def test_the_text_of_a_problem_file_counts_not_its_name(start: Start) -> None:
    start("0.h5")
    job = written(Path("job.toml"), rounds=30, workers=4, problem=own_problem(Path(), "pass"))
    assert "another problem (name = 'quadratic', here not given; " in started(*warm("0.h5")).stderr
    start("1.h5")
    job.write_text(job.read_text().replace("own.py", "moved.py"))
    Path("own.py").rename("moved.py")
    assert "4 of 4 workers recognised" in started(*warm("1.h5")).stderr
    Path("moved.py").write_text(Path("moved.py").read_text().replace("pass", "x = x + 1"))
    assert "is of another problem (another problem file)" in started(*warm("1.h5")).stderr


OWN = """
from mpi_ata import Quadratic

class Mine(Quadratic):
    def __init__(self, dimension, noise=0.1):
        self.dimension, self.noise = dimension, noise
        super().__init__(dimension, noise)
"""


@pytest.mark.parametrize(("noise", "fits"), [(0.1, True), (0.2, False)])
def test_what_a_job_leaves_out_and_a_script_describes_is_no_difference(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noise: float, fits: bool
) -> None:
    Path("mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    written(Path("job.toml"), rounds=30, workers=4, problem='file = "mine.py"\nclass = "Mine"\ndimension = 6')
    start("1.h5")
    mine = importlib.import_module("mine")
    monkeypatch.delitem(sys.modules, "mine")
    rejected = pytest.raises(UsageError, match=r"is of another problem \(noise = 0.1, here 0.2\)")
    options: dict[str, Any] = {"budget": 4, "update": Plain(0.1), "rounds": 3, "times": Sqrt(4)}
    with nullcontext() if fits else rejected:
        minimize(mine.Mine(6, noise), warm_start="1.h5", out="2.h5", **options)
    assert Path("2.h5").exists() == fits


def test_in_a_folder_what_does_not_fit_is_left_out_with_a_word(start: Start) -> None:
    Path("runs").mkdir()
    start("runs/good.h5")
    start("runs/other.h5", "--set", "problem.dimension=5")
    Path("runs/empty.h5").write_bytes(b"")
    Path("runs/notes.txt").write_text("no run")
    done = started("--out", "2.h5", *warm("runs"))
    assert done.exit_code == 0
    assert "Note: skipped: runs/empty.h5: is empty\n" in done.stderr
    assert "Note: skipped: runs/other.h5: is of another problem (dimension = 5," in done.stderr
    assert "from 30 rounds of 1 earlier run: 4 of 4 workers recognised" in done.stderr
    assert done.stderr.count("Note:") == 3


def test_a_folder_of_many_files_that_do_not_fit_is_told_in_few_words(start: Start) -> None:
    Path("runs").mkdir()
    for number in range(20):
        Path(f"runs/{number}.h5").write_text("no run")
    done = started(*warm("runs"))
    assert (done.exit_code, done.stderr.count("Note:")) == (0, 5)
    assert "Note: skipped: 17 more files in runs\n" in done.stderr
    assert "Note: no run to warm-start from in runs: all workers start cold\n" in done.stderr


def test_a_run_whose_newest_generation_is_damaged_counts_by_the_one_before(start: Start) -> None:
    start("1.h5", "--set", "stop.rounds=20")
    saved_again(Path("1.h5"))
    Path("1.h5").write_bytes(Path("1.h5").read_bytes()[:-100])
    done = started(*warm("1.h5"))
    assert done.exit_code == 0
    assert "is truncated" in done.stderr
    assert "from 20 rounds of 1 earlier run: 4 of 4 workers recognised" in done.stderr
    Path("1.h5").unlink()
    for path in (".", "1.h5"):
        assert "4 of 4 workers recognised" in started(*warm(path)).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prior-weight", "0", "--warm-start", "."], "--prior-weight 0 must be above 0 and at most 1"),
        (["--prior-weight", "1.5", "--warm-start", "."], "--prior-weight 1.5 must be above 0 and at most 1"),
        (["--prior-weight", "nan", "--warm-start", "."], "--prior-weight nan must be above 0 and at most 1"),
        (["--prior-weight", "0.5"], "--prior-weight requires --warm-start"),
        (["--any-problem"], "--any-problem requires --warm-start"),
        (["--accept-changes"], "--accept-changes requires --resume"),
        (["--warm-start", "none.h5"], "--warm-start none.h5: there is no such run file or folder"),
        (["--warm-start", "job.toml"], "job.toml: is not a run file of mpi_ata"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(start: Start, arguments: list[str], words: str) -> None:
    done = started("--out", "2.h5", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {words}")
    assert done.stderr.count("\n") == 1
    assert not Path("2.h5").exists()


def test_a_run_that_goes_on_needs_none_of_the_files_it_was_started_from(start: Start) -> None:
    start("1.h5")
    start("2.h5", *warm("1.h5"))
    Path("1.h5").unlink()  # as where a job is requeued with its first command
    done = started("--out", "2.h5", "--resume", "--set", "stop.rounds=31", *warm("1.h5"))
    assert done.exit_code == 0
    assert int(record("2.h5").allocator["k"]) == 61


def test_allocators_that_learn_nothing_accept_a_prior_and_hand_it_on(start: Start) -> None:
    runs = [start("1.h5"), start("2.h5", *warm("1.h5"), "--set", "allocator.name=gta")]
    assert [source.run for source in start("3.h5", *warm("2.h5")).prior] == [each.run for each in runs]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asgd ata-empirical", "heterogeneous-data-sgd", "malenia", "ringmaster"])
def test_every_method_starts_from_a_prior(start: Start, method: str) -> None:
    start("1.h5")
    written(Path("job.toml"), method)
    assert [source.rounds for source in start("2.h5", *warm("1.h5"), "--any-problem").prior] == [30]


def test_an_allocator_of_ones_own_that_cannot_inherit_starts_anew_and_is_told(start: Start) -> None:
    start("1.h5")
    Path("first.py").write_text(ALLOCATOR)
    text = Path("job.toml").read_text()
    Path("job.toml").write_text(text.replace('name = "ata-empirical"', 'file = "first.py"\nclass = "First"'))
    done = started(*warm("1.h5"))
    assert done.exit_code == 0, done.stderr
    assert "Note: First has no inherit(rounds, known), so it starts cold\n" in done.stderr


def rounds_until_dropped(weight: float) -> int:
    """How many rounds give worker 0 a task, which was the fastest of six and is now 20 times slower."""
    tasks, means = np.full(6, 1000), np.array([1.0, *[4.0] * 5])
    columns = dict.fromkeys(COLUMNS, np.zeros(6)) | {"tasks": tasks, "arrivals": tasks, "least": means}
    columns |= {"seconds": tasks * means, "squares": tasks * means**2}
    known = discount(RunStats("1", 1000, [WorkerIdentity("a", i, "b") for i in range(6)], columns), weight)
    allocator = ATAEmpirical(6, budget=6)
    allocator.inherit(known.rounds, known.columns)
    for number in range(1000):
        quota = allocator.allocate(np.ones(6, np.bool_)).tolist()
        if not quota[0]:
            return number
        for worker, count in enumerate(quota):
            allocator.observe(worker, [4.0 if worker else 20.0] * count)
    return 1000


def test_a_machine_that_has_changed_is_relearned_sooner_at_less_weight() -> None:
    assert 1 < 5 * rounds_until_dropped(0.01) < rounds_until_dropped(1.0) < 1000


def test_the_weight_of_a_prior_is_that_of_the_command(start: Start) -> None:
    tasks = start("1.h5").workers["tasks"]
    second = start("2.h5", *warm("1.h5"), "--prior-weight", "0.1")
    assert second.prior[0].columns["tasks"].tolist() == np.maximum(1, np.round(tasks * 0.1)).tolist()
    assert second.prior[0].rounds == 3
