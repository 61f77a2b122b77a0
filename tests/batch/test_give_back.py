"""Which nodes a run can do without, by what it has learned so far; giving them back is tested on a Slurm."""

from dataclasses import replace
from pathlib import Path

import pytest

from mpi_ata.batch.give_back import spare_hosts
from mpi_ata.batch.interface import Resources
from mpi_ata.batch.submit import Submission
from mpi_ata.driver.plan import OutputOptions
from mpi_ata.errors import UsageError
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from tests.view.test_recommend import RUN, on_nodes, run_job

HOSTS = ["n1", "n2", "n2", "n3", "n3", "n4", "n4"]  # two ranks each, the first of which is the manager


def record_with(seconds: list[float], rounds: int = 10_000, **settings: object) -> Record:
    """Return the record of a run on four nodes whose workers take these seconds, after 300 rounds."""
    run_job("constant", 7, 8, **{"times.scale": seconds, **settings})
    on_nodes(RUN, HOSTS, ranks=2)
    record, _ = load_record(RunFile(RUN))
    record.job = replace(record.job, settings=(*record.job.settings, f"stop.rounds={rounds}"))
    return record


def spare(record: Record) -> set[str]:
    return {*spare_hosts(record, "n1", RUN)}


FAST, SLOW = [1.0, 1.0], [40.0, 40.0]


def test_slow_nodes_are_spare_and_the_manager_s_is_not() -> None:
    assert spare(record_with([1.0, *FAST, *SLOW, *SLOW])) == {"n3", "n4"}
    slow_manager = record_with([40.0, *FAST, *FAST, *FAST])
    assert "n1" not in spare(slow_manager)


def test_a_node_is_kept_if_it_saves_more_time_than_its_share_of_the_cost() -> None:
    # 8 tasks on 7 equal workers take 2 rounds of tasks; so they do on 5 or on 4, but on 3 they take 3.
    assert len(spare(record_with([1.0, *FAST, *FAST, *FAST]))) == 1
    assert spare(record_with([1.0, *FAST, *FAST, *FAST], **{"allocator.budget": 7})) == set()


def test_nothing_is_spare_if_little_is_left_or_not_enough_is_known() -> None:
    speeds = [1.0, *FAST, *SLOW, *SLOW]
    assert spare(record_with(speeds, rounds=301)) == set()  # a restart takes ten seconds
    untried = record_with(speeds)
    untried.workers["tasks"][5:] = 0
    assert spare(untried) == set()
    own_data = record_with(speeds)
    own_data.job = replace(own_data.job, settings=(*own_data.job.settings, "method.name=malenia"))
    assert spare(own_data) == set()


def test_several_runs_that_share_ranks_give_nothing_back() -> None:
    jobs = (Path("a.toml"), Path("b.toml"))
    with pytest.raises(UsageError, match="--give-back is for a single job file on one kind"):
        Submission(jobs, Resources(ntasks=3), OutputOptions(), give_back=True)
