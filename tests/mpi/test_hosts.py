"""Ranks on several hosts, which are network namespaces of this machine: what passes through their cards."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.namespaces import Hosts
from benchmarks.network import ROUNDS, one

MEGABYTES, NODES = 2.0, 3
COPIES = {"chain": 2, "replicated": 0}  # of x through rank 0's card, in both directions together
# Of x through the first workers' card: the chain begins there, so no sum comes in.  Replicated, the sum goes
# out, comes back and goes out again; with a node for each worker, all send to each other.
NODE_COPIES = {("chain", 1): 3, ("chain", 2): 3, ("replicated", 1): 4 * 2 / 3, ("replicated", 2): 3}
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
            at_node = NODE_COPIES[way, per_node]
            # To start, each worker connects to rank 0; replicated, all get x once and one sends it back.
            start = 0.5 + (way == "replicated") * 3 * MEGABYTES / ROUNDS
            assert at_node * MEGABYTES <= found.worker_card <= 1.1 * at_node * MEGABYTES + start, way
