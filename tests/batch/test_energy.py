"""Energy that only Slurm's accounting knows is shown with a run that Slurm has started.

A stand-in for sacct answers here, since accounting needs a database and energy needs sensors.
"""

import json
import os
from pathlib import Path

import pytest

from mpi_ata.batch.slurm import consumed_energy
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from tests.cli.commands import JOB, call

ASKED = "--noheader --parsable2 --duplicates --format=JobID,ConsumedEnergyRaw --jobs="


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def sacct(*lines: str, code: int = 0) -> None:
    """Let sacct print these lines, and write down what it was asked."""
    Path("answer").write_text("".join(f"{line}\n" for line in lines))
    here = Path().absolute()
    Path("sacct").write_text(f'#!/bin/sh\necho "$@" > {here}/asked\ncat {here}/answer\nexit {code}\n')
    Path("sacct").chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "joules"),
    [
        (["12|5000", "12.batch|2000", "12.0|3000"], 5000.0),
        (["12|", "12.batch|2000", "12.extern|1", "12.0|3000"], 3000.0),
        (["12|5000", "12|700", "12.batch|200"], 5700.0),  # it was requeued
        (["12|5000", "13|"], None),
        (["12|0", "12.batch|0"], None),  # as where no plugin gathers energy
        ([], None),
    ],
)
def test_the_lines_of_jobs_are_added_up_and_those_of_steps_are_not(
    lines: list[str], joules: float | None
) -> None:
    sacct(*lines)
    assert consumed_energy(["12", "13"]) == joules
    assert Path("asked").read_text() == f"{ASKED}12,13\n"


def test_where_there_is_no_accounting_the_energy_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sacct("Slurm accounting storage is disabled", code=1)
    assert consumed_energy(["12"]) is None
    monkeypatch.setenv("PATH", "")
    assert consumed_energy(["12"]) is None


def recorded(*jobs: str) -> None:
    """Record a run, as if it had been on ranks of these Slurm jobs."""
    Path("job.toml").write_text(JOB)
    assert call("run", "job.toml", "--virtual", "--out", "run.h5").exit_code == 0
    record, _ = load_record(file := RunFile(Path("run.h5")))
    record.slurm_jobs = jobs
    record.summary["billed"] = 100.0
    file.save(*to_tree(record))


def test_show_and_report_ask_for_the_jobs_of_the_run() -> None:
    recorded("12", "15_3")
    sacct("12|5000", "15_3|2000")
    text, shown = call("show", "run.h5").stdout, json.loads(call("show", "run.h5", "--json").stdout)
    assert "\nenergy         7,000 J: of Slurm job 12, 15_3, with all that ran in it\n" in text
    assert (shown["slurm_jobs"], shown["slurm_energy"]) == (["12", "15_3"], 7000.0)
    assert call("report", "run.h5", "-o", "x.html").exit_code == 0
    assert "Its Slurm jobs (12 and 15_3) used 7,000 J, 20 J per used task" in Path("x.html").read_text()


def test_a_run_without_a_slurm_job_asks_nobody() -> None:
    recorded()
    sacct("12|5000")
    shown = json.loads(call("show", "run.h5", "--json").stdout)
    assert (shown["slurm_jobs"], shown["slurm_energy"]) == ([], None)
    assert not Path("asked").exists()
