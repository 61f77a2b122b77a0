"""The experiment on CIFAR-100, with a few images in its format."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.paper import figures
from mpi_ata.paper.experiments import CIFAR, PaperRequest
from tests.paper.called import records, rejected
from tests.torch.cifar_files import write

with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: `make torch`")
SMALL = ["--workers", "3", "--budget", "4"]


@with_torch
def test_each_allocator_trains_its_own_network(tmp_path: Path) -> None:
    data = write(tmp_path)
    arguments = ["--data", str(data), "--allocators", "ofta", "--rounds", "6", *SMALL]
    greedy, oracle = records("cifar", *arguments, "--out", str(tmp_path / "runs"))
    assert (tmp_path / "runs" / "cifar.png").exists() == figures.available()
    request = PaperRequest(workers=(3,), budget=4, allocators=("ofta",), rounds=6)
    for found, trial in zip(
        (greedy, oracle), CIFAR.with_request(request).on_cifar(data).trials(), strict=True
    ):
        trace = execute(Plan(trial.job())).trace
        assert (found["allocator"], found["rounds"]) == (trial.allocator, 6)
        assert (found["loss"], found["accuracy"]) == (trace.loss, trace.evaluation["accuracy"])
    assert greedy["loss"] != oracle["loss"], "they saw different images"


@with_torch
def test_prior_knowledge_works_for_the_network_too(tmp_path: Path) -> None:
    data = ["--data", str(write(tmp_path))]
    found = records("prior", *data, "--prior", "50", "--allocators", "ata-half", "--rounds", "4", *SMALL)
    assert [(r["allocator"], r["prior"]) for r in found] == [("gta", 0), ("ata-half", 50)]
    assert all("accuracy" in record for record in found)


def test_the_data_folder_is_required() -> None:
    rejected("train.bin and test.bin: --data FOLDER", "cifar")


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    rejected("install it with pip install 'mpi-ata[torch]'", "cifar", "--data", str(write(tmp_path)))
