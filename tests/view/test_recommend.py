"""How many nodes to ask for: how close predictions are to simulations, which sizes are marked, and why."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.priors import match_prior
from mpi_ata.runfile.schema import to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.recommend import recommend, recommendation_text
from mpi_ata.view.what_if import recording, replay, replayed_jobs
from tests.cli.commands import JOB, call
from tests.marks import slow

RUN = Path("run.h5")


def run_job(law: str = "gpu-generations", workers: int = 24, budget: int = 24, **settings: object) -> None:
    """Run a job on simulated workers, each of which does some tasks."""
    for path in Path().glob("run.h5*"):
        path.unlink()
    Path("job.toml").write_text(JOB)
    wanted = {"times.law": law, "run.workers": workers, "allocator.budget": budget, "allocator.name": "uta"}
    words = [f"--set={name}={value}" for name, value in (wanted | {"stop.rounds": 300} | settings).items()]
    result = call("run", "job.toml", "--virtual", "--out", str(RUN), *words)
    assert result.exit_code == 0, result.stderr


def on_nodes(run: Path, hosts: list[str], ranks: int, hardware: list[str] | None = None) -> None:
    """Save a run as if its workers had been on some nodes, and billed two cores for each rank."""
    record, _ = load_record(file := RunFile(run))
    kinds = hardware or ["some"] * len(hosts)
    record.identities = tuple(
        who._replace(host=host, local_index=number % ranks, hardware=kind, ranks_on_host=ranks)
        for number, (who, host, kind) in enumerate(zip(record.identities, hosts, kinds, strict=True), 1)
    )
    record.summary |= {"elapsed": record.summary["clock"] + 40.0, "setup_time": 10.0}
    record.summary["billed"] = record.summary["elapsed"] * 2 * (len(hosts) + 1)
    file.save(*to_tree(record))


# 300 rounds vary by 25 % / sqrt(300) = 1.5 %.  Where single tasks vary that much, the formula adds up to 6 %.
@pytest.mark.parametrize(
    ("law", "workers", "budget", "error"),
    [
        ("gpu-generations", 24, 24, 0.02),
        *slow(("longhorn", 24, 64, 0.02), ("linear", 17, 23, 0.09), ("mix", 20, 23, 0.05)),
        *slow(("sqrt", 17, 23, 0.09), ("exponential", 12, 20, 0.09), ("bytedance-se", 32, 128, 0.09)),
    ],
)
def test_clock_and_worker_time_are_those_of_a_simulation_on_the_same_workers(
    law: str, workers: int, budget: int, error: float
) -> None:
    run_job(law, workers, budget)
    record, _ = load_record(RunFile(RUN))
    known = replace(recording(record, RUN), prior=match_prior([record.source], record.identities))
    rows = [row for row in recommend([RUN])["sizes"] if row["which"] == "chosen" and row["workers"] > 3]
    assert [row["nodes"] for row in rows][-1] == workers + 1
    for row in rows:
        some = known.only(np.array(sorted(int(host.split()[1]) for host in row["nodelist"])))
        (job,) = replayed_jobs(some, ["ata-auto"], None)
        clock, worker_time, *_ = replay(job, some, 300)
        assert row["clock"] == pytest.approx(clock, rel=error)
        assert row["worker_time"] == pytest.approx(worker_time, rel=error)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "jobs"), [("gpu-generations", 2), ("gpu-generations", 4), ("linear", 10)])
def test_the_makespan_of_jobs_that_share_ranks_is_that_of_a_simulation(law: str, jobs: int) -> None:
    run_job(law)
    steps = ",".join(str(0.1 + 0.01 * number) for number in range(jobs))  # another seed means other machines
    wanted = {"times.law": law, "run.workers": 24, "allocator.budget": 24, "allocator.name": "ata-auto"}
    words = [f"--set={name}={value}" for name, value in (wanted | {"stop.rounds": 600}).items()]
    result = call(
        "run", "job.toml", "--virtual", "--out", "several", *words, "--array", f"method.step_size={steps}"
    )
    assert result.exit_code == 0, result.stderr
    ran = max(load_record(RunFile(path))[0].summary["clock"] for path in Path("several").glob("*.h5"))
    row = recommend([RUN], copies=jobs, rounds=600)["sizes"][-1]
    assert (row["workers"], row["clock"]) == (24, pytest.approx(ran, rel=0.05))
    alone = recommend([RUN], rounds=600)["sizes"][-1]
    assert alone["clock"] < row["clock"] < jobs * alone["clock"]


def test_set_up_gaps_and_idle_cores_are_billed_and_the_manager_has_a_rank() -> None:
    run_job(workers=7, budget=8)
    on_nodes(RUN, ["n1"] * 3 + ["n2"] * 4, ranks=4)
    clock = load_record(RunFile(RUN))[0].summary["clock"]
    answer = recommend([RUN])
    assert (answer["ranks_per_node"], answer["cores_per_rank"], answer["known_nodes"]) == (4, 2, 2)
    one, two = [row for row in answer["sizes"] if row["which"] == "random"]
    assert (one["workers"], two["workers"]) == (3, 7)
    for row in (one, two):
        assert row["elapsed"] == pytest.approx(
            row["clock"] + 40.0
        )  # 10 before the first of 300 rounds, 30 after
        assert row["billed"] == pytest.approx(row["elapsed"] * 8 * row["nodes"])
    longer = recommend([RUN], rounds=600)["sizes"][1]
    assert longer["elapsed"] - 10 == pytest.approx(2 * (two["elapsed"] - 10), rel=0.01)
    assert two["clock"] < clock  # the uniform quotas of the run waited for its slowest worker


def test_price_decides_between_fastest_and_cheapest() -> None:
    run_job()
    chosen = [row for row in recommend([RUN])["sizes"] if row["which"] == "chosen"]
    fastest, cheapest = (
        [mark in row["marks"] for row in chosen].index(True) for mark in ("fastest", "cheapest")
    )
    assert fastest != cheapest
    for price, expected in ((0.0, cheapest), (1000.0, fastest)):
        rows = [row for row in recommend([RUN], price=price)["sizes"] if row["which"] == "chosen"]
        assert "best" in rows[expected]["marks"]


def test_what_limits_a_prediction_is_said() -> None:
    run_job(workers=4, budget=8)
    assert "Simulated: " in "".join(recommend([RUN])["notes"])
    on_nodes(RUN, ["n1", "n1", "n2", "n2"], ranks=2)
    assert recommend([RUN])["notes"] == []
    record, _ = load_record(file := RunFile(RUN))
    record.event(0.0, "lost", "its process has ended", worker=1)
    record.event(0.0, "shared", "its workers serve other jobs too")
    file.save(*to_tree(record))
    dead, shared = recommend([RUN])["notes"]
    assert dead.startswith("1 worker died: ")
    assert shared.startswith("The run shared its workers with other jobs; ")
    assert dead in recommend([RUN, RUN], shared=True)["notes"]  # each job is told of it


def test_kinds_of_nodes_are_told_apart_and_the_choice_of_nodes_makes_the_result_unsure() -> None:
    run_job(workers=4, budget=8)
    on_nodes(RUN, ["n1", "n2", "n3", "n4"], ranks=1, hardware=["old", "old", "new", "new"])
    answer = recommend([RUN], sizes=[2, 3, 40])
    found = {(row["which"], row["nodes"]): row for row in answer["sizes"]}
    assert {which for which, _ in found} == {"random", "chosen", "old", "new"}
    assert ("chosen", 40) not in found  # there are not so many by name
    assert found["random", 40]["clock"] < found["random", 3]["clock"]
    assert found["random", 2]["clock_error"] > 2 * found["chosen", 2]["clock_error"]
    assert ["--nodes 40 is more than the 5 nodes seen" in note for note in answer["notes"]] == [True]
    text = recommendation_text(answer)
    assert "nodes with old:" in text
    assert text.endswith("or with mpi-ata submit JOB.toml --recommended run.h5")


def test_the_command_prints_draws_and_its_best_size_is_what_submit_asks_for() -> None:
    run_job(workers=7, budget=8)
    on_nodes(RUN, ["n1"] * 3 + ["n2"] * 4, ranks=4)
    result = call("recommend", str(RUN), "--json", "-o", "sizes.png")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    assert all(math.isfinite(row[f"{name}_error"]) for row in answer["sizes"] for name in ("clock", "billed"))
    assert Path("sizes.png").read_bytes().startswith(b"\x89PNG")
    (best,) = [row for row in answer["sizes"] if row["which"] == "random" and "best" in row["marks"]]
    script = call("submit", "job.toml", "--recommended", str(RUN), "--dry-run")
    assert f"#SBATCH --nodes={best['nodes']}\n#SBATCH --ntasks-per-node=4\n" in script.stdout
    twice = call("submit", "job.toml", "--recommended", str(RUN), "--nodes", "2", "--dry-run")
    assert (twice.exit_code, "leave out --nodes and --ntasks" in twice.stderr) == (2, True)


@pytest.mark.slow
def test_runs_that_say_nothing_are_rejected() -> None:
    run_job()
    other = call("run", "job.toml", "--virtual", "--out", "other.h5", "--set", "problem.dimension=11")
    assert other.exit_code == 0
    mixed = call("recommend", str(RUN), "other.h5")
    assert (mixed.exit_code, "use it anyway with --shared" in mixed.stderr) == (2, True)
    assert call("recommend", "--shared", str(RUN), "other.h5").exit_code == 0
    assert "--shared has no effect with one run" in call("recommend", "--shared", str(RUN)).stderr
    record, _ = load_record(file := RunFile(RUN))
    record.workers["overhead"] = 2 * record.workers["seconds"]
    file.save(*to_tree(record))
    refused = call("recommend", str(RUN))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "So nothing can be predicted from this run" in refused.stderr
    Path("empty").mkdir()
    assert "there are no run files in empty" in call("recommend", "empty").stderr
