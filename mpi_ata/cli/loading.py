"""Reading the run files that a user names."""

from pathlib import Path

import click

from mpi_ata.runfile.describe import SLURM_ENERGY
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile


def load_run(path: Path) -> Record:
    """Return the record of a run that the user named; a damaged newest save is reported."""
    record, complaint = load_named(RunFile(path))
    if complaint:
        click.echo(f"Note: {complaint}", err=True)
    return record


def load_with_energy(path: Path) -> Record:
    """Return a record with the energy of its Slurm jobs, where its own counters know none: Slurm is asked."""
    record = load_run(path)
    if record.slurm_jobs and record.summary.get("energy") is None:
        from mpi_ata.slurm.commands import consumed_energy

        record.summary[SLURM_ENERGY] = consumed_energy(record.slurm_jobs)
    return record
