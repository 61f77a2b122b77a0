"""mpi-ata submit without a cluster: what is rejected, what a dry run prints, what the script passes on."""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata.batch.interface import Resources, Script
from mpi_ata.batch.slurm import check_resources
from mpi_ata.batch.submit import Submission, Sweep, check_signal, script_text
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError
from mpi_ata.limits import file_system
from tests.cli.commands import call, start
from tests.driver.driven import driven
from tests.slurm.private import ROOT
from tests.slurm.site import DRAWN, MEASURED, OWN

PRINT = ("printf", "%s\\0")
HOURS = Resources(nodes=4, ntasks_per_node=8, time="02:00:00")
SCRIPT = Script("job", HOURS, Path("/w d"), Path("/log"), PRINT)
NASTY = ["", "a b", "it's", '"', "$HOME", "$(id)", "`id`", ";id", "#", "*", "\\", "--", "ä", "!!", "a=b"]
MEMORY = Path("/dev/shm")  # noqa: S108
WITH_DATA = """
from pathlib import Path
from mpi_ata import Quadratic

class Mine(Quadratic):
    def __init__(self, data: Path):
        super().__init__(int(data.read_text()))
"""
Slurm = Callable[..., None]
ARGUMENTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)


def received_args(script: Script, member: int | None = None) -> list[str]:
    """Return the arguments that the command of a script receives."""
    environment = dict(os.environ) | ({} if member is None else {"SLURM_ARRAY_TASK_ID": str(member)})
    text = script_text(script)
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_the_script_begins_with_the_options_of_sbatch() -> None:
    more = replace(SCRIPT, resources=replace(HOURS, more=("--mem 4G", "--comment='two words'")))
    assert script_text(more).splitlines()[:13] == [
        "#!/bin/bash",
        "#SBATCH --job-name=job",
        '#SBATCH "--chdir=/w d"',
        "#SBATCH --output=/log-%j.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --time=02:00:00",
        "#SBATCH --mem",
        "#SBATCH 4G",
        '#SBATCH "--comment=two words"',
    ]


def test_each_further_kind_of_node_is_a_component_with_the_same_time() -> None:
    components = ("--nodes 2 --constraint=a100", "-N1 --partition=big")
    lines = script_text(replace(SCRIPT, resources=replace(HOURS, components=components))).splitlines()
    first, second = [number for number, line in enumerate(lines) if line == "#SBATCH hetjob"]
    assert lines[first + 1 : second] == [
        "#SBATCH --time=02:00:00",
        "#SBATCH --nodes",
        "#SBATCH 2",
        "#SBATCH --constraint=a100",
    ]
    assert "#SBATCH --partition=big" in lines[second:]
    with pytest.raises(UsageError, match="--array and --and cannot be combined"):
        script_text(
            replace(SCRIPT, resources=replace(HOURS, components=components), members=(("a",), ("b",)))
        )
    with pytest.raises(UsageError, match="conflicts with the batch script"):
        check_resources(Resources(components=("--array=0-3",)))


@settings(max_examples=25, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=5))
def test_arguments_arrive_unchanged(arguments: list[str]) -> None:
    assert received_args(replace(SCRIPT, command=(*PRINT, *NASTY, *arguments))) == [*NASTY, *arguments]


