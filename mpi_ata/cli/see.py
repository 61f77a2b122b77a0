"""The commands that show and explain recorded runs."""

from pathlib import Path

import click

from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.plots import PANELS, check_panels, draw_runs
from mpi_ata.view.plots_data import plotted, run_names
from mpi_ata.view.plots_style import check_figure_path

runs_argument = click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
figure_option = click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The figure: .png, .pdf or .svg."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on the last line."
)


def load_run(path: Path) -> Record:
    """Return the record of a run that the user named; a damaged newest save is reported."""
    record, complaint = load_named(RunFile(path))
    if complaint:
        click.echo(f"Note: {complaint}", err=True)
    return record


@click.command(name="plot")
@runs_argument
@figure_option
@click.option("--panels", default=",".join(PANELS), show_default=True, help="Comma-separated names.")
@errors_in_one_sentence
def plot_command(runs: tuple[Path, ...], output: Path, panels: str) -> None:
    """Draw runs, finished or still running, in one figure.

    \b
    Examples:
      mpi-ata plot runs/mine.h5 -o mine.png
      mpi-ata plot runs/ata.h5 runs/gta.h5 -o both.pdf --panels clock,worker-time
    """
    names = [name.strip() for name in panels.split(",")]
    check_panels(names)
    check_figure_path(output)
    labels = run_names(runs)
    draw_runs([plotted(load_run(run), name) for run, name in zip(runs, labels, strict=True)], output, names)
    show(f"drawn to {output}")
