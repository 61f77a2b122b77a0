"""The model of a network: its arithmetic by hand, and rounds simulated with it."""

import numpy as np
import pytest

from mpi_ata import SGD, UTA, Constant, DrawnTimes, Plain, Quadratic, RunError, VirtualCluster
from mpi_ata.allocators import GTA
from mpi_ata.arrays import Array
from mpi_ata.clusters.network import PIECE_BYTES as PIECE
from mpi_ata.clusters.network import Network, Traffic, traffic_of
from mpi_ata.problems import Task

SLOW = Network(8.0, latency=0.5, message=0.25)  # a megabyte per second
MB = 1_000_000


def test_the_star_carries_x_and_a_result_for_each_worker_through_one_card() -> None:
    assert SLOW.seconds("star", 4, MB) == pytest.approx(2 * 4 * (1.0 + 0.25) + 2 * 0.5)


def test_the_chain_carries_x_and_the_sum_once_and_is_filled_piece_by_piece() -> None:
    filling = 3 * PIECE / MB
    assert SLOW.seconds("chain", 4, MB) == pytest.approx(2 * 1.0 + filling + 5 * 0.5 + 8 * 0.25)


@pytest.mark.parametrize("way", ["star", "chain"])
@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_tasks_that_take_no_time_arrive_as_late_as_the_closed_form_says(way: str, n: int) -> None:
    arrived = SLOW.arrivals(way, MB, np.zeros(n))
    assert arrived.max() == pytest.approx(SLOW.seconds(way, n, MB))


def test_results_that_come_at_different_times_do_not_wait_for_each_other_at_rank_0() -> None:
    network = Network(8.0)
    arrived = network.arrivals("star", MB, np.array([100.0, 0.0, 0.5]))
    # x is there after 3 s; the two short ones come one after the other, each taking a second of the card.
    np.testing.assert_allclose(arrived, [104.0, 4.0, 5.0])


def test_a_late_worker_delays_the_sum_by_as_much_wherever_it_stands_in_the_chain() -> None:
    network = Network(8.0, latency=0.1)
    late = np.zeros((3, 3)) + 10 * np.eye(3)
    arrived = [network.arrivals("chain", MB, seconds)[0] for seconds in late]
    assert arrived == pytest.approx([network.seconds("chain", 3, MB) + 10] * 3)  # x reaches later ones later


def test_the_shorter_way_is_taken_unless_it_is_given() -> None:
    traffic = Traffic(Network(100.0, latency=1e-3))
    assert traffic.way(4, 5 * MB) == "chain"
    assert traffic.way(4, 80) == "star"
    assert traffic.way(1, 5 * MB) == "star"
    assert Traffic(SLOW, "star").way(4, 5 * MB) == "star"


def simulated(rounds: int, traffic: Traffic | None) -> tuple[list[float], np.ndarray]:
    """Return the lengths of rounds in which three workers do two tasks each, and x."""
    problem = Quadratic(1000)
    method = SGD(problem.x0, UTA(3, budget=6), Plain(0.1))
    cluster = VirtualCluster(problem, DrawnTimes(Constant(3), unit=2.0), overhead=traffic)
    return [method.step(cluster).duration for _ in range(rounds)], method.x


@pytest.mark.parametrize("exchange", ["star", "chain"])
def test_a_simulated_round_takes_as_long_as_its_tasks_and_the_exchange(exchange: str) -> None:
    bare, x = simulated(2, None)
    lengths, same_x = simulated(2, Traffic(SLOW, exchange))
    np.testing.assert_allclose(np.subtract(lengths, bare), SLOW.seconds(exchange, 3, 8000))
    np.testing.assert_array_equal(x, same_x)


class Half(Quadratic):
    """Numbers of x and of results that travel as bfloat16."""

    halved_x, halved_results = 600, 1000

    def __init__(self) -> None:
        super().__init__(1000)
        self.x0 = self.x0.astype(np.float32)

    def gradient(self, x: Array, task: Task) -> Array:
        return super().gradient(x, task).astype(np.float32)


def test_numbers_that_travel_as_bfloat16_count_two_bytes_and_go_by_the_star() -> None:
    problem = Half()
    times, traffic = DrawnTimes(Constant(3), unit=2.0), traffic_of(problem, SLOW, "auto")
    lengths = []
    for overhead in (None, traffic):
        method = SGD(problem.x0, UTA(3, budget=6), Plain(0.1))
        cluster = VirtualCluster(problem, times, overhead=overhead)
        lengths.append(method.step(cluster).duration)
    sent = 3 * (2 * 600 + 4 * 400) + 3 * 2 * 1000
    assert lengths[1] - lengths[0] == pytest.approx(sent / MB + 6 * SLOW.message + 2 * SLOW.latency)
    assert traffic.way(1000, 4000) == "star"


def test_a_network_is_for_results_that_come_as_a_whole() -> None:
    problem = Quadratic(10)
    method = SGD(problem.x0, GTA(3, budget=6), Plain(0.1))
    cluster = VirtualCluster(problem, DrawnTimes(Constant(3), unit=2.0), overhead=Traffic(SLOW))
    with pytest.raises(RunError, match=r"takes the results of an order one by one; use another allocator"):
        method.step(cluster)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bandwidth": 0.0}, "bandwidth=0.0 must be above 0 Mbit/s"),
        ({"bandwidth": float("nan")}, "bandwidth=nan must be above 0 Mbit/s"),
        ({"bandwidth": 1.0, "latency": -1.0}, "latency=-1.0 must be at least 0 seconds"),
    ],
)
def test_impossible_networks_are_rejected(keys: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(**keys)
