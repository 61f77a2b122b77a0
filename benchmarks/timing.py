"""How the benchmarks measure: the best of several repeats, side by side in one run."""

import time
from collections.abc import Callable


def best(action: Callable[[], object], seconds: float = 0.3) -> float:
    """Seconds that one call takes: the best of as many repeats as fit into the time, at least three."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)
