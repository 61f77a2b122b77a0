"""Rounds among hosts with limited links: what each way to exchange x and gradients takes, and a cost model.

Hosts are network namespaces of this machine, so this needs root: python -m benchmarks.network (minutes).
Tasks take no time.  The model of mpi_ata/clusters/network.py is fitted to the ways of this package.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import sys
from typing import NamedTuple

import numpy as np

from benchmarks.namespaces import Hosts
from mpi_ata.arrays import Array
from mpi_ata.clusters.network import MEGABIT, Network, path_of
from mpi_ata.view.text import table

ROUNDS = 5  # of which the first one opens connections
OURS = ("star", "chain")
OTHERS = ("collectives", "futures", "gloo", "ddp")
CLUSTER = Network(25_000, latency=20e-6, message=10e-6)  # of which nothing was measured here


class Measurement(NamedTuple):
    """What one way took per round."""

    way: str
    workers: int
    megabytes: float  # of x
    seconds: float
    card: float  # megabytes through rank 0's network card
    worker_card: float = 0.0  # and through that of the first node with workers, with the start of the run
    per_node: int = 1

    @property
    def size(self) -> int:
        """The size of x in bytes."""
        return 4 * int(self.megabytes * 1e6 / 4)


def measure(options: argparse.Namespace) -> list[Measurement]:
    """Measure all ways with all numbers of workers and sizes of x, and print each."""
    found = []
    for nodes, per_node in itertools.product(options.workers, options.per_node):
        with Hosts(nodes + 1, options.megabits, options.prefix, per_node) as hosts:
            for megabytes, way in itertools.product(options.megabytes, options.ways):
                found.append(latest := one(hosts, way, nodes * per_node, megabytes, per_node))
                what = f"{latest.workers} workers on {nodes} nodes, {megabytes:g} MB, {way}"
                print(f"{what}: {latest.seconds:.3f} s", file=sys.stderr)
    return found


def one(hosts: Hosts, way: str, workers: int, megabytes: float, per_node: int = 1) -> Measurement:
    """Measure one way on these hosts."""
    command = [sys.executable, "-m", "benchmarks.network_children", way, str(int(megabytes * 1e6 / 4))]
    before = hosts.transmitted(1)
    answer = json.loads(hosts.run(command, workers + 1).splitlines()[-1])
    worker_card = (hosts.transmitted(1) - before) / ROUNDS / 1e6
    return Measurement(way, workers, megabytes, answer["seconds"], answer["megabytes"], worker_card, per_node)


def fitted(measurements: list[Measurement]) -> Network:
    """Return the network whose predictions have the least squared relative error."""
    paths = np.array([path_of(each.way, each.workers, each.size) for each in measurements])
    scaled = paths / np.array([[each.seconds] for each in measurements])
    costs = nonnegative_solution(scaled)
    return Network(1 / (costs[0] * MEGABIT), *costs[1:])


def nonnegative_solution(matrix: Array) -> list[float]:
    """Return the costs of a byte, a hop and a message, none below 0, for which rows add up to about 1."""
    best, least = [1e-9, 0.0, 0.0], np.inf
    for used in ([0], [0, 1], [0, 2], [0, 1, 2]):
        costs = np.zeros(3)
        costs[used] = np.linalg.lstsq(matrix[:, used], np.ones(len(matrix)), rcond=None)[0]
        error = float(np.square(matrix @ costs - 1).sum())
        if (costs >= 0).all() and error < least:
            best, least = costs.tolist(), error
    return best


def measured_table(measurements: list[Measurement], network: Network) -> str:
    """Return what was measured beside what the model says."""
    rows = []
    for each in measurements:
        model = network.seconds(each.way, each.workers, each.size) if is_modelled(each) else None
        told = ["", ""] if model is None else [f"{model:.3f}", f"{model / each.seconds:.2f}"]
        seconds = [f"{each.seconds:.3f}", *told, f"{each.card:.1f}", f"{each.worker_card:.1f}"]
        rows.append([each.way, each.workers, each.per_node, f"{each.megabytes:g}", *seconds])
    head = ["way", "workers", "per node", "x [MB]", "s / round", "model", "model / measured"]
    return table(rows, [*head, "MB at rank 0", "MB at a node"])


def is_modelled(each: Measurement) -> bool:
    """Return whether the model predicts a measurement: it has one worker per node."""
    return each.way in OURS and each.per_node == 1


def predicted_table(network: Network) -> str:
    """Return what the model says of many workers."""
    rows = []
    for megabytes, n in itertools.product((0.1, 10, 1000), (10, 100, 1000, 10_000, 100_000)):
        seconds = [network.seconds(way, n, int(megabytes * 1e6)) for way in OURS]
        rows.append([f"{megabytes:g}", f"{n:,}", *(f"{each:.3g}" for each in seconds)])
    return table(rows, ["x [MB]", "workers", *(f"{way} [s]" for way in OURS)])


def described(network: Network) -> str:
    """Return a network in words."""
    latency, message = network.latency * 1e6, network.message * 1e6
    return f"{network.bandwidth:.4g} Mbit/s, {latency:.3g} us from node to node, {message:.3g} us per message"


def available() -> list[str]:
    """Return the ways that can be measured in this environment."""
    if importlib.util.find_spec("torch") is None:
        print("gloo and ddp are left out: PyTorch is not installed", file=sys.stderr)
        return [*OURS, "collectives", "futures"]
    return [*OURS, *OTHERS]


def main() -> None:
    """Measure, fit, predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 7], help="nodes with workers")
    parser.add_argument("--per-node", type=int, nargs="+", default=[1], help="workers per node")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.64, 5.0])
    parser.add_argument("--megabits", type=float, default=100.0)
    parser.add_argument("--ways", nargs="+", choices=[*OURS, *OTHERS])
    parser.add_argument("--prefix", default="node", help="what the names of the hosts begin with")
    options = parser.parse_args()
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        sys.exit("Error: hosts of one's own need root, and the commands ip and tc (Debian: iproute2)")
    options.ways = options.ways or available()
    measurements = measure(options)
    own = [each for each in measurements if is_modelled(each)]
    network = fitted(own) if own else Network(options.megabits)
    print(f"links of {options.megabits:g} Mbit/s\n\n{measured_table(measurements, network)}\n")
    if not own:
        return
    errors = [network.seconds(each.way, each.workers, each.size) / each.seconds - 1 for each in own]
    print(f"the model: {described(network)}; errors from {min(errors):+.0%} to {max(errors):+.0%}\n")
    print(f"prediction for {described(CLUSTER)}\n\n{predicted_table(CLUSTER)}")


if __name__ == "__main__":
    main()
