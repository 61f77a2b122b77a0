"""The figures show what their labels say."""

import numpy as np
import pytest

from mpi_ata.paper import figures
from mpi_ata.paper.experiments import TABLE1, PaperRequest
from mpi_ata.paper.trials import execute_trial

pytestmark = pytest.mark.skipif(not figures.available(), reason="matplotlib is not installed")
NAMES = ("gta", "ofta", "ata-half")


def test_curves_are_those_of_the_runs_of_the_first_seed_and_panels_are_labelled() -> None:
    request = PaperRequest(workers=(3, 5), allocators=NAMES, rounds=40, seeds=2)
    trials = TABLE1.with_request(request).trials()
    results = [execute_trial(trial, lambda rounds: None) for trial in trials]
    figure = figures.make_figure(figures.by_workers(results))
    assert [axes.get_title(loc="left") for axes in figure.axes[::4]] == ["n = 3", "n = 5"]
    (run,) = (r for r in results if (r.trial.n, r.trial.allocator, r.trial.seed) == (5, "ata-half", 1))
    last = {name: column[-1] for name, column in run.history.items()}
    expected = {
        ("runtime", "f - f*"): [last["clock"], last["gap"]],
        ("total worker time", "f - f*"): [last["worker_time"], last["gap"]],
        ("round", "average iteration time"): [40, last["clock"] / 40],
        ("round", "averaged regret"): [40, pytest.approx(last["regret"] / 40)],
    }
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == 2 * list(expected)
    for axes, label in zip(figure.axes[4:], expected, strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert set(lines) == set(NAMES) or label[1] == "averaged regret"
        assert ("gta" in lines) == (label[1] != "averaged regret"), "gta has no fixed quotas"
        ends = [float(np.asarray(values)[-1]) for values in lines["ata-half"].get_data()]
        assert ends == expected[label]
