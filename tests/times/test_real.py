"""The laws of real machines: workers drawn from tables, with the speeds and spreads recorded there."""

import csv
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.job.component import MACHINES
from mpi_ata.times import bytedance_ar, bytedance_se, frontera, gpu_generations, lonestar6, longhorn
from mpi_ata.times import recorded as real

ROOT = Path(__file__).parent.parent.parent
every_machine = pytest.mark.parametrize("name", sorted(MACHINES))


def rows(name: str) -> list[dict[str, str]]:
    with (real.FOLDER / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def sample(law: Any, draws: int = 4000) -> Array:
    rng = np.random.default_rng(1)
    return np.array([law.draw(rng) for _ in range(draws)])


@every_machine
def test_the_seed_draws_who_the_workers_are(name: str) -> None:
    means = [MACHINES[name](n=13, seed=seed).means.tolist() for seed in (1, 2)]
    assert means[0] == MACHINES[name](n=13, seed=1).means.tolist()
    assert means[0] != means[1]


@pytest.mark.parametrize("records", [3, 10])
@pytest.mark.parametrize("n", [1, 3, 10, 11, 47])
def test_every_record_is_used_equally_often_up_to_one(records: int, n: int) -> None:
    counts = Counter(real.chosen_records(records, n, seed=4).tolist())
    used = [counts[record] for record in range(records)]
    assert sum(used) == n
    assert max(used) - min(used) <= 1


@pytest.mark.parametrize("records", [3, 10])
def test_who_a_worker_is_does_not_depend_on_how_many_there_are(records: int) -> None:
    chosen = real.chosen_records(records, 31, seed=4).tolist()
    assert all(real.chosen_records(records, n, seed=4).tolist() == chosen[:n] for n in range(1, 31))


def test_who_workers_are_stays_the_same_in_every_version() -> None:
    assert real.chosen_records(10, 4, seed=7).tolist() == [5, 2, 1, 9]


def test_all_gpus_of_a_table_have_their_recorded_medians_and_spreads() -> None:
    recorded = rows("frontera-resnet")
    law = frontera(len(recorded), seed=3)
    chosen = real.chosen_records(len(recorded), len(recorded), 3)
    medians = np.array([float(recorded[i]["relative"]) for i in chosen])
    spreads = np.array([float(recorded[i]["cv"]) for i in chosen])
    times = sample(law)
    # A sample median is off by 1.25 / sqrt(4000) = 2 % of the deviation, a sample deviation by 1.1 % of
    # itself: five standard errors, which one of 296 GPUs exceeds less than once in thousands of runs.
    assert (np.abs(np.median(times, 0) / medians - 1) < 0.1 * spreads).all()
    assert times.std(0) / times.mean(0) == pytest.approx(spreads, rel=0.06)


def test_the_means_of_a_wide_spread_are_true_means() -> None:
    law = longhorn(336, workload="resnet")
    times = sample(law, 20_000)
    errors = np.abs(times.mean(0) - law.means) / (times.std(0) / math.sqrt(20_000))
    assert errors.max() < 5.5, "standard errors: 336 true means exceed this once in 80,000 times"


def test_a_gpu_without_repeats_has_the_median_spread_of_the_others() -> None:
    spreads = real._spreads([{"cv": "0.1"}, {"cv": ""}, {"cv": "0.3"}, {"cv": "0.2"}])
    assert spreads.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.2])


def test_a_spread_of_the_users_replaces_the_recorded_ones() -> None:
    assert sample(longhorn(5, cv=0.0), 3).std(0) == pytest.approx(0.0, abs=1e-12)
    # 4,000 draws give a deviation to 1.1 %, five times which is 6 %.
    assert sample(lonestar6(5, cv=0.2)).std(0) / lonestar6(5, cv=0.2).means == pytest.approx(0.2, rel=0.06)


