"""The energy that this node uses, where its counters say so: Cray's, or those of the processors (RAPL)."""

import math
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SYSTEM = Path("/sys")
MICRO = 1e-6
DOMAINS = ("package", "dram")  # others are parts of these, or contain them
INTERVAL = 30.0  # seconds between two readings: the smallest counters start again after some minutes


class Counter(NamedTuple):
    """A file with the energy used since some time ago."""

    path: Path
    unit: float  # in joules
    span: float  # after which it starts again at 0, in its unit

    def read(self) -> float:
        """Return what the file says now, in its unit; OSError or ValueError if it says nothing."""
        return float(self.path.read_text().split()[0])


class EnergyMeter:
    """Adds up the energy that this node uses from now on, by whatever runs on it.

    A counter that starts again is noticed if it is read at least once in between, which a thread does: a
    task may take longer than that.
    """

    def __init__(self, system: Path | None = None) -> None:
        self._counters = find_counters(system or SYSTEM)
        self._joules = 0.0 if self._counters else math.nan
        self._last, self._lock = self._read(), threading.Lock()
        if self._counters:
            threading.Thread(target=_keep_reading, args=(weakref.ref(self),), daemon=True).start()

    @property
    def known(self) -> bool:
        """Return whether this node has counters that can be read."""
        return bool(self._counters)

    def joules(self) -> float:
        """Return the energy so far; NaN where no counter can be read."""
        with self._lock:
            now = self._read()
            for counter, before, value in zip(self._counters, self._last, now, strict=True):
                passed = value - before
                self._joules += counter.unit * (passed if passed >= 0 else passed + counter.span)
            self._last = now
            return self._joules

    def _read(self) -> list[float]:
        try:
            return [counter.read() for counter in self._counters]
        except (OSError, ValueError, IndexError):
            return [math.nan] * len(self._counters)


def _keep_reading(meter: "weakref.ref[EnergyMeter]") -> None:
    """Read a meter every now and then, for as long as somebody has it."""
    time.sleep(INTERVAL)
    while (found := meter()) is not None:
        found.joules()
        del found
        time.sleep(INTERVAL)


def find_counters(system: Path) -> Sequence[Counter]:
    """Return the counters of this node that can be read: that of the whole node, or those of its parts."""
    cray = Counter(system / "cray/pm_counters/energy", 1.0, math.nan)
    if _readable(cray):
        return [cray]
    found = list(_processors(system / "class/powercap"))
    return found if all(map(_readable, found)) else []  # a part of them would be less than the truth


def _processors(folder: Path) -> Iterator[Counter]:
    for domain in sorted(folder.glob("intel-rapl:*")):  # on processors of AMD too
        if _text(domain / "name").startswith(DOMAINS):
            span = _text(domain / "max_energy_range_uj")
            yield Counter(domain / "energy_uj", MICRO, float(span) if span.isdigit() else math.nan)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _readable(counter: Counter) -> bool:
    try:
        return math.isfinite(counter.read())
    except (OSError, ValueError, IndexError):
        return False
