"""`deeply_nested`: Python's limit of recursion is higher within, and what it was behind."""

from __future__ import annotations

import sys
import threading

import pytest

from polyml import nesting
from polyml.nesting import FRAMES, deeply_nested


def depth(levels: int) -> int:
    return 0 if levels == 0 else 1 + depth(levels - 1)


def test_the_limit_is_what_it_was() -> None:
    before = sys.getrecursionlimit()
    with deeply_nested():
        assert depth(before + 100) == before + 100
        with deeply_nested():
            pass
        assert sys.getrecursionlimit() == FRAMES
    assert sys.getrecursionlimit() == before
    with pytest.raises(RecursionError), deeply_nested():
        depth(10 * FRAMES)
    assert sys.getrecursionlimit() == before


def test_threads_that_end_in_another_order() -> None:
    before = sys.getrecursionlimit()
    entered, leave = threading.Event(), threading.Event()

    def run() -> None:
        with deeply_nested():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=run)
    with deeply_nested():
        thread.start()
        assert entered.wait(10)
    assert sys.getrecursionlimit() == FRAMES
    leave.set()
    thread.join()
    assert sys.getrecursionlimit() == before


def test_a_limit_that_is_set_meanwhile_stays() -> None:
    before = sys.getrecursionlimit()
    try:
        with deeply_nested():
            sys.setrecursionlimit(FRAMES + 500)
        assert sys.getrecursionlimit() == FRAMES + 500
    finally:
        sys.setrecursionlimit(before)


def test_a_handler_of_signals_may_read_a_program_in_between() -> None:
    with nesting._lock:
        assert nesting._lock.acquire(blocking=False), "it would wait for itself"
        nesting._lock.release()
