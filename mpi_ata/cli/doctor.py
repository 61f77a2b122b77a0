"""The command that tells what is there to run jobs with."""

import json
import sys
from dataclasses import asdict

import click

from mpi_ata import launch
from mpi_ata.doctor.finding import Finding


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as a JSON list on the last line.")
def doctor_command(as_json: bool) -> None:
    """Tell what is there to run jobs with, and what to mend.

    Looks at Python, the MPI that is loaded and its launcher, cores, threads, the output folder and Slurm, and
    runs a tiny job on two ranks. Exit code 1 if something would keep jobs from running; notes do not count.

    \b
    Examples:
      mpi-ata doctor --json
      mpi-ata doctor
      mpirun -n 5 mpi-ata doctor
    """
    from mpi_ata import doctor
    from mpi_ata.launch.library import loaded_library

    if launch.under_launcher() and launch.rank() > 0:
        doctor.exchange_on_ranks(loaded_library())
        return
    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        if not as_json:
            click.echo(finding_text(finding))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    if not all(finding.ok for finding in findings):
        sys.exit(1)


def finding_text(finding: Finding) -> str:
    """One line of the doctor's, and below it what to do."""
    state = "problem" if not finding.ok else "note" if finding.remedy else "ok"
    remedy = f"\n{'':24}-> {finding.remedy}" if finding.remedy else ""
    return f"{state:<7}  {finding.name:<13}  {finding.found}{remedy}"