def test_each_member_of_an_array_gets_its_own_arguments() -> None:
    members = tuple((argument, f"{number}") for number, argument in enumerate(NASTY))
    script = replace(SCRIPT, command=(*PRINT, "all"), members=members, at_once=3)
    assert f"--array=0-{len(NASTY) - 1}%3" in script_text(script)
    for number in (0, 4, len(NASTY) - 1):
        assert received_args(script, number) == ["all", NASTY[number], str(number)]
    with pytest.raises(AssertionError, match="no such member: 99"):
        received_args(script, 99)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_passes_shellcheck() -> None:
    more = replace(SCRIPT, command=(*PRINT, *NASTY), members=(("--set", "a.b='x y'"), ("it's",)))
    for script in (SCRIPT, more, replace(more, source=Path("/it's/set up.sh"))):
        done = subprocess.run(["shellcheck", "-"], input=script_text(script), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\x1b[2J", "a\u2028b", "a\u202eb", "a\x7fb"])
def test_control_characters_are_rejected_everywhere(bad: str) -> None:
    changes: list[dict[str, Any]] = [
        {"command": ("echo", bad)},
        {"members": ((bad,),)},
        *({name: Path(bad)} for name in ("source", "workdir", "log")),
        {"name": bad},
        {"resources": Resources(partition=bad)},
        {"resources": Resources(account=bad)},
        {"resources": Resources(gpus_per_task=bad)},
    ]
    for change in changes:
        with pytest.raises(UsageError, match="control character"):
            script_text(replace(SCRIPT, **change))
    with pytest.raises(UsageError, match="control character"):
        check_resources(Resources(more=(f"--comment={bad}",)))


@pytest.mark.parametrize("bad", ['say "hi"', "back\\slash"])
def test_options_that_sbatch_cannot_parse_are_rejected(bad: str) -> None:
    with pytest.raises(UsageError, match="leave it out"):
        script_text(replace(SCRIPT, resources=Resources(partition=bad)))


def test_the_lead_is_shorter_in_a_short_job() -> None:
    for time, lead, expected in (("02:00:00", None, 60), ("1", None, 15), (None, None, 60), ("1", 40, 40)):
        assert Submission((Path("job.toml"),), Resources(time=time), lead=lead).script_lead == expected


def test_a_sweep_has_all_combinations() -> None:
    sweep = Sweep.of(["a.b=1,2", 'c.d="x,y",[1, 2]'])
    values = [(a, c) for a in ("a.b=1", "a.b=2") for c in ('c.d="x,y"', "c.d=[1, 2]")]
    assert list(sweep.members) == values
    assert sweep.same_problem
    assert not Sweep.of(["problem.noise=1,2"]).same_problem


@pytest.mark.parametrize("text", ["a.b=", "a.b", "ab=1,2", "a.b=,"])
def test_a_sweep_without_values_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        Sweep.of([text])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(DRAWN.format(rounds=10))
    return path


def submit(*words: object) -> Result:
    return call("submit", *map(str, words))


def rejection(*words: object) -> str:
    result = submit(*words)
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    return result.output


def planned(*words: object) -> dict[str, Any]:
    """Return the JSON that a dry run prints."""
    result = submit(*words, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_a_dry_run_prints_the_script_and_the_command_and_does_nothing(job: Path) -> None:
    words = ["--nodes", 4, "--ntasks-per-node", 8, "--time", "02:00:00", "--partition", "p", "--account", "a"]
    result = submit(job, *words, "--gpus-per-task", 1, "--sbatch", "--constraint=fast", "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    asked = "nodes=4 ntasks-per-node=8 time=02:00:00 partition=p account=a gpus-per-task=1 constraint=fast"
    assert {f"#SBATCH --{option}" for option in asked.split()} <= {*lines}
    assert lines[-1].startswith("$ sbatch --parsable /")
    assert os.listdir() == ["job.toml"]


def test_a_chain_is_several_jobs_each_after_the_one_before(job: Path) -> None:
    found = planned(job, "-n", 4, "--out", "mine.h5", "--chain", 3)
    assert (found["job"], found["runs"]) == (None, [str(job.with_name("mine.h5"))])
    assert ["--dependency=afterany:ID" in command for command in found["commands"]] == [False, True, True]
    assert "#SBATCH --no-requeue" in found["script"]


def test_a_sweep_has_a_member_per_combination(job: Path) -> None:
    words = ["--array", "method.step_size=0.1,0.2", "--array", "run.seed=1,2", "--at-once", 3]
    found = planned(job, "-n", 4, *words, "--out", "mine.h5")
    assert found["runs"] == [str(job.with_name(f"mine-{number}.h5")) for number in range(4)]
    for text in ("#SBATCH --array=0-3%3", "2) set -- --out", "--siblings"):
        assert text in found["script"]


def test_jobs_that_share_ranks_are_one_batch_job_with_a_folder_of_runs(job: Path) -> None:
    words = ["-n", 4, "--array", "run.seed=1,2", "--shared", "--at-once", 3]
    found = planned(job, *words, "--out", "sweep")
    assert found["runs"] == [str(job.with_name("sweep"))]
    assert "#SBATCH --array" not in found["script"]
    assert (
        found["script"].rstrip().endswith(f"--array run.seed=1,2 --at-once 3 --out {job.with_name('sweep')}")
    )
    shutil.copy(job, other := job.with_name("other.toml"))
    both = planned(job, other, "-n", 4)
    assert "files/job.toml" in both["script"]
    assert "files/other.toml" in both["script"]


TWO_RUNS = """
import sys
import mpi_ata
from mpi_ata import Constant, Plain, Pool, Quadratic

mpi_ata.minimize(Quadratic(3), 2, update=Plain(0.1), rounds=5, times=Constant(1, (1.0,)), out="ignored.h5")
with Pool(times=Constant(2, (1.0, 2.0))) as pool:
    print(pool.map(abs, [-1, -2]), sys.argv[1:], flush=True)
sys.exit(int(sys.argv[1]))
"""


def test_a_script_is_submitted_with_its_arguments_and_each_of_its_runs_is_recorded(job: Path) -> None:
    script = job.with_name("two.py")
    script.write_text(TWO_RUNS)
    assert "two.py is a script: set --ntasks, the number of ranks" in rejection(script)
    assert "--shared is for job files" in rejection(script, "-n", 3, "--array", "a=1", "--shared")
    assert "'a' is not KEY=VALUE" in rejection(script, "-n", 3, "--array", "a")
    assert "a script is submitted alone" in rejection(job, script, "-n", 3)
    words = ["--dry-run", "--json", "-n", 3, "--array", "seed=1,2", "--out", "mine.h5"]
    found = json.loads(submit(*words, "--", script, 0, "--fast").stdout.splitlines()[-1])
    assert found["runs"] == [str(job.with_name(f"mine-{number}.h5")) for number in range(2)]
    tail = f"--set seed=2 -- {job.with_name('mine.job')}/files/two.py 0 --fast ;;"
    assert tail in found["script"]
    done = start("run", str(script), "0")
    assert done.returncode == 2
    assert "two.py is a script, not a job file: use python" in done.stderr
    failed = start("batch", "--out", "run.h5", str(script), "3")
    assert failed.returncode == 1, failed.stderr
    assert "the script has ended with exit code 3" in Path("run.job/run.failed").read_text()
    for text in ("finished after 6 rounds: run.h5", "run.h5 is already finished, after 6 rounds"):
        done = start("batch", "--out", "run.h5", "--set", "seed=1", str(script), "0")
        assert (done.returncode, text in done.stderr) == (0, True), done.stderr
    assert [Path(name).exists() for name in ("run.h5", "run.2.h5", "ignored.h5")] == [True, True, False]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", 1], "1 rank is too few"),
        (["-n", 4, "--shared"], "--shared requires --array"),
        (["-n", 4, "--time", "later"], "--time later is not a Slurm time"),
        (["-n", 4, "--set", "allocator.budgt=3"], "unknown key 'budgt' in [allocator]"),
        (["-n", 4, "--array", "allocator.budget=3,0"], "budget"),
        (["-n", 4, "--array", "allocator.budget"], "is not table.key=value"),
        (["-n", 4, "--array", "run.seed=1,2", "--chain", 2], "--chain and --array cannot be combined"),
        (["-n", 4, "--warm-start", "nowhere.h5"], "--warm-start nowhere.h5: there is no such run"),
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
        ([], "job.toml has no run.workers: set --ntasks, the number of ranks"),
        (["--array", "run.workers=2,3"], "the runs of --array differ in run.workers: set --ntasks"),
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
    result = call("run", str(job), "--virtual", "--workers", "3", "--out", out, *words)
    assert result.exit_code == 0, result.output


def test_a_finished_run_is_not_resumed(job: Path) -> None:
    run_to_end(job, "mine.h5", "--set", "stop.rounds=3")
    more = ["-n", 4, "--out", "mine.h5", "--resume", "--dry-run"]
    assert "mine.h5 is already finished" in rejection(job, *more)


def test_a_run_of_a_job_that_has_changed_is_not_resumed(job: Path) -> None:
    output = OutputOptions(Path("mine.h5"))
    driven(job, ["run.workers=3"], lambda trace: signal.raise_signal(signal.SIGTERM), output)
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
    for command in ("status", "stop"):
        result = call(command, "7")
        assert result.exit_code == 2
        assert "there is no scontrol here" in result.output


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return what gives Slurm's commands their answers: lines of shell; those that are not set fail."""
    folder = tmp_path_factory.mktemp("slurm")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def answer(**lines: str) -> None:
        for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue"):
            (folder / name).write_text(f"#!/bin/sh\n{lines.get(name, 'exit 1')}\n")
            (folder / name).chmod(0o755)

    return answer


def test_copies_of_the_users_files_have_their_permissions_also_when_submitted_again(
    job: Path, tmp_path: Path, slurm: Slurm
) -> None:
    slurm(sbatch="echo 7", scontrol="echo slurm_load_jobs error: Invalid job id >&2; exit 1")
    job.write_text(MEASURED.format(rounds=3, seconds=0.0))
    modes = {"job.toml": 0o600, "own.py": 0o400, "neighbour.py": 0o755, "env.sh": 0o440}
    (tmp_path / "own.py").write_text(OWN)
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    for more in ([], ["--resume"]):
        result = submit(job, "-n", 4, "--no-check", "--source", "env.sh", "--out", "mine.h5", *more)
        assert result.exit_code == 0, result.output
        copies = {path.name: path for path in Path("mine.job").rglob("*.*")}
        copies["env.sh"] = copies["source.sh"]
        assert {name: stat.S_IMODE(copies[name].stat().st_mode) for name in modes} == modes


def test_a_job_that_no_nodes_can_hold_is_reported_before_it_waits_for_ever(job: Path, slurm: Slurm) -> None:
    failure = "allocation failure: Requested node configuration is not available"
    slurm(sbatch=f"case $* in *--test-only*--ntasks=4000*) echo '{failure}' >&2; exit 1;; *) echo 7;; esac")
    for more in ([], ["--dry-run"]):
        result = submit(job, "-n", 4000, "--no-check", *more)
        assert result.exit_code == 0, result.output
        assert result.stderr == (
            "Slurm cannot start this job on any nodes as they are now (Requested node configuration is not "
            "available): ask for less, or it waits until nodes are added or return to service\n"
        )
        assert submit(job, "-n", 4, *more).stderr == ""


def test_a_chain_that_breaks_off_names_the_jobs_that_slurm_accepted(job: Path, slurm: Slurm) -> None:
    gone = "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1"
    slurm(sbatch=f"case $2 in --dep*) {gone} ;; esac; echo 7")
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
    found = planned(job, "--set", "run.workers=3", *words)
    given = [line.split()[1] for line in found["script"].splitlines() if line.startswith("#SBATCH")]
    sizes = ("--ntasks", "--nodes", "-n", "5")
    assert [option for option in given if option.startswith(sizes) and "--no-r" not in option] == options
    note = "no --ntasks given: using 4, the job's run.workers plus the manager"
    assert found["notes"] == ([note] if options == ["--ntasks=4"] else [])


def test_a_relative_path_of_data_starts_at_the_job_also_from_a_copy(job: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WITH_DATA)
    (tmp_path / "numbers.txt").write_text("3")
    named = '[problem]\nfile = "mine.py"\nclass = "Mine"\ndata = "numbers.txt"\n\n[method]'
    job.write_text(re.sub(r"(?s)\[problem\].*?\[method\]", named, job.read_text()))
    assert f'problem.data="{tmp_path / "numbers.txt"}"' in planned(job, "-n", 3)["script"].replace("'", "")


def test_a_folder_in_memory_that_nodes_cannot_share_is_noticed(job: Path) -> None:
    assert file_system(MEMORY) == "tmpfs"
    notes = planned(job, "-n", 3, "--out", MEMORY / "mine.h5")["notes"]
    assert [note.partition(",")[0] for note in notes] == [f"{MEMORY} is on tmpfs"]


def test_a_script_that_names_its_submission_dir_gets_no_other(job: Path) -> None:
    run_to_end(job, "mine.h5")
    Path("prepared").mkdir()
    done = start("batch", str(job), "--out", "mine.h5", "--submission-dir", "prepared")
    assert (done.returncode, done.stderr) == (0, "mine.h5 is already finished, after 10 rounds\n")
    assert not Path("mine.job").exists()


def test_only_signals_that_ask_to_save_are_accepted() -> None:
    assert check_signal("USR2") == "USR2"
    for bad in ("TERM", "KILL", "12", "usr1", "$(id)"):
        with pytest.raises(UsageError, match="name one such as USR1"):
            check_signal(bad)


def test_the_script_ignores_the_signal_until_mpi_ata_handles_it() -> None:
    before, _, _ = script_text(SCRIPT).partition("exec ")
    text = f"{before}\nkill -USR1 $$; echo alive"
    assert subprocess.run(["bash"], input=text, capture_output=True, text=True).stdout == "alive\n"


def test_every_submission_in_the_documentation_is_accepted(tmp_path: Path) -> None:
    documents = ROOT.glob("docs/*.md")
    commands = [line.partition(" #")[0] for path in documents for line in path.read_text().splitlines()]
    commands = [line.removeprefix("$ mpi-ata ") for line in commands if line.startswith("$ mpi-ata submit ")]
    assert len(commands) >= 6
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "runs").mkdir()
    known = ("--virtual", "--workers", "3", "--set", "stop.rounds=9", "--out", "runs/earlier.h5")
    assert call("run", "jobs/emulated.toml", *known).exit_code == 0  # for --recommended
    call("new", "my_job")
    for command in commands:
        result = call(*shlex.split(command), "--dry-run")
        assert result.exit_code == 0, f"{command}: {result.output}"
