"""Threads that take turns: exactly one of them runs, so that none needs a lock.

Each drives one of several jobs.  It runs until it waits for something, and then gives the turn back to the
main thread, which alone talks to workers and handles signals.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TurnThread(threading.Thread):
    """Runs a function in turns; with `parallel`, what is done outside() of a turn runs beside the others.

    `on_return` is called, in this thread, when such a part is over and the thread wants its turn back.
    """

    def __init__(
        self, name: str, function: Callable[[], None], parallel: bool, on_return: Callable[[], None]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._function, self._parallel, self._on_return = function, parallel, on_return
        self._own, self._main = threading.Lock(), threading.Lock()  # held while it is the other's turn
        self._own.acquire()
        self._main.acquire()
        self.away = False  # whether it is outside of its turns, and busy there
        self.over = False

    def run(self) -> None:
        """Run the function, from the first turn on."""
        self._own.acquire()
        try:
            self._function()
        finally:
            self.over = True
            self._main.release()

    def take_turn(self) -> None:
        """Let this thread run until it gives the turn back; called by the main thread."""
        if not self.ident:
            self.start()
        self._own.release()
        self._main.acquire()

    def give_back(self) -> None:
        """Give the turn back, and return when it is this thread's again; called by the thread itself."""
        self._main.release()
        self._own.acquire()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Do something that concerns nobody else beside the other threads, where that is allowed."""
        if not self._parallel or self.away:
            yield
            return
        self.away = True
        self._main.release()
        try:
            yield
        finally:
            self.away = False
            self._on_return()
            self._own.acquire()


@contextmanager
def outside_of_turns() -> Iterator[None]:
    """Let other jobs run beside what the present thread does, if it is one of those that take turns."""
    thread = threading.current_thread()
    if not isinstance(thread, TurnThread):
        yield
        return
    with thread.outside():
        yield


def in_turn_thread() -> bool:
    """Return whether the present thread is one of those that take turns."""
    return isinstance(threading.current_thread(), TurnThread)
