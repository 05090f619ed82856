"""Ctrl-C, and other signals whose handlers raise, at moments that no exception may leave.

Handlers of signals run in the main thread as soon as Python does. Code that must not be left half-way makes them wait: callbacks of isl's (sets/callbacks.py), and imports of extension modules,
which cannot be imported again when their first time was broken off: nanobind ends the process, pybind11 refuses from then on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["signals_wait"]

_SIGNALS = tuple(sorted(signal.valid_signals()))


@contextmanager
def signals_wait() -> Iterator[None]:
    """Within the block no signal's handler runs that is written in Python; those of the signals that came run behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no handlers run here
        return
    came: list[int] = []
    try:
        with ExitStack() as before:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    before.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, frame: came.append(number))
            yield
    finally:
        for one in dict.fromkeys(came):
            signal.raise_signal(one)
