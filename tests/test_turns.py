"""Threads that take turns."""

import threading
from functools import partial

from mpi_ata.turns import TurnThread, in_turn_thread, outside_of_turns


def test_exactly_one_thread_runs_until_it_gives_its_turn_back() -> None:
    seen: list[str] = []

    def work(name: str) -> None:
        for step in range(3):
            seen.append(f"{name}{step}")
            threads[name].give_back()

    threads = {name: TurnThread(name, partial(work, name), False, lambda: None) for name in "ab"}
    assert not in_turn_thread()
    for _ in range(4):
        for thread in threads.values():
            thread.take_turn()
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert all(thread.over for thread in threads.values())


def test_what_is_done_outside_of_turns_runs_beside_the_main_thread() -> None:
    may_end, back = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        with outside_of_turns():
            seen.append("outside")
            may_end.wait(10)
        seen.append("in turn again")

    thread = TurnThread("a", work, parallel=True, on_return=back.set)
    thread.take_turn()  # returns at once, though the thread waits
    assert thread.away
    may_end.set()
    assert back.wait(10)
    assert not thread.away
    assert seen == ["outside"]
    thread.take_turn()
    assert thread.over
    assert seen == ["outside", "in turn again"]


def test_where_nothing_may_run_beside_the_others_nothing_does() -> None:
    thread = TurnThread("a", lambda: outside_of_turns().__enter__(), False, lambda: None)
    thread.take_turn()
    assert thread.over
    with outside_of_turns():  # of any other thread
        assert not in_turn_thread()
