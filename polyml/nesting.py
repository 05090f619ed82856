"""Room for expressions that are nested deeply.

A sum of a thousand terms is a tree of a thousand levels, since sums are taken from the left, and stages walk trees by recursion: three Python frames a level at most. Python refuses that from
1000 frames on, whatever the thread's stack holds; within `deeply_nested` it does from four times as many. They fit into 1 MB of stack (measured; threads have 8 MB on Linux and macOS), so that what is nested
deeper still is told by a RecursionError, as before, and does not bring the process down.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from polyml.forks import wait_at_forks

__all__ = ["deeply_nested"]

FRAMES = 4000
"""What Python's limit of recursion is meanwhile: enough for sums of some 1200 terms."""

_lock = threading.RLock()  # a signal's handler, or the garbage collector, may read a program in between
wait_at_forks(_lock)
_inside = 0
_before = 0


@contextmanager
def deeply_nested() -> Iterator[None]:
    """Raises Python's limit of recursion, which all threads share, until the last one that asked for it is done."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, FRAMES))
    try:
        yield
    finally:
        with _lock:
            if _inside == 1 and sys.getrecursionlimit() == FRAMES:  # else somebody else has set it meanwhile
                with suppress(RecursionError):  # a caller that is close to the limit itself
                    sys.setrecursionlimit(_before)
            _inside -= 1
