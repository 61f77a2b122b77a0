"""The command that checks the setup."""

import json
import sys
from dataclasses import asdict

import click

from mpi_ata import launch
from mpi_ata.cli.options import json_option, show
from mpi_ata.doctor.checks import Finding
from mpi_ata.layout import MANAGER


@click.command(name="doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Check MPI, launcher, cores and Slurm, and print what to fix.

    Checks Python, the loaded MPI and its launcher, cores, threads, the output folder and Slurm, and runs a
    tiny job on two ranks. The exit code is 1 if something would keep jobs from running; notes do not count.

    \b
    Examples:
      mpi-ata doctor --json
      mpi-ata doctor
      mpirun -n 5 mpi-ata doctor
    """
    from mpi_ata.doctor.on_ranks import examine, exchange_on_ranks
    from mpi_ata.launch.mpirun import loaded_library

    if launch.under_launcher() and launch.rank() != MANAGER:
        exchange_on_ranks(loaded_library())
        return
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            show(finding_text(finding))
    if as_json:
        show(json.dumps([asdict(finding) for finding in findings]))
    if not all(finding.ok for finding in findings):
        sys.exit(1)


def finding_text(finding: Finding) -> str:
    """Return a finding as one line, and below it what to do."""
    state = "problem" if not finding.ok else "note" if finding.remedy else "ok"
    remedy = f"\n{'':24}-> {finding.remedy}" if finding.remedy else ""
    return f"{state:<7}  {finding.name:<13}  {finding.found}{remedy}"
