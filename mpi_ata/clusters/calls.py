"""Calls that all ranks of a script must make together.

A rank that makes another call, or ends without one, is found before anybody waits for it.
"""

import atexit
import sys
import time
from typing import NamedTuple

import numpy as np

from mpi_ata.clusters.mpi import MPI, all_ranks_needed, finalize, ranks_lost
from mpi_ata.errors import RunError, UsageError
from mpi_ata.layout import MANAGER

LONGEST = 4000  # bytes that ranks exchange about a call
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-3, 0.05  # seconds between two looks at whether all ranks are there
SPEAKING = 1.0  # seconds that one rank has to say what is wrong: launchers end all when the first one ends
ENDED = "ended"
ALL_THE_SAME = "every rank must make the same calls"

_parted = False  # whether ranks have gone different ways, so that nothing can be done together


class Call(NamedTuple):
    """What a rank says of its call."""

    name: str  # of the function
    settings: str  # what it is about, one setting per line
    digest: str = ""  # of all that must be the same on all ranks
    failure: str = ""  # why this rank cannot do it
    note: str = ""  # what the manager has found out


def join(call: Call) -> Call:
    """Return the manager's call, when all ranks have made the same one; otherwise all ranks leave."""
    global _parted
    calls = [_parse(text) for text in _exchange(_text(call))]
    wrong = _disagreement(calls)
    if not wrong:
        return calls[MANAGER]
    _parted = any(each.name == ENDED for each in calls)
    speaker = next(rank for rank, each in enumerate(calls) if each.name != ENDED)
    if MPI.COMM_WORLD.Get_rank() != speaker:
        time.sleep(SPEAKING)
        sys.exit(2)
    raise UsageError(wrong)


def leave() -> None:
    """Let ranks that wait for this one know that it has ended."""
    global _parted
    if _parted or ranks_lost() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return
    _parted = True
    try:
        _exchange(_text(Call(ENDED, "")))
    except RunError:  # another rank has died: nobody waits
        return


def leave_world() -> None:
    """Say good-bye to the other ranks, if that was not done before, and leave MPI."""
    leave()
    finalize()


atexit.register(leave)  # it is called before MPI is left


def _disagreement(calls: list[Call]) -> str:
    """Return what is wrong with the calls of the ranks, in one sentence; empty if nothing is."""
    name, settings, digest, *_ = first = next(call for call in calls if call.name != ENDED)
    for rank, call in enumerate(calls):
        who = f"rank {calls.index(first)}"
        if call.name == ENDED:
            return f"rank {rank} has ended, but {who} calls {name}: {ALL_THE_SAME}"
        if call.failure:
            return call.failure if rank == MANAGER else f"rank {rank}: {call.failure}"
        if call.name != name:
            return f"rank {rank} calls {call.name}, but {who} {name}: {ALL_THE_SAME}"
        if call.digest != digest:
            what = _difference(call.settings, settings)
            return f"rank {rank} calls {name} with other arguments than {who}{what}: {ALL_THE_SAME}"
    return ""


def _difference(settings: str, others: str) -> str:
    """Return the first setting in which two calls differ, if it is known."""
    pairs = zip(settings.split("\n"), others.split("\n"), strict=False)
    return next((f" ({own} instead of {other})" for own, other in pairs if own != other), "")


def _text(call: Call) -> str:
    """Return a call as text; settings are last, since they may be cut off."""
    return "\0".join([call.name, call.digest, call.note, call.failure, call.settings])


def _parse(text: str) -> Call:
    name, digest, note, failure, settings = (text + "\0" * 4).split("\0")[:5]
    return Call(name, settings, digest, failure, note)


def _exchange(text: str) -> list[str]:
    """Return the texts of all ranks; a rank that waits for others sleeps."""
    comm, pause = MPI.COMM_WORLD, SHORTEST_PAUSE
    own = np.frombuffer(text.encode()[:LONGEST].ljust(LONGEST, b"\n"), np.uint8)
    everyone = np.empty((comm.Get_size(), LONGEST), np.uint8)
    with all_ranks_needed():
        request = comm.Iallgather(own, everyone)
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    return [row.tobytes().decode(errors="replace").rstrip("\n") for row in everyone]
