"""Recorded times as a law: each worker's own sample, and workers drawn from the tables of real machines."""

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
from mpi_ata.times import (
    DrawnTimes,
    Recorded,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)
from mpi_ata.times.recorded import FOLDER, _spreads, chosen_records, parse_samples

ROOT = Path(__file__).parent.parent.parent
every_machine = pytest.mark.parametrize("name", sorted(MACHINES))
WRONG = ("0,0", "0,nan", "0,inf", "-1,1", "0,1,2")
SAMPLES = [np.array([1.0, 2.0, 6.0]), np.array([5.0]), np.array([0.25, 0.75])]


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def sample(law: Any, draws: int = 4000) -> Array:
    rng = np.random.default_rng(1)
    return np.array([law.draw(rng) for _ in range(draws)])


def test_every_worker_draws_from_its_own_sample_and_draws_all_of_it() -> None:
    drawn = sample(Recorded(3, SAMPLES), 300)
    for worker, own in enumerate(SAMPLES):
        assert set(drawn[:, worker]) == set(own)
    # Equally often: of 300 draws each of three values gets 100, give or take 5 deviations of 8.
    assert all(abs(np.count_nonzero(drawn[:, 0] == time) - 100) < 41 for time in SAMPLES[0])


def test_the_means_are_those_of_the_samples_of_which_the_first_are_used() -> None:
    assert Recorded(3, SAMPLES).means.tolist() == [3.0, 5.0, 0.5]
    assert DrawnTimes(Recorded(2, SAMPLES), unit=2.0).means.tolist() == [6.0, 10.0]


@pytest.mark.parametrize(
    ("n", "samples", "message"),
    [
        (4, SAMPLES, "n=4 must be from 1 to 3, the number of recorded workers"),
        (0, SAMPLES, "n=0 must be from 1 to 3"),
        (2, [SAMPLES[0], np.zeros(0)], "worker 1 has no recorded time; record a run in which every worker"),
        (1, [np.array([1.0, 0.0])], "the recorded times of worker 0 must be above 0 seconds and finite"),
        (1, [np.array([np.inf])], "the recorded times of worker 0 must be above 0 seconds and finite"),
    ],
)
def test_what_cannot_be_drawn_from_is_rejected(n: int, samples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorded(n, samples)


def test_a_table_is_read_in_any_order_of_lines() -> None:
    found = parse_samples("worker,seconds\n1,5\n0,1.0\n\n0, 2e0\n2,0.25\n")
    assert [sample.tolist() for sample in found] == [[1.0, 2.0], [5.0], [0.25]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' must be the header worker,seconds"),
        ("seconds,worker\n1,0", "line 1: 'seconds,worker' must be the header worker,seconds"),
        ("worker,seconds\n", "there is no time of worker 0; workers are counted from 0 without gaps"),
        ("worker,seconds\n0,1\n2,1\n", "there is no time of worker 1"),
        ("worker,seconds\n99999999999,1\n", "there is no time of worker 0"),
        ("worker,seconds\n0,1\n0,x\n", "line 3: '0,x' must be a worker, counted from 0, and seconds above 0"),
        *((f"worker,seconds\n{row}\n", f"line 2: {row!r} must be a worker") for row in WRONG),
    ],
)
def test_a_table_that_is_wrong_is_rejected_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_samples(text)


@every_machine
def test_the_seed_draws_who_the_workers_are(name: str) -> None:
    means = [MACHINES[name](n=13, seed=seed).means.tolist() for seed in (1, 2)]
    assert means[0] == MACHINES[name](n=13, seed=1).means.tolist()
    assert means[0] != means[1]


@pytest.mark.parametrize("records", [3, 10])
def test_every_record_is_used_equally_often_and_who_a_worker_is_does_not_depend_on_n(records: int) -> None:
    chosen = chosen_records(records, 47, seed=4).tolist()
    for n in range(1, 47):
        assert chosen_records(records, n, seed=4).tolist() == chosen[:n]
        used = [chosen[:n].count(record) for record in range(records)]
        assert max(used) - min(used) <= 1


def test_who_workers_are_stays_the_same_in_every_version() -> None:
    assert chosen_records(10, 4, seed=7).tolist() == [5, 2, 1, 9]


def test_all_gpus_of_a_table_have_their_recorded_medians_and_spreads() -> None:
    recorded = rows("frontera-resnet")
    law = frontera(len(recorded), seed=3)
    chosen = chosen_records(len(recorded), len(recorded), 3)
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
    spreads = _spreads([{"cv": "0.1"}, {"cv": ""}, {"cv": "0.3"}, {"cv": "0.2"}])
    assert spreads.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.2])


def test_a_spread_of_the_users_replaces_the_recorded_ones() -> None:
    assert sample(longhorn(5, cv=0.0), 3).std(0) == pytest.approx(0.0, abs=1e-12)
    # 4,000 draws give a deviation to 1.1 %, five times which is 6 %.
    assert sample(lonestar6(5, cv=0.2)).std(0) / lonestar6(5, cv=0.2).means == pytest.approx(0.2, rel=0.06)


def test_generations_come_in_equal_numbers_in_seconds_per_step() -> None:
    counts = Counter(np.round(gpu_generations(48, seed=5).means, 12).tolist())
    assert counts == {round(1 / rate, 12): 16 for rate in (1.2366, 4.8883, 7.7873)}
    slowest = gpu_generations(3, workload="Recommendation (batch size 2048)").means.max()
    assert slowest == pytest.approx(1 / 7.4696), "here the newest generation is the slowest"


def test_one_rank_of_bytedance_ar_is_slow_and_those_of_se_are_equal_but_noisy() -> None:
    ar, se = bytedance_ar(16), bytedance_se(32)
    assert lonestar6(219).means.max() == pytest.approx(2.2, abs=0.01), "and so is one GPU of Lonestar6"
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
        (gpu_generations, {"workload": "chess"}, "workload='chess' must be one of: ResNet-18"),
        (frontera, {"cv": -0.1}, "cv=-0.1 must be at least 0; 0.03 is a spread of 3 %"),
    ],
)
def test_wrong_keys_are_rejected_by_value(law: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        law(3, **keys)


def test_tables_are_small_have_sources_and_licences_and_are_installed(tmp_path: Path) -> None:
    readme = (FOLDER / "README.md").read_text()
    tables = list(FOLDER.glob("*.csv"))
    assert len(tables) == 7
    for table in tables:
        assert table.stat().st_size < 60_000
        assert f"`{table.name}`" in readme
    assert {"MIT", "Apache-2.0"} <= set(re.findall(r"\| (\S+) \|\n", readme))
    pytest.importorskip("setuptools")
    build = ["-W", "ignore", "-c", "import setuptools; setuptools.setup()", "-q", "build_py"]
    subprocess.run([sys.executable, *build, "--build-lib", str(tmp_path)], cwd=ROOT, check=True)
    installed = {path.name for path in (tmp_path / "mpi_ata" / "times" / "machines").iterdir()}
    assert installed == {path.name for path in FOLDER.iterdir()}
