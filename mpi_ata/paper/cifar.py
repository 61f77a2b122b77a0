"""The paper's experiment on CIFAR-100: a network trained under each allocator."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import Experiment, Request
from mpi_ata.paper.progress import Watch
from mpi_ata.paper.ratios import RATIO_NAMES, Record, ratio_cells, ratios, total_time
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Result, execute_trial, on_cores

NETWORK = (
    "Three convolutional and two fully connected layers, 159,809 weights (paper: 160k), Adam with step size "
    "8e-5, one image per task; loss and accuracy are those on the first 1,000 test images."
)
HEADER = ["allocator", "n", "rounds", *RATIO_NAMES, "test loss", "accuracy"]


def make_cifar(experiment: Experiment, request: Request, data: Path | None, watch: Watch) -> Report:
    """Train the network under each allocator on the virtual clock, and return the report."""
    if data is None:
        raise UsageError(
            "name the folder with CIFAR-100's binary version, train.bin and test.bin: --data FOLDER"
        )
    experiment = experiment.with_request(request).on_cifar(data)
    build_parts(experiment.trials()[0].job())  # reports missing data or a missing PyTorch at once
    results = on_cores(execute_trial, experiment.trials(), request.cores, watch)
    draw = partial(figures.draw_runs, figures.by_workers(results), panels=figures.LOSS_PANELS)
    return cifar_report(experiment, results).with_figure(request.out, draw)


def cifar_report(experiment: Experiment, results: Sequence[Result]) -> Report:
    """Return ratios after the same number of rounds, and the test loss and accuracy by then."""
    records = ratios(results, experiment.budget)
    title = experiment.heading(f"{experiment.rounds:,} rounds")
    lines = [list(_cells(record)) for record in records]
    return Report(experiment.name, title, HEADER, lines, [*_notes(), total_time(results)], records)


def _cells(record: Record) -> Iterator[str]:
    yield record["allocator"]
    yield str(record["n"])
    yield f"{record['rounds']:,}"
    yield from ratio_cells(record)
    yield from evaluation_cells(record)


def evaluation_cells(record: Record) -> Iterator[str]:
    """Yield the test loss and accuracy of a network."""
    yield f"{record['loss']:.3f}"
    yield f"{100 * record['accuracy']:.1f} %"


def _notes() -> Iterator[str]:
    yield (
        "Each allocator trains its own network with real gradients; the clock is that of the drawn task "
        "times. Ratios are taken after the same number of rounds; the paper prints none, only curves."
    )
    yield NETWORK
