"""Scratch memory of kernels: buffers come back, are large enough, never shared, and few are kept."""

from __future__ import annotations

import ctypes
import itertools
import threading

import pytest

from polyml.runtime.scratch_text import KEPT, SLOTS
from polyml.runtime.support import support


def functions() -> tuple[ctypes._CFunctionType, ctypes._CFunctionType]:
    symbols = support().symbols
    take = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int64)(symbols["polyml_scratch"])
    give = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(symbols["polyml_scratch_free"])
    return take, give


def test_a_buffer_comes_back() -> None:
    take, give = functions()
    size = 5_000_000
    first = take(size)
    assert first % 64 == 0
    ctypes.memset(first, 1, size)
    give(first)
    again = take(size - 1000)
    assert again == first
    other = take(size)
    assert other != first
    give(again)
    give(other)
    give(0)


@pytest.mark.parametrize("size", [64, 4096, KEPT, KEPT + 64])
def test_buffers_in_use_are_different_and_of_their_size(size: int) -> None:
    take, give = functions()
    buffers = sorted(take(size) for _ in range(SLOTS + 3))
    assert all(b - a >= size for a, b in itertools.pairwise(buffers))
    for buffer in buffers:
        ctypes.memset(buffer, 2, size)
    for buffer in buffers:
        give(buffer)


def test_a_large_request_does_not_get_a_small_buffer() -> None:
    take, give = functions()
    small = take(1 << 20)
    give(small)
    large = take(3 << 20)
    ctypes.memset(large, 3, 3 << 20)
    give(large)
    assert large != small


def test_threads_never_share() -> None:
    take, give = functions()
    faults: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            buffer = take(100_000)
            ctypes.memset(buffer, mark, 100_000)
            found = ctypes.string_at(buffer, 100_000)
            if found != bytes([mark]) * 100_000:
                faults.append(mark)
            give(buffer)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
