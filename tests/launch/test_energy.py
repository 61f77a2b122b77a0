"""Energy is what the counters of a node say, and not known where they say nothing."""

import math
import time
from pathlib import Path

import pytest

from mpi_ata.launch import energy
from mpi_ata.launch.energy import EnergyMeter


def processor(system: Path, folder: str, name: str, value: int, span: int = 1000_000_000) -> Path:
    """Write the counter of a processor, in microjoules, and return its file."""
    domain = system / "class/powercap" / folder
    domain.mkdir(parents=True)
    (domain / "name").write_text(f"{name}\n")
    (domain / "max_energy_range_uj").write_text(f"{span}\n")
    (domain / "energy_uj").write_text(f"{value}\n")
    return domain / "energy_uj"


def cray(system: Path, joules: int) -> Path:
    path = system / "cray/pm_counters/energy"
    path.parent.mkdir(parents=True)
    path.write_text(f"{joules} J\n")
    return path


def test_the_packages_and_their_memory_are_added_up(tmp_path: Path) -> None:
    first = processor(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    second = processor(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    memory = processor(tmp_path, "intel-rapl:0:1", "dram", 0)
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0.0
    for file, value in ((first, 6_000_000), (second, 9_000_000), (memory, 4_000_000)):
        file.write_text(f"{value}\n")
    assert meter.joules() == pytest.approx(7.0)
    assert meter.joules() == pytest.approx(7.0)


def test_what_is_part_of_a_package_or_contains_it_is_not_counted_twice(tmp_path: Path) -> None:
    package = processor(tmp_path, "intel-rapl:0", "package-0", 0)
    core = processor(tmp_path, "intel-rapl:0:0", "core", 0)
    whole = processor(tmp_path, "intel-rapl:1", "psys", 0)
    same = processor(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    meter = EnergyMeter(tmp_path)
    for file in (package, core, whole, same):
        file.write_text("3000000")
    assert meter.joules() == pytest.approx(3.0)


def test_a_counter_that_starts_again_is_counted_on(tmp_path: Path) -> None:
    file = processor(tmp_path, "intel-rapl:0", "package-0", 90_000_000, span=100_000_000)
    meter = EnergyMeter(tmp_path)
    for value, joules in ((95_000_000, 5.0), (15_000_000, 25.0), (10_000_000, 120.0)):
        file.write_text(str(value))
        assert meter.joules() == pytest.approx(joules)


def test_a_counter_that_starts_again_more_than_once_is_noticed_though_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "INTERVAL", 0.01)
    file = processor(tmp_path, "intel-rapl:0", "package-0", 0, span=100_000_000)
    meter = EnergyMeter(tmp_path)
    for value in (60_000_000, 20_000_000, 80_000_000, 40_000_000):
        (tmp_path / "new").write_text(str(value))
        (tmp_path / "new").replace(file)
        time.sleep(0.5)
    assert meter.joules() == pytest.approx(240.0)


def test_crays_counter_of_the_whole_node_comes_first(tmp_path: Path) -> None:
    processor(tmp_path, "intel-rapl:0", "package-0", 0)
    file = cray(tmp_path, 1000)
    meter = EnergyMeter(tmp_path)
    file.write_text("1234 J\n")
    assert meter.joules() == 234.0


def test_a_counter_that_cannot_be_read_makes_the_energy_unknown(tmp_path: Path) -> None:
    assert math.isnan(EnergyMeter(tmp_path).joules())
    processor(tmp_path, "intel-rapl:0", "package-0", 0)
    unreadable = processor(tmp_path, "intel-rapl:1", "package-1", 0)
    unreadable.write_text("")
    assert math.isnan(EnergyMeter(tmp_path).joules())


def test_a_counter_that_vanishes_on_the_way_makes_the_energy_unknown(tmp_path: Path) -> None:
    file = cray(tmp_path, 1000)
    meter = EnergyMeter(tmp_path)
    file.unlink()
    assert math.isnan(meter.joules())
    file.write_text("2000 J\n")
    assert math.isnan(meter.joules()), "what was used meanwhile is not known"
