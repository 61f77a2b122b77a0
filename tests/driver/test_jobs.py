"""Several jobs on one set of simulated workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters.sharing import Share
from mpi_ata.driver.jobs import (
    Billing,
    JobRun,
    JobSpec,
    job_run,
    resolve_jobs,
    simulate_jobs,
    specify_jobs,
)
from mpi_ata.driver.plan import OutputOptions, resolve
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError
from mpi_ata.runfile.schema import to_tree
from mpi_ata.view.report import not_worth_using, run_summary
from mpi_ata.view.text import duration
from tests.cli.commands import call
from tests.driver.driven import driven, logged
from tests.faults.scene import METHODS, own_problem, record_of, written

OUT = OutputOptions(Path("runs"))
SEEDS = "run.seed=" + ",".join(map(str, range(10)))


def shared(job: Path, *arrays: str, settings: Sequence[str] = (), at_once: int | None = None) -> list[JobRun]:
    """Run the members of a sweep on the same simulated workers."""
    specs = specify_jobs([job], settings, arrays)
    runs = [job_run(spec, resolve(spec.path, spec.settings)) for spec in specs]
    simulate_jobs(runs, at_once)
    return runs


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "job.toml")


@pytest.mark.parametrize("method", ["sgd ata-empirical", "sgd uta", "sgd ofta", "heterogeneous-data-sgd"])
def test_one_job_is_the_run_that_it_would_be_alone(tmp_path: Path, method: str) -> None:
    job = written(tmp_path / "job.toml", method)
    (alone,), run = shared(job, "run.seed=5"), driven(job)
    assert alone.outcome is not None
    assert np.array_equal(alone.outcome.x, run.x)
    assert alone.trace.clock == run.trace.clock


def drawn_means(job: Path, settings: Sequence[str]) -> Array:
    """Return the mean task time of each worker."""
    times = resolve(job, settings).parts().times
    assert times is not None
    return times.means


def makespan(runs: Sequence[JobRun], means: Array) -> float:
    """Return when the last job was done, over the least time in which all could be."""
    tasks = sum(run.trace.used for run in runs)
    return max(run.trace.clock for run in runs) / (tasks / np.sum(1 / means))


@pytest.mark.slow
def test_ten_jobs_are_done_nearly_as_soon_as_if_no_worker_was_ever_idle(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=150, workers=30)
    settings = ["allocator.budget=23", "allocator.name=ata-auto", "run.evaluate_every=1000"]
    runs = shared(job, SEEDS, settings=settings)
    means = drawn_means(job, settings)
    assert makespan(runs, means) < 1.15  # 1.02 with 600 rounds; what is learned first costs a few per cent
    assert sum(run.trace.wasted + run.trace.lost for run in runs) == 0
    alone = driven(job, settings).trace.clock * 10 / (sum(run.trace.used for run in runs) / np.sum(1 / means))
    assert alone > 2.0  # one after another


def test_the_same_jobs_give_the_same_runs_bit_for_bit(job: Path) -> None:
    first, second = shared(job, SEEDS), shared(job, SEEDS)
    for one, other in zip(first, second, strict=True):
        assert one.outcome is not None
        assert other.outcome is not None
        assert np.array_equal(one.outcome.x, other.outcome.x)
        assert one.trace.clock == other.trace.clock


def test_a_job_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    body = "if task.round == 5: raise ValueError('no')"
    bad = written(tmp_path / "bad.toml", problem=own_problem(tmp_path, body))
    good = written(tmp_path / "good.toml")
    runs = [job_run(JobSpec(path, (), path.stem), resolve(path)) for path in (good, bad)]
    simulate_jobs(runs)
    assert [run.state for run in runs] == ["finished", "failed"]
    assert "ValueError: no" in runs[1].error
    assert runs[0].trace.round == 40


def test_different_problems_share_workers(tmp_path: Path) -> None:
    jobs = [written(tmp_path / f"{unit}.toml", times=f"unit = {unit}") for unit in (1.0, 20.0)]
    runs = [job_run(JobSpec(path, (), path.stem), resolve(path)) for path in jobs]
    simulate_jobs(runs)
    assert [run.state for run in runs] == ["finished", "finished"]
    assert runs[0].trace.clock < 0.5 * runs[1].trace.clock  # short tasks do not always wait for long ones


def test_at_most_so_many_jobs_run_at_once(job: Path) -> None:
    one_by_one = shared(job, SEEDS, at_once=1)
    alone = shared(job, "run.seed=0")[0]
    assert one_by_one[0].trace.clock == alone.trace.clock
    both = shared(job, SEEDS, at_once=2)
    assert all(run.state == "finished" for run in both)
    assert both[0].trace.clock > one_by_one[0].trace.clock


def test_each_job_has_a_run_file_of_its_own_which_is_resumed_if_it_is_unfinished(job: Path) -> None:
    first = resolve_jobs(specify_jobs([job], ["stop.rounds=20"], ["run.seed=1,2"]), OUT)
    simulate_jobs(first)
    names = [f"job-seed={seed}.h5" for seed in (1, 2)]
    assert sorted(path.name for path in Path("runs").glob("*.h5*")) == names
    with pytest.raises(UsageError, match="exists; continue it with --resume"):
        resolve_jobs(specify_jobs([job], [], ["run.seed=1,2"]), OUT)
    again = OutputOptions(Path("runs"), resume=True)
    runs = resolve_jobs(specify_jobs([job], ["stop.rounds=40"], ["run.seed=1,2,3"]), again)
    simulate_jobs(runs)
    assert [run.trace.round for run in runs] == [40, 40, 40]
    finished = resolve_jobs(specify_jobs([job], ["stop.rounds=40"], ["run.seed=1,2,3"]), again)
    before = {path: path.stat().st_mtime_ns for path in Path("runs").glob("*.h5")}
    simulate_jobs(finished)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [run.summary()["rounds"] for run in finished] == [40, 40, 40]


def test_a_file_of_a_shared_run_is_like_that_of_a_run_alone(job: Path) -> None:
    simulate_jobs(resolve_jobs(specify_jobs([job], [], ["run.seed=5"]), OUT))
    driven(job, ["run.seed=5"], output=OutputOptions(Path("alone.h5")))
    shared_groups, alone_groups = (
        to_tree(record_of(path))[1] for path in (Path("runs/job-seed=5.h5"), Path("alone.h5"))
    )
    assert shared_groups.keys() == alone_groups.keys()
    for name in ("method", "allocator"):
        for key, value in alone_groups[name].items():
            assert np.array_equal(shared_groups[name][key], value), (name, key)


AUTO = ["allocator.name=ata-auto", "run.evaluate_every=1000"]
IDLE = [*AUTO, "allocator.spares=idle"]


def test_idle_workers_do_spare_tasks_of_the_rounds_that_wait(tmp_path: Path) -> None:
    job = written(tmp_path / "job.toml", rounds=150, workers=30)
    means = drawn_means(job, AUTO)
    without, spare = (shared(job, "run.seed=1,2", settings=settings) for settings in (AUTO, IDLE))
    assert makespan(spare, means) < 0.7 * makespan(without, means)  # 0.56 to 0.61 with ten pairs of seeds
    for run in spare:
        assert run.trace.used == 150 * 7
        assert run.trace.wasted > 0
        assert run.trace.started == run.trace.used + run.trace.wasted
    again = shared(job, "run.seed=1,2", settings=IDLE)
    assert [run.trace.clock for run in again] == [run.trace.clock for run in spare]


@pytest.mark.parametrize("times", ["", "stoppable = false"])
def test_a_round_uses_just_as_many_results_as_its_budget_with_spare_tasks(tmp_path: Path, times: str) -> None:
    problem = own_problem(tmp_path, "return x * 0 + 1")
    job = written(tmp_path / "job.toml", rounds=50, workers=12, problem=problem, times=times)
    for run in shared(job, "run.seed=1,2,3", settings=[*IDLE, "method.step_size=0.5"]):
        assert run.outcome is not None
        assert run.outcome.x == pytest.approx(np.asarray(resolve(job).parts().problem.x0) - 25.0)


def test_spare_tasks_for_idle_workers_are_rejected_where_nobody_shares_them(job: Path) -> None:
    with pytest.raises(UsageError, match="spares = 'idle' is for jobs that share workers"):
        driven(job, IDLE)


@pytest.mark.parametrize("method", ["sgd gta", "sgd m-sync", "ringmaster", "malenia", "mindflayer"])
def test_a_method_that_leaves_nothing_to_others_is_rejected(tmp_path: Path, method: str) -> None:
    assert method in METHODS
    runs = shared(written(tmp_path / "job.toml", method), "run.seed=1,2")
    assert all("or run the job alone" in run.error and run.state == "failed" for run in runs)


def test_jobs_for_different_numbers_of_workers_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the same number of them, not"):
        shared(written(tmp_path / "job.toml"), "run.workers=3,4")


def test_jobs_of_a_sweep_are_called_after_what_differs() -> None:
    specs = specify_jobs([Path("job.toml")], (), ["method.step_size=0.5,1.5", "problem.data=a/b"])
    assert [spec.name for spec in specs] == ["job-step_size=0.5-data=a_b", "job-step_size=1.5-data=a_b"]


def test_resuming_without_a_folder_is_rejected(job: Path) -> None:
    with pytest.raises(UsageError, match="name their folder: --out FOLDER --resume"):
        resolve_jobs(specify_jobs([job], (), ["run.seed=1,2"]), OutputOptions(resume=True))
    assert not Path("runs").exists()


def test_a_misspelt_array_is_reported_as_what_it_is() -> None:
    with pytest.raises(UsageError, match="--array 'seed=1,2' is not"):
        specify_jobs([Path("job.toml")], (), ["seed=1,2"])


def test_a_sweep_ends_with_what_all_of_it_took(job: Path) -> None:
    settings = ["--set", "stop.rounds=20", "--array", "run.seed=1,2"]
    result = call("run", str(job), "--virtual", *settings, "--out", "runs")
    assert result.exit_code == 0, result.stderr
    rows = [record_of(Path(f"runs/job-seed={seed}.h5")).summary for seed in (1, 2)]
    worked = duration(sum(row["worker_time"] for row in rows))
    assert f"\n2 jobs, smallest loss first; in all 40 rounds, worker time {worked}\n" in result.stdout


def test_a_job_whose_round_nobody_waited_for_is_stopped_when_all_have_ended(job: Path) -> None:
    specs = specify_jobs([job], (), ["run.seed=1"])
    run = job_run(specs[0], resolve(specs[0].path, specs[0].settings))
    assert (run.state, run.summary()["state"]) == ("waiting", "waiting")
    run.share = cast(Share, object())
    assert (run.state, run.summary()["state"]) == ("running", "stopped")


def test_a_list_of_jobs_that_cannot_be_written_is_left_out(job: Path) -> None:
    Path("runs/jobs.json/folder").mkdir(parents=True)
    result = call("run", str(job), "--virtual", "--array", "run.seed=1,2", "--out", "runs")
    assert result.exit_code == 0, result.stderr


def test_a_sweep_of_a_misspelt_key_leaves_no_list_of_its_jobs(job: Path) -> None:
    result = call("run", str(job), "--array", "method.stepsize=1,2", "--out", "runs")
    assert (result.exit_code, "did you mean step_size?" in result.stderr) == (2, True)
    assert not list(Path("runs").iterdir())


def test_the_report_of_a_shared_run_calls_no_worker_superfluous(job: Path) -> None:
    settings = ["allocator.name=ata-auto", "run.workers=30"]
    simulate_jobs(resolve_jobs(specify_jobs([job], settings, ["run.seed=1,2"]), OUT))
    driven(job, settings, output=OutputOptions(Path("alone.h5")))
    superfluous = [
        len(not_worth_using(record_of(path))) for path in (Path("alone.h5"), Path("runs/job-seed=1.h5"))
    ]
    assert superfluous[0] > 0 == superfluous[1]
    record = record_of(Path("runs/job-seed=1.h5"))
    record.summary |= {"billed": 0.8 * record.summary["worker_time"]}  # which other jobs have paid for too
    assert any(
        "Its part of the core time that was billed to all jobs" in text for text in run_summary(record)
    )


def test_two_jobs_of_the_same_name_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two of the jobs are called job"):
        specify_jobs([tmp_path / "a" / "job.toml", tmp_path / "b" / "job.toml"], (), ())


def test_jobs_that_import_different_modules_of_the_same_name_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = []
    for name in ("a", "b"):
        (folder := tmp_path / name).mkdir()
        (folder / "neighbour.py").write_text(f"NAME = {name!r}\n")
        jobs.append(written(folder / f"{name}.toml", problem=own_problem(folder, "")))
        (source,) = folder.glob("*[!r].py")
        source.write_text(f"import neighbour\n{source.read_text()}")
    with pytest.raises(UsageError, match=r"import different files neighbour\.py; rename one of them"):
        resolve_jobs(specify_jobs(jobs, (), ()), OUT)
    assert not Path("runs").exists()


def test_a_machine_with_little_memory_runs_fewer_jobs_at_once(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpi_ata.driver.jobs.machine_memory", lambda: 1000)  # bytes: a point has 80
    with logged() as texts:
        runs = shared(job, SEEDS)
    assert all(run.state == "finished" for run in runs)
    assert any("3 jobs run at once, not 4" in text for text in texts)


def test_what_the_ranks_cost_is_divided_among_the_jobs_that_run(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("mpi_ata.driver.trace.time.monotonic", lambda: clock[0])
    specs = specify_jobs([job], (), ["run.seed=1,2"])
    runs = [job_run(spec, resolve(spec.path, spec.settings)) for spec in specs]
    first, second = runs
    first.trace, second.trace = Trace(), Trace()
    first.share = second.share = cast(Share, object())  # so that they count as running
    billing = Billing(runs, cores=10.0)
    billing.on_round(None, first.trace)  # type: ignore[arg-type]
    clock[0], first.trace.worker_time, second.trace.worker_time = 4.0, 30.0, 10.0
    billing.on_round(None, first.trace)  # type: ignore[arg-type]
    clock[0], second.error = 6.0, "it failed"
    second.trace.end()
    billing.on_round(None, first.trace)  # type: ignore[arg-type]
    clock[0] = 8.0
    assert (first.trace.billed, second.trace.billed) == (20.0 + 15.0 + 20.0, 20.0 + 5.0)
