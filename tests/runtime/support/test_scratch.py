"""Scratch memory of kernels: buffers come back, are large enough, never shared, and few are kept."""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyml.runtime.load import compile_plainly
from polyml.runtime.support.module import Support, load_support, support
from polyml.runtime.support.scratch_text import LARGE, SLOTS, SMALL, emit_scratch


def functions(made: Support | None = None) -> tuple[ctypes._CFunctionType, ctypes._CFunctionType]:
    symbols = (made or support()).symbols
    take = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int64)(symbols["polyml_scratch"])
    give = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(symbols["polyml_scratch_free"])
    return take, give


def test_a_buffer_comes_back() -> None:
    take, give = functions()
    size = 5_000_000
    first = take(size)
    assert first % 4096 == 0
    ctypes.memset(first, 1, size)
    give(first)
    again = take(size - 1000)
    assert again == first
    other = take(size)
    assert other != first
    give(again)
    give(other)
    give(0)


@pytest.mark.parametrize("size", [64, 4096, SMALL, LARGE, LARGE + 64])
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


def resident() -> int:
    """Kilobytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s*(\d+)", status)[1])  # type: ignore[index]


@pytest.fixture
def large_from_the_heap() -> Iterator[None]:
    """malloc takes large buffers from its heap, as in a process that has freed some."""
    mallopt, threshold = getattr(ctypes.CDLL(None), "mallopt", None), -3  # M_MMAP_THRESHOLD, of glibc
    if mallopt is not None:
        mallopt(threshold, 1 << 30)
    yield
    if mallopt is not None:
        mallopt(threshold, 128 << 10)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
@pytest.mark.usefixtures("large_from_the_heap")
def test_what_is_kept_is_bounded_and_released() -> None:
    made = load_support(None)
    ctypes.c_int64.from_address(made.loaded.addresses["polyml_scratch_most"]).value = 50 << 20
    take, give = functions(made)
    before = resident()
    buffers = [take(size << 20) for size in (20, 10, 15, 20, 20, 60)]
    for buffer, size in zip(buffers, (20, 10, 15, 20, 20, 60), strict=True):
        ctypes.memset(buffer, 1, size << 20)
    for buffer in buffers:
        give(buffer)
    assert resident() - before < 65 << 10, "the others were given back, but for a huge page or two of each"
    assert take(18 << 20) in buffers, "and what is kept is used again"


def test_a_request_beyond_all_memory_fails() -> None:
    take, _ = functions()
    assert take(-128) == 0
    assert take((1 << 62) - 1) == 0


def test_systems_without_advice() -> None:
    assert "madvise" in emit_scratch(linux=True)
    plain = emit_scratch(linux=False)
    assert "madvise" not in plain
    compile_plainly(plain)


def test_who_needs_nothing_has_an_address() -> None:
    """A version of a function that does not run: nothing is asked of malloc."""
    take, give = functions()
    first, second = take(0), take(0)
    assert first == second != 0
    assert first % 64 == 0
    give(first)
    give(second)
    assert take(0) == first
