"""Timing for the benchmarks: the best of several repeats."""

import time
from collections.abc import Callable


def best(action: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the seconds of the fastest call, of as many as fit into the given time, at least three."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)