def test_lonestar6_has_one_gpu_that_is_twice_as_slow() -> None:
    means = lonestar6(219).means
    assert means.max() == pytest.approx(2.2, abs=0.01)
    assert np.median(means) == pytest.approx(1.0, abs=0.001)


def test_generations_come_in_equal_numbers_in_seconds_per_step() -> None:
    counts = Counter(np.round(gpu_generations(48, seed=5).means, 12).tolist())
    assert counts == {round(1 / rate, 12): 16 for rate in (1.2366, 4.8883, 7.7873)}
    slowest = gpu_generations(3, workload="Recommendation (batch size 2048)").means.max()
    assert slowest == pytest.approx(1 / 7.4696), "here the newest generation is the slowest"


def test_one_rank_of_bytedance_ar_is_slow_and_those_of_se_are_equal_but_noisy() -> None:
    ar, se = bytedance_ar(16), bytedance_se(32)
    assert sorted(ar.means > 1.5 * np.median(ar.means)) == [False] * 15 + [True]
    assert ar.means.max() / np.median(ar.means) == pytest.approx(2.3, abs=0.1)
    assert se.means.max() / se.means.min() < 1.12
    times = sample(se)
    assert np.median(times.std(0) / times.mean(0)) == pytest.approx(0.38, abs=0.02)


def test_drawn_times_of_ranks_are_recorded_ones_of_one_rank() -> None:
    law = bytedance_ar(3, seed=2)
    recorded: dict[str, set[float]] = {}
    for row in rows("bytedance-ar"):
        recorded.setdefault(row["worker"], set()).add(float(row["relative"]))
    for times in sample(law, 500).T:
        assert any(set(times.tolist()) <= own for own in recorded.values())


@every_machine
def test_the_scale_multiplies_all_times(name: str) -> None:
    plain, scaled = MACHINES[name](n=4), MACHINES[name](n=4, scale=0.5)
    assert scaled.means == pytest.approx(0.5 * plain.means)
    assert sample(scaled, 5) == pytest.approx(0.5 * sample(plain, 5))


@pytest.mark.parametrize(
    ("law", "keys", "message"),
    [
        (longhorn, {"workload": "chess"}, "workload='chess' must be one of: resnet, sgemm"),
        (
            gpu_generations,
            {"workload": "chess"},
            "workload='chess' must be one of: ResNet-18 (batch size 16)",
        ),
        (frontera, {"cv": -0.1}, "cv=-0.1 must be at least 0; 0.03 is a spread of 3 %"),
    ],
)
def test_wrong_keys_are_rejected_by_value(law: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        law(3, **keys)


def test_tables_are_small_and_have_sources_and_licences() -> None:
    readme = (real.FOLDER / "README.md").read_text()
    tables = list(real.FOLDER.glob("*.csv"))
    assert len(tables) == 7
    for table in tables:
        assert table.stat().st_size < 60_000
        assert f"`{table.name}`" in readme
    assert {"MIT", "Apache-2.0"} <= set(re.findall(r"\| (\S+) \|\n", readme))


def test_tables_are_read_only_when_such_a_law_is_asked_for() -> None:
    code = (
        "import sys, mpi_ata.job\n"
        "def look(name, args):\n"
        "    if name == 'open' and 'machines' in str(args[0]): print('read')\n"
        "sys.addaudithook(look)\n"
        "mpi_ata.job.component.LAWS['sqrt'](3)\n"
        "print('then')\n"
        "mpi_ata.job.component.LAWS['frontera'](3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["then", "read"]


def test_the_tables_are_part_of_what_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    build = ["-W", "ignore", "-c", "import setuptools; setuptools.setup()", "-q", "build_py"]
    subprocess.run([sys.executable, *build, "--build-lib", str(tmp_path)], cwd=ROOT, check=True)
    installed = {path.name for path in (tmp_path / "mpi_ata" / "times" / "machines").iterdir()}
    assert installed == {path.name for path in real.FOLDER.iterdir()}
