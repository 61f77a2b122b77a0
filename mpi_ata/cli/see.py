"""The commands that show and explain recorded runs."""

import json
import sys
from pathlib import Path

import click

from mpi_ata.cli.loading import load_run, load_with_energy
from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.view.explain import explain
from mpi_ata.view.explain_text import explanation_text
from mpi_ata.view.plots import PANELS, check_panels, draw_runs
from mpi_ata.view.plots_data import plotted, run_names
from mpi_ata.view.plots_style import check_figure_path
from mpi_ata.view.progress import Line
from mpi_ata.view.report import check_report_path, write_report
from mpi_ata.view.what_if import what_if
from mpi_ata.view.what_if_question import Question
from mpi_ata.view.what_if_text import what_if_table

run_argument = click.argument("run", type=click.Path(path_type=Path))
runs_argument = click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
figure_option = click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The figure: .png, .pdf or .svg."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on the last line."
)


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
    show(f"wrote {output}")


@click.command(name="what-if")
@run_argument
@click.option("--allocators", default="own,gta,uta", show_default=True, help="Comma-separated names.")
@click.option("--budget", type=click.IntRange(min=1), help="Tasks per round.  [default: that of the run]")
@click.option("--workers", help="A list such as 0-7,12, or a number: that many, the fastest.  [default: all]")
@json_option
@errors_in_one_sentence
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
    question = Question([name.strip() for name in allocators.split(",")], budget, workers)
    line = Line(sys.stderr)

    def begins(name: str) -> None:
        if line.due():
            line.show(f"replaying {name}")

    answer = what_if(load_run(run), run, question, begins)
    line.clear()
    show(json.dumps(answer) if as_json else what_if_table(answer))


@click.command(name="explain")
@run_argument
@click.option("--worker", type=int, help="Explain this worker only, in whole sentences.")
@json_option
@errors_in_one_sentence
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
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The page: a .html file."
)
@errors_in_one_sentence
def report_command(runs: tuple[Path, ...], output: Path) -> None:
    """Write a page about runs for the browser.

    It is a single file and needs no network.

    \b
    Examples:
      mpi-ata report runs/mine.h5 -o mine.html
      mpi-ata report runs/*.h5 -o all.html
    """
    check_report_path(output)
    write_report([load_with_energy(run) for run in runs], runs, output)
    show(f"wrote {output}")
