"""Ranks on several hosts, which are network namespaces of this machine: what passes through their cards."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.namespaces import Hosts
from benchmarks.network import one

MEGABYTES, NODES = 2.0, 3
COPIES = {"chain": 2}  # of x through rank 0's card, in both directions together
AT_NODE = 3  # of x through the first workers' card: the chain begins there, so no sum comes in
ROOT = Path(__file__).parent.parent.parent

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")),
    reason="hosts of one's own need root, ip and tc",
)


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("per_node", [1, 2])
def test_cards_carry_x_and_the_sum_a_few_times_however_many_workers_a_node_has(
    per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    workers = NODES * per_node
    with Hosts(NODES + 1, megabits=400, prefix="test", per_host=per_node) as hosts:
        for way, copies in (COPIES | {"star": 2 * workers}).items():
            found = one(hosts, way, workers, MEGABYTES, per_node)
            # Headers and acknowledgements of TCP take up to 7 %; orders and reports are small.
            assert copies * MEGABYTES <= found.card <= 1.1 * copies * MEGABYTES + 0.1, way
            if way == "star":
                continue
            start = 0.5  # each worker connects to rank 0
            assert AT_NODE * MEGABYTES <= found.worker_card <= 1.1 * AT_NODE * MEGABYTES + start, way
