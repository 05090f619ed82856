"""The garbage collector rests while something compiles.

A compilation makes some hundred thousand objects, nearly all of which go with their last reference. The collector looks at them again and again for cycles, and at whatever else the process holds
(with PyTorch imported, an eighth of a compilation's time). What cycles there are wait for the collection that is due behind it.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from polyml.forks import wait_at_forks

__all__ = ["collector_rests", "modules_stay"]

_lock = threading.RLock()  # a signal's handler may compile in between
wait_at_forks(_lock)
_inside = 0
_before = False


@contextmanager
def collector_rests() -> Iterator[None]:
    """Stops the collector, which all threads share, until the last one that asked for it is done; one that was off stays off."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        with _lock:
            _inside = max(0, _inside - 1)
            if _inside == 0 and _before:
                gc.enable()


@contextmanager
def modules_stay() -> Iterator[None]:
    """The collector rests while modules are imported, and what they made is taken for old behind it: the next collection of young objects would look at all of it, and none of it goes."""
    with collector_rests():
        yield
        if not gc.get_freeze_count():  # else somebody has frozen objects, which stay so
            gc.freeze()
            gc.unfreeze()


def _in_child() -> None:
    """A fork's child has none of the other threads that asked."""
    global _inside
    if _inside and _before:
        gc.enable()
    _inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
