"""The table [times] with recorded times or a law of the user's own: strict, reproducible, part of the job."""

import re
from pathlib import Path

import numpy as np
import pytest

from mpi_ata.batch.submission_dir import JobCopy
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import Job, build_parts, load_job
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.times import DrawnTimes, bytedance_se
from tests.driver.driven import driven
from tests.faults.scene import written as job_file

RUN = 'law = "recorded"\nrun = "earlier.h5"'
TABLE = 'law = "recorded"\nfile = "times.csv"'
OWN = 'file = "my_law.py"\nclass = "Two"'
LAW = """
import numpy as np

class Two:
    def __init__(self, n: int, slow: float = 2.0) -> None:
        self.n = n
        self.means = np.where(np.arange(n) % 2, slow, 1.0)

    def draw(self, rng):
        return self.means * (0.5 + rng.random(self.n))
"""


def written(folder: Path, times: str, name: str = "job.toml") -> Path:
    job = job_file(folder / name, "sgd uta", rounds=30, workers=3)
    job.write_text(job.read_text().replace('law = "sqrt"', times))
    (folder / "times.csv").write_text("worker,seconds\n0,1.0\n0,3.0\n1,5.0\n2,0.5\n")
    (folder / "my_law.py").write_text(LAW)
    return job


def recorded(folder: Path, *settings: str) -> Path:
    """Run a job with drawn times in this folder, and return its run file."""
    out = folder / "earlier.h5"
    driven(written(folder, 'law = "sqrt"', "earlier.toml"), settings, output=OutputOptions(out))
    return out


def times_of(job: Job) -> DrawnTimes:
    times = build_parts(job).times
    assert times is not None
    return times


def test_the_times_of_a_run_are_drawn_again_worker_by_worker(tmp_path: Path) -> None:
    sample = load_record(RunFile(recorded(tmp_path)))[0].workers["times"]
    times = times_of(load_job(written(tmp_path, RUN)))
    assert times.means.tolist() == pytest.approx(np.nanmean(sample, 1).tolist())
    for worker in range(3):
        drawn = {times(round, 0).item(worker) for round in range(1, 400)}
        assert drawn == set(sample[worker][~np.isnan(sample[worker])].tolist())


@pytest.mark.slow
def test_a_run_on_recorded_times_takes_as_long_as_the_recorded_run(tmp_path: Path) -> None:
    then = load_record(RunFile(recorded(tmp_path, "stop.rounds=300")))[0].summary
    now = driven(written(tmp_path, RUN), ["stop.rounds=300"]).summary()
    # 300 rounds of uta; the mean over 256 samples and 2,100 tasks of deviation 1/2 is good to 4 %.
    assert now["worker_time"] == pytest.approx(then["worker_time"], rel=0.12)
    assert now["clock"] == pytest.approx(then["clock"], rel=0.12)


def test_a_table_of_times_is_drawn_from_too(tmp_path: Path) -> None:
    times = times_of(load_job(written(tmp_path, TABLE), ["times.unit=0.5"]))
    assert times.means.tolist() == [1.0, 2.5, 0.25]
    assert {tuple(times(round, 0)) for round in range(1, 50)} == {(0.5, 2.5, 0.25), (1.5, 2.5, 0.25)}
    fewer = times_of(load_job(written(tmp_path, TABLE), ["run.workers=2"]))
    assert fewer.means.tolist() == [2.0, 5.0], "of fewer workers the first ones"


def test_a_law_of_ones_own_gets_its_keys_and_the_oracle_its_means(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, f"{OWN}\nslow = 3.5"), ["allocator.name=ofta"])
    parts = build_parts(job)
    assert parts.times is not None
    assert parts.times.means.tolist() == [1.0, 3.5, 1.0]
    assert parts.method.allocator is not None
    assert parts.method.allocator.allocate(np.ones(3, np.bool_)).tolist() == [3, 1, 3]
    assert driven(job.path, ["times.slow=3.5"]).summary()["rounds"] == 30


