"""CIFAR-100: its files, its network, and tasks on them; on the real data where available."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mpi_ata.cli import main
from mpi_ata.torch import Cifar100
from mpi_ata.torch.cifar100 import DEVIATION, MEAN, Images, _shifted, network, read
from tests.driver.driven import driven
from tests.torch.cifar_files import records, write
from tests.torch.scene import task, torch

JOB = Path(__file__).parent.parent.parent / "jobs" / "cifar100.toml"
REAL = os.environ.get("MPI_ATA_CIFAR", "")
with_real_data = pytest.mark.skipif(
    not REAL, reason="no real CIFAR-100: name the folder of its binary version in MPI_ATA_CIFAR"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("cifar")))


def normalised(images: Any) -> Any:
    """Return pixels by the definition, in double precision."""
    mean, deviation = np.array(MEAN).reshape(3, 1, 1), np.array(DEVIATION).reshape(3, 1, 1)
    return (images.reshape(-1, 3, 32, 32) / 255 - mean) / deviation


def test_the_network_has_160k_weights_in_three_convolutional_and_two_connected_layers(folder: str) -> None:
    model, problem = network(), Cifar100(folder)
    kinds = [type(layer).__name__ for layer in model if list(layer.parameters())]
    assert kinds == ["Conv2d", "Conv2d", "Conv2d", "Linear", "Linear"]
    assert problem.x0.shape == (159_809,)
    assert problem.x0.dtype == np.float32
    assert "159,809 weights" in (Cifar100.__doc__ or "")


def test_images_are_normalised_and_labels_are_the_fine_ones() -> None:
    made = records(9)
    images, labels = Images(made).minibatch(np.array([4, 0, 4]))
    assert images.dtype == torch.float32
    assert images.numpy() == pytest.approx(normalised(made[[4, 0, 4], 2:]), abs=1e-5)
    assert labels.tolist() == made[[4, 0, 4], 1].tolist()


def test_loss_and_accuracy_are_those_on_the_test_images(folder: str) -> None:
    made = records(60, 2)
    labels = torch.tensor(made[:, 1].astype(np.int64))
    for test_images in (None, 10):
        problem, first = Cifar100(folder, test_images=test_images), slice(test_images)
        images = torch.tensor(normalised(made[first, 2:]), dtype=torch.float32)
        outputs = problem.model(images).detach()
        loss = float(torch.nn.functional.cross_entropy(outputs, labels[first]))
        accuracy = float((outputs.argmax(1) == labels[first]).float().mean())
        found = problem.evaluate(problem.x0)
        assert found == {"loss": pytest.approx(loss, rel=1e-4), "accuracy": pytest.approx(accuracy)}


def test_augmented_images_are_flipped_and_shifted_by_up_to_four_pixels() -> None:
    image = np.arange(3 * 32 * 32).astype(np.uint8).reshape(1, 3, 32, 32)
    corners, mirrored = torch.tensor([[4, 4], [4, 4], [0, 8]]), torch.tensor([False, True, False])
    same, mirror, moved = _shifted(np.repeat(image, 3, axis=0), corners, mirrored)
    assert (same == image[0]).all()
    assert (mirror == image[0, :, :, ::-1]).all()
    assert (moved[:, 4:, :28] == image[0, :, :28, 4:]).all(), "four down, four to the left"
    assert not moved[:, :4].any()
    assert not moved[:, :, 28:].any()


def test_augmentation_depends_on_the_task_alone_and_leaves_test_images_alone(folder: str) -> None:
    plain, augmented = Cifar100(folder), Cifar100(folder, augment=True)
    x = plain.x0
    first = augmented.gradient(x, task(1)).copy()
    assert augmented.gradient(x, task(2)).tobytes() != first.tobytes()
    assert augmented.gradient(x, task(1)).tobytes() == first.tobytes()
    assert plain.gradient(x, task(1)).tobytes() != first.tobytes()
    assert augmented.evaluate(x) == plain.evaluate(x)


def test_with_shards_a_worker_has_classes_of_its_own(folder: str) -> None:
    problem = Cifar100(folder, samples=64, sharded=True)
    problem.setup(None, 5)
    labels = [set(problem._minibatches.of_task(task(worker=worker))[0][1].tolist()) for worker in range(5)]
    assert all(max(labels[worker]) <= min(labels[worker + 1]) for worker in range(4))
    everything = set(Cifar100(folder, samples=64)._minibatches.of_task(task())[0][1].tolist())
    assert max(everything) - min(everything) > 80


def test_files_are_mapped_not_read(folder: str) -> None:
    found = read(folder, "train.bin")
    assert isinstance(found, np.memmap) or isinstance(found.base, np.memmap)
    assert not found.flags.writeable


def refusal(folder: Path, *settings: str) -> str:
    """Return what the command prints about the files in a folder."""
    words = [f"problem.data={folder}", "times.law=constant", *settings]
    changes = [argument for word in words for argument in ("--set", word)]
    result = CliRunner().invoke(main, ["run", str(JOB), "--virtual", *changes])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    return result.stderr


def test_a_folder_without_the_files_is_rejected(tmp_path: Path) -> None:
    binary = "has no file 'train.bin': name the folder of CIFAR-100's binary version"
    assert f"data='{tmp_path}' {binary}\n" in refusal(tmp_path)
    (tmp_path / "train").write_bytes(b"pickled")
    assert f"{binary}; that is its Python version" in refusal(tmp_path)
    write(tmp_path)
    (tmp_path / "test.bin").unlink()
    assert "has no file 'test.bin'" in refusal(tmp_path)


@pytest.mark.parametrize("size", [0, 3073, 3074 * 5 - 1, 3073 * 10])
def test_a_file_that_is_cut_off_is_rejected(tmp_path: Path, size: int) -> None:
    write(tmp_path)
    (tmp_path / "train.bin").write_bytes(bytes(size))
    sentence = f"train.bin' has {size:,} bytes, which is not a whole number of images of 3,074"
    assert sentence in refusal(tmp_path)


def test_a_file_with_other_labels_is_rejected(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test.bin").write_bytes(bytes(range(256)) * 3074)
    assert "test.bin' has labels up to 254 and 255, which CIFAR-100 does not have" in refusal(tmp_path)


@pytest.mark.parametrize("setting", ["samples=0", "test_images=0"])
def test_a_wrong_value_is_named(folder: str, setting: str) -> None:
    assert f"{setting} must be at least 1" in refusal(Path(folder), f"problem.{setting}")


def losses(data: str, rounds: int, *changes: str) -> tuple[float, float, float]:
    """Run the job, and return the losses before and after, and the accuracy."""
    settings = [f"stop.rounds={rounds}", f"run.evaluate_every={rounds}", "times.law=linear", *changes]
    trace = driven(JOB, [f"problem.data={data}", *settings]).trace
    assert trace.used == rounds * 23
    first, last = (row.loss for row in trace.rows)
    return first, last, trace.evaluation["accuracy"]


def test_the_job_runs_and_the_loss_falls(folder: str) -> None:
    first, last, accuracy = losses(folder, 12, "method.update=plain", "method.step_size=0.05")
    assert last < first
    assert 0 <= accuracy <= 1


@with_real_data
def test_the_real_data_have_the_sizes_and_the_brightness_they_are_known_for() -> None:
    for name, count in (("train.bin", 50_000), ("test.bin", 10_000)):
        found = read(REAL, name)
        assert len(found) == count
        assert np.bincount(found[:, 1]).tolist() == [count // 100] * 100
    pixels = read(REAL, "train.bin")[:, 2:].reshape(-1, 3, 1024)[::5] / np.float32(255)
    assert pixels.mean(axis=(0, 2)) == pytest.approx(np.array(MEAN), abs=5e-3)
    assert pixels.std(axis=(0, 2)) == pytest.approx(np.array(DEVIATION), abs=5e-3)


@with_real_data
def test_the_network_begins_to_learn_the_real_data() -> None:
    first, last, accuracy = losses(REAL, 150, "method.step_size=1e-3", "problem.test_images=1000")
    assert first == pytest.approx(np.log(100), abs=0.1)
    assert last < first - 0.2
    assert accuracy > 0.03, "three times as good as chance"
