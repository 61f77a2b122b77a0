"""Ranks on several hosts, which are network namespaces of this machine: what passes through rank 0's card."""

import os
import shutil

import pytest

from benchmarks.namespaces import Hosts
from benchmarks.network import one

MEGABYTES, WORKERS = 2.0, 3
COPIES = {"star": 2 * WORKERS, "chain": 2, "replicated": 0}  # of x, in both directions together


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")),
    reason="hosts of one's own need root, ip and tc",
)
def test_the_chain_carries_x_and_the_sum_once_through_rank_0s_card_and_replicated_updates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    with Hosts(WORKERS + 1, megabits=400, prefix="test") as hosts:
        for way, copies in COPIES.items():
            card = one(hosts, way, WORKERS, MEGABYTES).card
            # Headers and acknowledgements of TCP take up to 7 %; orders and reports are small.
            assert copies * MEGABYTES <= card <= 1.1 * copies * MEGABYTES + 0.1, way
