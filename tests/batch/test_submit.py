"""mpi-ata submit, status and stop without a cluster: what is rejected, and what a dry run prints."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpi_ata.batch.submit import check_signal
from mpi_ata.cli import main
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError
from tests.driver.driven import driven
from tests.slurm.site import DRAWN, MEASURED, OPEN_MPI, OWN, ROOT


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(DRAWN.format(rounds=10))
    return path


def submit(*words: object) -> Result:
    return CliRunner().invoke(main, ["submit", *map(str, words)])


def rejection(*words: object) -> str:
    result = submit(*words)
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    return result.output


def test_a_dry_run_prints_the_script_and_the_command_and_does_nothing(job: Path) -> None:
    words = ["--nodes", 4, "--ntasks-per-node", 8, "--time", "02:00:00", "--partition", "p", "--account", "a"]
    result = submit(job, *words, "--gpus-per-task", 1, "--sbatch", "--constraint=fast", "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    for option in ("nodes=4", "ntasks-per-node=8", "time=02:00:00", "partition=p", "account=a"):
        assert f"#SBATCH --{option}" in lines
    assert "#SBATCH --gpus-per-task=1" in lines
    assert "#SBATCH --constraint=fast" in lines
    assert lines[-1].startswith("$ sbatch --parsable /")
    assert os.listdir() == ["job.toml"]


def test_a_dry_run_prints_the_same_as_json(job: Path) -> None:
    result = submit(job, "-n", 4, "--out", "mine.h5", "--chain", 3, "--dry-run", "--json")
    found = json.loads(result.output.splitlines()[-1])
    assert found["job"] is None
    assert found["runs"] == [str(job.with_name("mine.h5"))]
    assert len(found["commands"]) == 3
    assert "--dependency=afterany:ID" in found["commands"][1]
    assert "#SBATCH --no-requeue" in found["script"]


def test_a_sweep_has_a_member_per_combination(job: Path) -> None:
    words = ["--array", "method.step_size=0.1,0.2", "--array", "run.seed=1,2", "--at-once", 3]
    result = submit(job, "-n", 4, *words, "--out", "mine.h5", "--dry-run", "--json")
    found = json.loads(result.output.splitlines()[-1])
    assert found["runs"] == [str(job.with_name(f"mine-{number}.h5")) for number in range(4)]
    assert "#SBATCH --array=0-3%3" in found["script"]
    assert "2) set -- --out" in found["script"]
    assert "--siblings" in found["script"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", 1], "1 rank is too few"),
        (["-n", 4, "--time", "later"], "--time later is not a Slurm time"),
        (["-n", 4, "--set", "allocator.budgt=3"], "unknown key 'budgt' in [allocator]"),
        (["-n", 4, "--array", "allocator.budget=3,0"], "budget"),
        (["-n", 4, "--array", "allocator.budget"], "is not table.key=value"),
        (["-n", 4, "--array", "run.seed=1,2", "--chain", 2], "--chain and --array cannot be combined"),
        (
            ["-n", 4, "--warm-start", "nowhere.h5"],
            "--warm-start nowhere.h5: there is no such run",
        ),
        (["-n", 4, "--source", "nowhere.sh"], "--source nowhere.sh is not a file"),
        (["-n", 4, "--out", "there.h5"], "there.h5 exists: resume it with --resume"),
        (["-n", 4, "--out", "job.toml/a.h5"], "cannot be created: File exists; choose another file"),
        (["-n", 4, "--resume"], "name its file: --out RUN.h5 --resume"),
        (["-n", 4, "--out", "."], "is a folder; name a file in it"),
        (["-n", 4, "--prior-weight", 0.5], "--warm-start"),
        (["-n", 4, "--any-problem"], "--warm-start"),
        (["-n", 4, "--signal", "KILL"], "--signal KILL cannot be used"),
        (["-n", 4, "--sbatch", "--signal=USR2@5"], "use --signal and --lead of mpi-ata submit"),
        (["-n", 4, "--set", "method.step_size=1\n"], "control character"),
        (["-n", 4, "--out", "a\nb.h5"], "control character"),
    ],
)
def test_a_job_that_could_not_run_is_rejected_before_it_waits_in_a_queue(
    job: Path, words: list[object], sentence: str
) -> None:
    Path("there.h5").touch()
    assert sentence in rejection(job, *words, "--dry-run")
    assert sorted(os.listdir()) == ["job.toml", "there.h5"]


def run_to_end(job: Path, out: str, *words: str) -> None:
    """Run a job until it is finished."""
    result = CliRunner().invoke(main, ["run", str(job), "--virtual", "--workers", "3", "--out", out, *words])
    assert result.exit_code == 0, result.output


def test_a_finished_run_is_not_resumed(job: Path) -> None:
    run_to_end(job, "mine.h5", "--set", "stop.rounds=3")
    more = ["-n", 4, "--out", "mine.h5", "--resume", "--dry-run"]
    assert "mine.h5 is already finished" in rejection(job, *more)


def test_a_run_of_a_job_that_has_changed_is_not_resumed(job: Path) -> None:
    driven(
        job,
        ["run.workers=3"],
        lambda trace: signal.raise_signal(signal.SIGTERM),
        OutputOptions(Path("mine.h5")),
    )
    more = ["-n", 4, "--out", "mine.h5", "--resume", "--dry-run"]
    assert submit(job, *more).exit_code == 0
    job.write_text(job.read_text().replace("step_size = 0.3", "step_size = 0.2"))
    assert "differs from the job of that run in method.step_size" in rejection(job, *more)


def test_a_warm_start_from_another_problem_is_rejected(job: Path) -> None:
    run_to_end(job, "small.h5")
    more = ["-n", 4, "--warm-start", "small.h5", "--set", "problem.dimension=30", "--dry-run"]
    assert "small.h5: is of another problem (dimension = 20, here 30)" in rejection(job, *more)
    script = submit(job, *more, "--any-problem", "--prior-weight", 0.5).output
    assert f"--warm-start {job.with_name('small.h5')} --prior-weight 0.5 --any-problem" in script


def test_a_problem_that_only_the_nodes_can_build_needs_no_check(job: Path) -> None:
    job.write_text(MEASURED.format(rounds=3, seconds=0.0))
    Path("neighbour.py").touch()
    Path("own.py").write_text(OWN.replace("self.seconds = seconds", "open('/only/on/nodes')"))
    assert "to check it on the nodes only, use --no-check" in rejection(job, "-n", 4, "--dry-run")
    assert submit(job, "-n", 4, "--dry-run", "--no-check").exit_code == 0


def test_without_slurm_the_error_says_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch here" in rejection(job, "-n", 4)
    assert list(Path().rglob("*.job")) == []
    for command in (["status", "7"], ["stop", "7"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert "there is no scontrol here" in result.output


def test_a_chain_that_breaks_off_names_the_jobs_that_slurm_accepted(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1"
    for name, line in (("sbatch", f"case $2 in --dep*) {gone} ;; esac; echo 7"), ("scancel", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = submit(job, "-n", 4, "--chain", 2)
    assert result.exit_code == 1
    assert "accepted before that: 7" in result.output


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], ["--ntasks=4"]),
        (["--time", "30", "--chain", 2], ["--ntasks=4"]),
        (["--array", "run.seed=1,2", "--sbatch", "--constraint=fast"], ["--ntasks=4"]),
        (["--nodes", 4], ["--nodes=4"]),
        (["--ntasks-per-node", 3], ["--ntasks-per-node=3"]),
        (["--sbatch", "-n5"], ["-n5"]),
        (["--sbatch", "--mem=4G --ntasks 5"], ["--ntasks", "5"]),
        (["--sbatch", "--nodes=3"], ["--nodes=3"]),
    ],
)
def test_the_number_of_ranks_defaults_to_what_the_job_needs(
    job: Path, words: list[object], options: list[str]
) -> None:
    result = submit(job, "--set", "run.workers=3", *words, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    script = json.loads(result.stdout)["script"].splitlines()
    sizes = ("--ntasks", "--nodes", "-n", "5")
    found = [line.split()[1] for line in script if line.startswith("#SBATCH")]
    assert [option for option in found if option.startswith(sizes) and "--no-r" not in option] == options
    note = "no --ntasks given: using 4, the job's run.workers plus the manager\n"
    assert result.stderr == (note if options == ["--ntasks=4"] else "")


def test_without_ranks_and_workers_nothing_is_submitted(job: Path) -> None:
    assert "job.toml has no run.workers: set --ntasks, the number of ranks" in rejection(job, "--dry-run")
    differ = rejection(job, "--array", "run.workers=2,3", "--dry-run")
    assert "the runs of --array differ in run.workers: set --ntasks" in differ


def test_a_script_that_names_its_submission_dir_gets_no_other(job: Path) -> None:
    run_to_end(job, "mine.h5")
    Path("prepared").mkdir()
    words = [str(OPEN_MPI), "batch", str(job), "--out", "mine.h5", "--submission-dir", "prepared"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "mine.h5 is already finished, after 10 rounds\n")
    assert not Path("mine.job").exists()


def test_only_signals_that_ask_to_save_are_accepted() -> None:
    assert check_signal("USR2") == "USR2"
    for bad in ("TERM", "KILL", "12", "usr1", "$(id)"):
        with pytest.raises(UsageError, match="name one such as USR1"):
            check_signal(bad)


def test_the_script_ignores_the_signal_until_mpi_ata_handles_it(job: Path) -> None:
    script = json.loads(submit(job, "-n", 4, "--dry-run", "--json").output)["script"]
    before, _, _ = script.partition("exec ")
    done = subprocess.run(
        ["bash"], input=f"{before}\nkill -USR1 $$; echo alive", capture_output=True, text=True
    )
    assert done.stdout == "alive\n"


def test_every_submission_in_the_documentation_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/sites/*.md")]
    commands = [line.partition(" #")[0] for path in documents for line in path.read_text().splitlines()]
    commands = [line.removeprefix("$ mpi-ata ") for line in commands if line.startswith("$ mpi-ata submit ")]
    assert len(commands) >= 6
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "env.sh").touch()
    monkeypatch.chdir(tmp_path)
    for command in commands:
        result = CliRunner().invoke(main, [*shlex.split(command), "--dry-run"])
        assert result.exit_code == 0, f"{command}: {result.output}"
