"""What mpi-ata compare prints, and what it rejects."""

import json
from pathlib import Path

import pytest

from mpi_ata.runfile.progress import read_progress
from mpi_ata.view.summaries import comparison_table
from tests.cli.commands import KEYS, call, start, use_own_problem


def test_compare_prints_a_row_per_allocator_and_ratios_if_greedy_is_among_them(job: str) -> None:
    result = call("compare", job, "--virtual", "--allocators", "gta, uta,ofta")
    assert result.exit_code == 0
    header, _, *rows = result.stdout.splitlines()
    assert header.endswith("clock / greedy  worker time / greedy")
    assert [row.split()[0] for row in rows] == ["gta", "uta", "ofta"]
    assert rows[0].split()[-2:] == ["1.00", "1.00"]
    assert all(float(row.split()[-1]) < 1 for row in rows[1:]), "both do less work than greedy allocation"
    done = call("compare", job, "--virtual", "--allocators", "uta,ofta", "--set", "stop.gap=1")
    assert (done.exit_code, "greedy" in done.stdout) == (0, False), "and no round was needed"


def test_an_unfinished_run_has_no_ratios() -> None:
    totals = {"rounds": 9, "clock": 1.0, "worker_time": 2.0, "tasks_wasted": 0, "waste": 0.0}
    rows = [{"allocator": name, "finished": name != "uta"} | totals for name in ("gta", "own", "uta")]
    shown = [line.split()[-2:] for line in comparison_table(rows).splitlines()[2:]]
    assert shown == [["1.00", "1.00"], ["1.00", "1.00"], ["-", "-"]]


def test_compare_with_json_prints_a_list_with_the_result_of_each(job: str) -> None:
    result = start("compare", job, "--virtual", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    rows = json.loads(result.stdout.splitlines()[-1])
    assert [row["allocator"] for row in rows] == ["ata-auto", "ata-empirical", "gta", "uta"]
    assert all(set(row) == KEYS | {"allocator"} for row in rows)
    assert [row["tasks_wasted"] > 0 for row in rows] == [False, False, True, False]


def test_compare_gives_each_allocator_the_same_result_as_run(job: str) -> None:
    names = ["--allocators", "uta,ata-empirical"]
    compared = json.loads(call("compare", job, "--virtual", "--json", *names).stdout)
    alone = json.loads(call("run", job, "--virtual", "--json").stdout)
    own = {"allocator": "ata-empirical", "elapsed": compared[1]["elapsed"], "out": None}
    assert compared[1] == alone | own


def test_compare_skips_an_allocator_that_the_method_rejects_unless_it_is_named(job: str) -> None:
    arguments = ["compare", job, "--virtual", "--set", "method.name=asgd"]
    result = call(*arguments)
    assert [row.split()[0] for row in result.stdout.splitlines()[2:]] == ["ata-auto", "ata-empirical", "uta"]
    assert result.stderr == "Note: gta is left out: its counterpart here is the method ringmaster\n"
    assert call(*arguments, "--allocators", "uta,gta").exit_code == 2


def test_compare_runs_the_job_under_several_methods_too(job: str) -> None:
    methods = ["--methods", "sgd, ringmaster:delay=9:step_size=0.05,rennala-mvr:a=0.5", "--seeds", "2"]
    result = call("compare", job, "--virtual", *methods)
    assert result.exit_code == 0, result.stderr
    names = ["sgd", "ringmaster:delay=9:step_size=0.05", "rennala-mvr:a=0.5"]
    assert [row.split()[0] for row in result.stdout.splitlines()] == ["method", "-" * len(names[1]), *names]
    found = json.loads(call("compare", job, "--virtual", "--json", *methods).stdout)
    assert [(row["method"], row["mean_delay"] is None) for row in found[:3]] == [
        *zip(names, (True, False, True), strict=True)
    ]
    assert call("compare", job, "--virtual", *methods, "--allocators", "gta").exit_code == 2


@pytest.mark.parametrize("allocators", ["ata-empirical,atta", "ata-empirical,ata"])
def test_compare_rejects_a_wrong_allocator_before_it_runs_the_others(job: str, allocators: str) -> None:
    use_own_problem(job, "raise KeyError")
    assert call("compare", job, "--virtual", "--allocators", allocators).exit_code == 2


def test_runs_that_were_finished_are_printed_although_a_later_one_fails(job: str) -> None:
    counted = "with open('count', 'a') as file:\n            count = file.write('.') + file.tell()"
    use_own_problem(job, f"{counted}\n        assert count <= 150\n        return x")
    settings = ["--set", "stop.rounds=10", "--set", "allocator.budget=10"]
    result = call("compare", job, "--virtual", "--json", "--allocators", "uta,ofta", *settings)
    assert (result.exit_code, "AssertionError" in result.stderr) == (1, True)
    assert [row["allocator"] for row in json.loads(result.stdout)] == ["uta"]


def test_compare_saves_the_run_of_each_allocator_in_a_folder(job: str) -> None:
    arguments = ["compare", job, "--virtual", "--json", "--allocators", "gta,own,uta", "--out", "new/folder"]
    result = call(*arguments)
    assert result.exit_code == 0
    rows = json.loads(result.stdout.splitlines()[-1])
    assert [row["out"] for row in rows] == [f"new/folder/{name}.h5" for name in ("gta", "own", "uta")]
    found = {path.stem: read_progress(path).job.split()[-1] for path in Path("new/folder").iterdir()}
    assert found == {"gta": "gta", "own": "ata-empirical", "uta": "uta"}
    more = call("run", job, "--virtual", "--out", "new/folder/gta.h5", "--resume", "--set", "stop.rounds=60")
    assert more.exit_code == 0, more.stderr
    assert call(*arguments).exit_code == 2, "nothing is overwritten"


def test_compare_with_out_rejects_an_allocator_that_is_named_twice_before_it_runs_any(job: str) -> None:
    done = call("compare", job, "--virtual", "--allocators", "gta,uta, uta", "--out", "runs")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--allocators names 'uta' more than once, but --out has one run file for each" in done.stderr
    assert not list(Path("runs").glob("*.h5"))
