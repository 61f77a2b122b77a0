"""What mpi-ata plot and mpi-ata compare -o draw, and what they reject."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view import plots
from mpi_ata.view.plots import PlottedRun, plotted, run_names
from tests.cli.commands import JOB, call, use_metrics, use_own_problem

pytest.importorskip("matplotlib")

FORMATS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


def run_job(out: str, *options: str) -> PlottedRun:
    if not Path("job.toml").exists():
        Path("job.toml").write_text(JOB)
    assert call("run", "job.toml", "--virtual", "--out", out, *options).exit_code == 0
    return plotted(load_record(RunFile(Path(out)))[0], out)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_runs_are_drawn_in_the_format_of_the_file_name(suffix: str) -> None:
    run_job("a.h5")
    run_job("b.h5", "--set", "allocator.name=gta")
    panels = () if suffix == ".pdf" else ("--panels", "clock")  # all panels are drawn below in other formats
    result = call("plot", "a.h5", "b.h5", "-o", f"x{suffix}", *panels)
    assert (result.exit_code, result.stdout) == (0, f"wrote x{suffix}\n")
    assert Path(f"x{suffix}").read_bytes().startswith(FORMATS[suffix])


def test_a_figure_names_its_runs_and_labels_its_axes_with_units() -> None:
    run_job("slow&sure.h5")
    run_job("greedy.h5", "--set", "allocator.name=gta")
    run_job("auto.h5", "--set", "allocator.name=ata-auto")
    assert call("plot", "slow&sure.h5", "greedy.h5", "auto.h5", "-o", "x.svg").exit_code == 0
    text = Path("x.svg").read_text()
    labels = ["clock [s]", "worker time [s]", "time of a round [s]", "regret, total [s]", "tasks per round"]
    for label in ["slow&amp;sure", "greedy", "gap f − f*", *labels]:
        assert f">{label}</text>" in text


def test_a_run_that_has_just_started_and_one_without_loss_can_be_drawn() -> None:
    run_job("a.h5", "--set", "stop.gap=1")
    Path("job.toml").unlink()
    use_own_problem("job.toml", "return x")
    run_job("b.h5")
    assert call("plot", "a.h5", "b.h5", "-o", "x.png").exit_code == 0


def test_what_evaluate_returned_is_drawn_against_the_clock_and_all_runs_are_named_once() -> None:
    run_job("other.h5")
    use_metrics("job.toml", "accuracy", "cost in $ and $")
    run_job("a.h5", "--set", "run.evaluate_every=5")
    assert call("plot", "other.h5", "a.h5", "-o", "x.svg", "--panels", "clock,metrics").exit_code == 0
    text = Path("x.svg").read_text()
    for label in ("accuracy", "cost in $ and $", "clock [s]"):
        assert f">{label}</text>" in text
    assert ">worker time [s]<" not in text, "only the panels that are named are drawn"
    assert text.count(">other</text>") == text.count(">a</text>") == 1
    names = ["--allocators", "uta,gta", "--set", "run.evaluate_every=5"]
    assert call("compare", "job.toml", "--virtual", *names, "-o", "y.svg").exit_code == 0
    assert ">accuracy</text>" in Path("y.svg").read_text()


def test_round_times_add_up_to_the_clock_and_the_map_shows_the_budget_in_every_round() -> None:
    run = run_job("a.h5")
    round, length = plots.round_times(run)
    assert np.isclose((np.diff(round, prepend=0) * length).sum(), run.column("clock")[-1])
    _, rates, _ = plots.task_rates(run)
    assert rates.shape == (5, 50)
    assert np.allclose(rates.sum(axis=0), 7)


@pytest.mark.slow
def test_many_workers_become_groups_of_similar_speed_that_leave_nobody_out() -> None:
    run = run_job("a.h5", "--workers", "230", "--set", "allocator.name=uta", "--set", "allocator.budget=460")
    rows = plots.worker_rows(run)
    assert len(rows.groups) == plots.MOST
    assert sorted(np.concatenate(rows.groups).tolist()) == list(range(230))
    assert run.workers is not None
    assert (np.diff(rows.averaged(run.workers.means)) >= 0).all()
    _, shares = plots.histograms(run.times, rows)
    assert np.allclose(shares.sum(axis=1), 1)
    assert call("plot", "a.h5", "-o", "x.png").exit_code == 0


def test_runs_whose_files_have_the_same_name_are_told_apart_by_their_folders() -> None:
    paths = [Path("a/run.h5"), Path("b/run.h5"), Path("c/other.h5")]
    assert run_names(paths) == ["a/run", "b/run", "other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.gif"], "-o x.gif: the name of a figure must end in .png, .pdf or .svg"),
        (["-o", "no/x.png"], "-o no/x.png: there is no folder no; create it, or choose another file"),
        (
            ["-o", "x.png", "--panels", "clck"],
            "--panels: there is no panel 'clck'; choose from clock, worker",
        ),
    ],
)
def test_what_cannot_be_drawn_is_rejected_in_one_sentence(arguments: list[str], message: str) -> None:
    result = call("plot", "a.h5", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


def test_without_matplotlib_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    result = call("plot", "a.h5", "-o", "x.png")
    assert result.exit_code == 2
    assert "figures need matplotlib; install it with: pip install 'mpi-ata[plot]'" in result.stderr


@pytest.mark.slow
def test_compare_draws_its_runs_and_shows_the_spread_over_seeds() -> None:
    Path("job.toml").write_text(JOB)
    arguments = ["compare", "job.toml", "--virtual", "--allocators", "gta,uta", "--seeds", "3"]
    table = call(*arguments, "-o", "x.svg").stdout.splitlines()
    assert [row.split()[0] for row in table[2:]] == ["gta", "uta", "wrote"]
    assert all("±" in row for row in table[2:4])
    assert ">uta</text>" in Path("x.svg").read_text()
    rows = json.loads(call(*arguments, "--json").stdout)
    assert [(row["allocator"], row["seed"]) for row in rows][:3] == [("gta", 5), ("uta", 5), ("gta", 6)]
    clocks = [row["clock"] for row in rows if row["allocator"] == "uta"]
    assert len(set(clocks)) == 3
    alone = json.loads(call("run", "job.toml", "--virtual", "--json", "--set", "run.seed=7").stdout)
    own = json.loads(call(*arguments[:3], "--allocators", "own", "--seeds", "3", "--json").stdout)
    assert own[2]["clock"] == alone["clock"]
