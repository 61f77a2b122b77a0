"""The paper's experiment on CIFAR-100: a network trained under each allocator, with gradients of its own."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from mpi_ata.driver.loop import parts_of
from mpi_ata.errors import UsageError
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import Experiment, Request
from mpi_ata.paper.progress import Watch
from mpi_ata.paper.ratios import NAMES, Record, effort, ratio_cells, ratios
from mpi_ata.paper.report import Report
from mpi_ata.paper.runs import Result, execute_plan, on_cores

NETWORK = (
    "Three convolutional and two fully connected layers, 159,809 weights (the paper: 160k), Adam with step "
    "8e-5, one image a task; loss and accuracy are those on the first 1,000 images for testing."
)
HEADER = ["allocator", "n", "rounds", *NAMES, "test loss", "accuracy"]


def make_cifar(experiment: Experiment, request: Request, data: Path | None, watch: Watch) -> Report:
    """Train the network under each allocator, on the virtual clock."""
    if data is None:
        raise UsageError(
            "name the folder with CIFAR-100's binary version, train.bin and test.bin: --data FOLDER"
        )
    experiment = experiment.asked(request).on_data(data)
    parts_of(experiment.plans()[0].job())  # so that missing data or PyTorch are told at once
    results = on_cores(execute_plan, experiment.plans(), request.cores, watch)
    draw = partial(figures.draw_runs, figures.by_workers(results), panels=figures.LOSS_PANELS)
    return cifar_report(experiment, results).drawn(request.out, draw)


def cifar_report(experiment: Experiment, results: Sequence[Result]) -> Report:
    """Ratios after the same number of rounds, and what the network has learned by then."""
    records = ratios(results, experiment.budget)
    title = experiment.heading(f"{experiment.rounds:,} rounds")
    lines = [list(_cells(record)) for record in records]
    return Report(experiment.name, title, HEADER, lines, [*_notes(), effort(results)], records)


def _cells(record: Record) -> Iterator[str]:
    yield record["allocator"]
    yield str(record["n"])
    yield f"{record['rounds']:,}"
    yield from ratio_cells(record)
    yield from learned_cells(record)


def learned_cells(record: Record) -> Iterator[str]:
    """What a network has learned."""
    yield f"{record['loss']:.3f}"
    yield f"{100 * record['accuracy']:.1f} %"


def _notes() -> Iterator[str]:
    yield (
        "Every allocator trains a network of its own with real gradients; the clock is that of the drawn "
        "task times. Ratios are those after the same number of rounds; the paper prints none, only curves."
    )
    yield NETWORK