def test_no_code_of_the_users_runs_when_the_job_is_read(tmp_path: Path) -> None:
    job = written(tmp_path, OWN)
    (tmp_path / "my_law.py").write_text("raise SystemExit")
    times = load_job(job).times
    assert times is not None
    with pytest.raises(UsageError, match=r"my_law.py cannot be imported: .*my_law.py:1 calls sys.exit\(\)"):
        times.label(0)


@pytest.mark.parametrize(("times", "file"), [(RUN, "earlier.h5"), (TABLE, "times.csv"), (OWN, "my_law.py")])
def test_the_file_is_part_of_the_job_and_of_its_copy_for_slurm(tmp_path: Path, times: str, file: str) -> None:
    recorded(tmp_path)
    path, out = written(tmp_path, times), OutputOptions(tmp_path / "run.h5", resume=True)
    before, drawn = load_job(path), times_of(load_job(path))
    driven(path, ["stop.rounds=3"], output=out)
    copies = JobCopy.of([before], tmp_path / "copy")
    copies.make()
    if file == "earlier.h5":
        more = OutputOptions(tmp_path / file, resume=True)
        driven(tmp_path / "earlier.toml", ["stop.rounds=40"], output=more)
    else:
        (tmp_path / file).write_text((tmp_path / file).read_text() + "\n")
    after = load_job(path)
    assert before.digest != after.digest
    assert times_of(after).label != drawn.label, "runs of other times are no warm start for each other"
    with pytest.raises(UsageError, match=f"differs from the job of that run in the file {file}"):
        driven(path, ["stop.rounds=4"], output=out)
    (tmp_path / file).unlink()
    assert times_of(load_job(copies.jobs[0])).means.tolist() == drawn.means.tolist()


def test_who_the_workers_of_a_real_machine_are_is_part_of_their_identity(tmp_path: Path) -> None:
    path = written(tmp_path, 'law = "lonestar6"')
    one, same, other = (times_of(load_job(path, [f"run.seed={seed}"])) for seed in (1, 1, 2))
    assert one.label == same.label == "lonestar6 {} seed 1 x 1 s"
    assert one.means.tolist() == same.means.tolist()
    assert one.label != other.label
    assert one.means.tolist() != other.means.tolist()


@pytest.mark.parametrize(
    ("times", "settings", "law"),
    [
        ('law = "sqrt"', ["times.law=recorded", "times.file=times.csv"], "recorded"),
        ('law = "sqrt"', ["times.file=my_law.py", "times.class=Two"], "Two"),
        (OWN, ["times.law=sqrt"], "Sqrt"),
        (OWN, ["times.law=recorded", "times.run=earlier.h5"], "recorded"),
        (RUN, ["times.file=times.csv"], "recorded"),
        (TABLE, ["times.run=earlier.h5"], "recorded"),
        (TABLE, ["times.law=linear"], "Linear"),
        (RUN, ["times.file=my_law.py", "times.class=Two"], "Two"),
    ],
)
def test_a_law_given_on_the_command_line_replaces_the_one_in_the_file(
    tmp_path: Path, times: str, settings: list[str], law: str
) -> None:
    recorded(tmp_path)
    assert times_of(load_job(written(tmp_path, times), settings)).label.startswith(law)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ('law = "recorded"', "[times] law = 'recorded' needs one of run = 'RUN.h5' and file ="),
        (f'{TABLE}\nrun = "earlier.h5"', "needs one of run = 'RUN.h5' and file = 'times.csv', not both"),
        ('law = "recorded"\nrun = "no.h5"', "no.h5' is not a file; paths are relative to the job file"),
        ('law = "recorded"\nrun = 3', "3' is not a file"),
        ('law = "recorded"\nrun = "times.csv"', "times.csv: is not a run file of mpi_ata"),
        ('law = "recorded"\nfile = "my_law.py"', "my_law.py: line 1: '' must be the header worker,seconds"),
        (f"{TABLE}\nscale = 2.0", "unknown key 'scale' in [times]; valid keys: law, file, unit, report"),
        ('law = "records"', "unknown law 'records' in [times]; valid values: constant, exponential, linear"),
        ('law = "sqrt"\nfile = "my_law.py"', "[times] needs both 'file' and 'class'; 'class' is missing"),
        (f'law = "sqrt"\n{OWN}', "[times] has both 'law' and 'file'; keep one of them"),
        ('file = "my_law.py"\nclass = "Three"', "[times] no class 'Three' in"),
        (f"{OWN}\nfast = 1.0", "unknown key 'fast' in [times]; valid keys: file, class, unit, report"),
        ('law = "lonestar6"\nworkload = "x"', "unknown key 'workload' in [times]; valid keys: law, unit"),
    ],
)
def test_wrong_tables_are_rejected_in_one_sentence(tmp_path: Path, times: str, message: str) -> None:
    (tmp_path / "earlier.h5").touch()
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        build_parts(load_job(written(tmp_path, times)))
    assert "\n" not in str(caught.value)


