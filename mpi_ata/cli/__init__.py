"""The command line: each command parses, calls one function, prints."""

import click

from mpi_ata.cli.doctor import doctor_command
from mpi_ata.cli.paper import paper
from mpi_ata.cli.runs import compare, run_command, show_command
from mpi_ata.cli.slurm import batch_command, status_command, stop_command, submit_command
from mpi_ata.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpi-ata")
def main() -> None:
    """Adaptive task allocation over MPI: learn how fast workers are, and give each its share of tasks."""


for command in (
    run_command,
    show_command,
    compare,
    doctor_command,
    paper,
    submit_command,
    status_command,
    stop_command,
    batch_command,
):
    main.add_command(command)
