"""The commands that show and explain recorded runs."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from mpi_ata.cli.options import PATH, complete_allocators, json_option, price_option, run_argument, show
from mpi_ata.runfile.load import SLURM_ENERGY, describe, load_named
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view import plots
from mpi_ata.view.explain import explain, explanation_text
from mpi_ata.view.live import Display, folder_text, saved_run, saved_runs, snapshot_text, watch, watch_folder
from mpi_ata.view.recommend import draw_recommendation, recommend, recommendation_text
from mpi_ata.view.report import write_report
from mpi_ata.view.summaries import format_run
from mpi_ata.view.what_if import what_if, what_if_table


def load_run(path: Path) -> Record:
    """Return the record of a run that the user named; a damaged newest save is reported."""
    record, complaint = load_named(RunFile(path))
    if complaint:
        show(f"Note: {complaint}", err=True)
    return record


def load_with_energy(path: Path) -> Record:
    """Return a record with the energy of its Slurm jobs, which Slurm is asked for."""
    record = load_run(path)
    if record.slurm_jobs:
        from mpi_ata.batch.interface import scheduler

        record.summary[SLURM_ENERGY] = scheduler().consumed_energy(record.slurm_jobs)
    return record


NUMBER = click.IntRange(min=1)
runs_argument = click.argument("runs", nargs=-1, required=True, type=PATH)


@click.command(name="show")
@run_argument
@json_option
def show_command(run: Path, as_json: bool) -> None:
    """Print the contents of a run file.

    Shows the job, its progress, the events and the workers.

    \b
    Examples:
      mpi-ata show runs/mine.h5
      mpi-ata show runs/mine.h5 --json
    """
    running = RunLock(run).is_held()
    record = load_with_energy(run)
    described = describe(record)
    show(json.dumps(described) if as_json else format_run(described, run, record, running))


@click.command(name="plot")
@runs_argument
@click.option("-o", "--output", required=True, type=PATH, help="The figure: .png, .pdf or .svg.")
@click.option("--panels", default=",".join(plots.PANELS), show_default=True, help="Comma-separated names.")
def plot_command(runs: tuple[Path, ...], output: Path, panels: str) -> None:
    """Draw runs, finished or still running, in one figure.

    \b
    Examples:
      mpi-ata plot runs/mine.h5 -o mine.png
      mpi-ata plot runs/ata.h5 runs/gta.h5 -o both.pdf --panels clock,worker-time
    """
    names = [name.strip() for name in panels.split(",")]
    plots.check_panels(names)
    plots.check_figure_path(output)
    labels = zip(runs, plots.run_names(runs), strict=True)
    plots.draw_runs([plots.plotted(load_run(run), name) for run, name in labels], output, names)
    show(f"wrote {output}")


@click.command(name="what-if")
@run_argument
@click.option(
    "--allocators",
    default="own,gta,uta",
    show_default=True,
    help="Comma-separated names.",
    shell_complete=complete_allocators,
)
@click.option("--budget", type=click.IntRange(min=1), help="Tasks per round.  [default: that of the run]")
@click.option("--workers", help="A list such as 0-7,12, or a number: that many, the fastest.  [default: all]")
@json_option
def what_if_command(
    run: Path, allocators: str, budget: int | None, workers: str | None, as_json: bool
) -> None:
    """Predict what a run would have taken under other allocators.

    Replays its recorded task times on a virtual clock; `own` is the allocator that it had.

    \b
    Examples:
      mpi-ata what-if runs/mine.h5
      mpi-ata what-if runs/mine.h5 --allocators ata-auto,ofta --budget 64
      mpi-ata what-if runs/mine.h5 --allocators own --workers 0-7,12
    """
    names, line = [name.strip() for name in allocators.split(",")], Display(sys.stderr)

    def begins(name: str) -> None:
        if line.due():
            line.show(f"replaying {name}")

    answer = what_if(load_run(run), run, names, budget, workers, begins)
    line.clear()
    show(json.dumps(answer) if as_json else what_if_table(answer))


@click.command(name="recommend")
@runs_argument
@click.option("--shared", is_flag=True, help="The runs are of jobs that are to share ranks.")
@click.option("--jobs", "copies", type=NUMBER, default=1, help="How many jobs like this share ranks.")
@click.option("--nodes", "sizes", type=NUMBER, multiple=True, help="A size.  [default: 1, 2, 4, ...]")
@click.option("--rounds", type=NUMBER, help="Rounds of the job.  [default: its stop.rounds]")
@price_option
@click.option("-o", "--output", type=PATH, help="A figure of time against cost: .png, .pdf or .svg.")
@json_option
def recommend_command(runs: tuple[Path, ...], output: Path | None, as_json: bool, **options: Any) -> None:
    """Recommend how many nodes to ask for, by learned speeds.

    The first run names the job; others of the same problem add what they know about nodes.

    \b
    Examples:
      mpi-ata recommend runs/mine.h5
      mpi-ata recommend runs/mine.h5 runs/ --nodes 4 --nodes 8 --price 3 -o sizes.png
      mpi-ata recommend runs/mine.h5 --jobs 8
      mpi-ata recommend --shared runs/a.h5 runs/b.h5
    """
    if output is not None:
        plots.check_figure_path(output)
    answer = recommend(runs, **options)
    for note in answer["notes"]:
        show(note, err=True)
    if output is not None:
        draw_recommendation(answer, output)
        show(f"wrote {output}", err=True)
    show(json.dumps(answer) if as_json else recommendation_text(answer))


@click.command(name="explain")
@run_argument
@click.option("--worker", type=int, help="Explain this worker only, in whole sentences.")
@json_option
def explain_command(run: Path, worker: int | None, as_json: bool) -> None:
    """Explain why workers get as many tasks as they do, or none.

    \b
    Examples:
      mpi-ata explain runs/mine.h5
      mpi-ata explain runs/mine.h5 --worker 7
    """
    answer = explain(load_run(run), worker)
    show(json.dumps(answer) if as_json else explanation_text(answer, one=worker is not None))


@click.command(name="report")
@runs_argument
@click.option("-o", "--output", required=True, type=PATH, help="The page: a .html file.")
def report_command(runs: tuple[Path, ...], output: Path) -> None:
    """Write a page about runs for the browser.

    It is a single file and needs no network.

    \b
    Examples:
      mpi-ata report runs/mine.h5 -o mine.html
      mpi-ata report runs/*.h5 -o all.html
    """
    plots.check_output(output, "report", ".html")
    write_report([load_with_energy(run) for run in runs], runs, output)
    show(f"wrote {output}")


@click.command(name="watch")
@run_argument
@click.option("--once", is_flag=True, help="Print it once, as it is now.")
@click.option("--follow", is_flag=True, help="Wait for a run that was stopped to be resumed.")
def watch_command(run: Path, once: bool, follow: bool) -> None:
    """Show a run while it runs elsewhere, until it ends.

    Reads the run file again each time that the run saves it; Ctrl-C ends watching, not the run.  A run that
    is not running is printed once.  Of a folder, all runs are shown in one table.

    \b
    Examples:
      mpi-ata watch runs/mine.h5
      mpi-ata watch runs/mine.h5 --once
      mpi-ata watch runs/mine.h5 --follow
      mpi-ata watch runs/sweep
    """
    with suppress(KeyboardInterrupt):
        if run.is_dir():
            show(folder_text(saved_runs(run)) if once else watch_folder(run, sys.stdout, follow))
        else:
            show(snapshot_text(saved_run(run)) if once else watch(run, sys.stdout, follow))
