"""What becomes of a record between memory and file."""

import numpy as np
import pytest

from mpi_ata.arrays import State
from mpi_ata.clusters import in_flight
from mpi_ata.runfile.load import describe
from mpi_ata.runfile.schema import from_tree, to_tree
from tests.runfile.test_checkpoints import record


def test_identities_have_their_public_names_in_a_description() -> None:
    (worker,) = describe(record())["workers_table"]
    assert list(worker)[:4] == ["host", "slot", "hardware", "ranks"]
    assert [worker[name] for name in ("host", "slot", "hardware", "ranks")] == ["here", 1, "wood", 1]


def test_an_event_remembers_the_host_that_its_worker_ran_on_then() -> None:
    saved = record()
    saved.event(1.0, "started", "on 1 worker")
    assert "host" not in to_tree(saved)[1]["events"]
    saved.event(2.0, "lost", "killed", worker=0)
    saved.identities = (saved.identities[0]._replace(host="elsewhere"),)
    read = from_tree(*to_tree(saved))
    assert [event.host for event in read.events] == ["", "here"]
    hosts = [(row["host"], row["verdict"]) for row in describe(read)["hosts"]]
    assert hosts == [("here", "lost"), ("elsewhere", "")]


@pytest.mark.parametrize(
    ("cluster", "method", "expected"),
    [
        ({"stopping": [0, 1, 0, 0]}, {"born": [4, -1, -1, 0]}, [1, 1, 0, 1]),
        ({"stopping": [0, 1]}, {}, [0, 1]),
        ({"stopping": [0, 1], "running": [1, 0]}, {"born": [3, 3]}, [1, 1]),
        ({"stopping": [0, 0], "running": [0, 0]}, {"born": [3, 3]}, [0, 0]),
        ({"stopping": [0, 1]}, {"born": [5]}, [0, 1]),
        ({"left": [0, 2]}, {"born": [3, 3]}, [0, 1]),
        ({}, {}, []),
    ],
    ids=["0.1.0 on ranks", "no born", "on ranks", "moved", "born of one's own", "virtual", "nothing"],
)
def test_orders_in_flight_are_found_in_files_of_any_version(
    cluster: dict[str, list[int]], method: dict[str, list[int]], expected: list[int]
) -> None:
    saved = record()
    saved.cluster = {name: np.array(values) for name, values in cluster.items()}
    saved.method |= {name: np.array(values) for name, values in method.items()}
    read: State = from_tree(*to_tree(saved)).cluster
    assert in_flight(read).tolist() == expected
    assert in_flight(read).dtype == np.int64
