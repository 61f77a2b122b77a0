"""The figures show what their labels say."""

import numpy as np
import pytest

from mpi_ata.paper import figures
from mpi_ata.paper.experiments import TABLE1, PaperRequest
from mpi_ata.paper.trials import TrialResult, execute_trial

pytestmark = pytest.mark.skipif(not figures.available(), reason="matplotlib is not installed")
NAMES = ("gta", "ofta", "ata-half")


@pytest.fixture(scope="module")
def results() -> list[TrialResult]:
    """Return the results of some short runs."""
    request = PaperRequest(workers=(3, 5), allocators=NAMES, rounds=40, seeds=2)
    return [execute_trial(trial, lambda rounds: None) for trial in TABLE1.with_request(request).trials()]


def test_each_number_of_workers_has_runtime_worker_time_iteration_time_and_regret(
    results: list[TrialResult],
) -> None:
    figure = figures.make_figure(figures.by_workers(results))
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == 2 * [
        ("runtime", "f - f*"),
        ("total worker time", "f - f*"),
        ("round", "average iteration time"),
        ("round", "averaged regret"),
    ]
    assert [axes.get_title(loc="left") for axes in figure.axes[::4]] == ["n = 3", "n = 5"]


def test_curves_are_those_of_the_runs_of_the_first_seed(results: list[TrialResult]) -> None:
    *_, runtime, worker_time, average, regret = figures.make_figure(figures.by_workers(results)).axes
    for axes in (runtime, worker_time, average):
        assert {line.get_label() for line in axes.lines} == set(NAMES)
    assert {line.get_label() for line in regret.lines} <= {"ofta", "ata-half"}, "gta has no fixed quotas"
    (run,) = (r for r in results if (r.trial.n, r.trial.allocator, r.trial.seed) == (5, "ata-half", 1))
    last = {name: column[-1] for name, column in run.history.items()}
    ends = {
        axes.get_ylabel() + axes.get_xlabel(): [float(np.asarray(values)[-1]) for values in line.get_data()]
        for axes in (runtime, worker_time, average, regret)
        for line in axes.lines
        if line.get_label() == "ata-half"
    }
    assert ends == {
        "f - f*runtime": [last["clock"], last["gap"]],
        "f - f*total worker time": [last["worker_time"], last["gap"]],
        "average iteration timeround": [40, last["clock"] / 40],
        "averaged regretround": [40, pytest.approx(last["regret"] / 40)],
    }