def test_workers_without_recorded_times_are_rejected_with_the_file(tmp_path: Path) -> None:
    recorded(tmp_path, "allocator.budget=1", "stop.rounds=1")
    with pytest.raises(UsageError, match=r"earlier.h5: worker \d has no recorded time; record a run"):
        build_parts(load_job(written(tmp_path, RUN)))
    with pytest.raises(UsageError, match=r"times.csv: n=4 must be from 1 to 3, the number of recorded"):
        build_parts(load_job(written(tmp_path, TABLE), ["run.workers=4"]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("self.means = np", "self.middle = np", "[times] Two: AttributeError"),
        ("slow, 1.0)", "slow, 1.0)[1:]", "[times] Two: means must be 3 times above 0 and finite, one per"),
        ("slow, 1.0)", "slow, 0.0)", "but worker 0 has 0.0"),
        ("def draw", "def drawn", "[times] Two needs draw(rng), which returns one time per worker"),
        ("return self", "return None and self", "draw(rng) must be 3 times above 0 and finite, one per w"),
        ("return self.means *", "return -self.means *", "draw(rng) must be 3 times above 0 and finite"),
        ("return self", "raise KeyError('x') #", "my_law.py:10: KeyError: 'x'"),
    ],
)
def test_a_law_that_breaks_the_rules_is_rejected_before_the_run(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    job = written(tmp_path, OWN)
    (tmp_path / "my_law.py").write_text(LAW.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(message)):
        build_parts(load_job(job))


def test_a_law_that_goes_wrong_in_mid_run_ends_it_with_the_rule(tmp_path: Path) -> None:
    job = written(tmp_path, OWN)
    count = "self.k = getattr(self, 'k', 9) - 1\n        "
    (tmp_path / "my_law.py").write_text(LAW.replace("return self", f"{count}return self.k * self"))
    with pytest.raises(RunError, match=r"draw\(rng\) of Two must be 3 times above 0 .*worker 0 has 0.0"):
        driven(job)


def mean_time_of_used_tasks(folder: Path, allocator: str) -> float:
    """Return how long the tasks took whose results a run on bytedance-se used."""
    job, out = written(folder, 'law = "bytedance-se"'), folder / f"{allocator}.h5"
    settings = [f"allocator.name={allocator}", "allocator.budget=16", "run.workers=32", "stop.rounds=200"]
    driven(job, settings, output=OutputOptions(out))
    workers = load_record(RunFile(out))[0].workers
    return float(workers["seconds"].sum() / workers["tasks"].sum())


@pytest.mark.slow
def test_where_times_depend_on_the_data_the_first_finishers_are_a_biased_sample(tmp_path: Path) -> None:
    true = bytedance_se(32, seed=5).means.mean()
    # 3,200 tasks of deviation 0.4: the mean is good to 0.6 %, three times which is allowed.
    assert mean_time_of_used_tasks(tmp_path, "uta") == pytest.approx(true, rel=0.02)
    assert mean_time_of_used_tasks(tmp_path, "gta") < 0.85 * true, "short sequences come first"
