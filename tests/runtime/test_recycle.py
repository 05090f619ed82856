"""Large results live in memory that is used again, but never while somebody can still see it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import polyml
from polyml.runtime import recycle

COUNT = recycle.LARGE // 4
TEXT = """
def double(x: f32["N"]):
    y[n] = 2 * x[n]
    return y
"""


@pytest.fixture(autouse=True)
def _own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "_POOL", recycle._Pool())


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_result_that_nobody_holds_is_used_again() -> None:
    double = polyml.einsum(TEXT)
    x = np.ones(COUNT, "f")
    first = address(double(x))
    assert first % 4096 == 0
    assert address(double(x)) == first


@pytest.mark.parametrize("keep", [lambda y: y, lambda y: y[5:], lambda y: y.reshape(2, -1).T, memoryview, np.ravel])
def test_not_while_it_is_seen(keep: object) -> None:
    assert callable(keep)
    double = polyml.einsum(TEXT)
    kept = keep(double(np.ones(COUNT, "f")))
    other = double(np.full(COUNT, 3, "f"))
    assert np.all(np.asarray(kept) == 2)
    assert np.all(other == 6)


def test_small_results_are_ordinary() -> None:
    assert recycle.empty((8,), np.dtype("f4")).base is None
    made = recycle.empty((COUNT // 2, 2), np.dtype("f4"))
    assert made.base is not None
    assert made.flags.c_contiguous
    assert made.flags.writeable


def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "KEPT", 5 << 20)
    pool = recycle._Pool()
    size = recycle.KEPT // 5
    held = [pool.empty((size + k * size // 2,), np.dtype("u1")) for k in range(5)]
    assert sum(b.nbytes for b in pool.buffers) <= recycle.KEPT + 4096 * len(pool.buffers)
    assert len({address(a) for a in held}) == 5
    for k, a in enumerate(held):
        a[:] = k
    assert [int(a[0]) for a in held] == list(range(5))


def test_more_results_than_the_pool_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve are held, and the oldest let go of as a new one comes; the pool has room for eight."""
    size = 1 << 16
    monkeypatch.setattr(recycle, "KEPT", 8 * (size + recycle.ALIGNMENT))
    pool, held, fresh = recycle._Pool(), list[np.ndarray](), list[int]()
    make = pool._fresh
    monkeypatch.setattr(recycle._Pool, "_fresh", lambda self, size: (fresh.append(size), make(size))[1])
    for _ in range(12):
        held.append(pool.empty((size,), np.dtype("u1")))
    assert len(fresh) == 12
    for _ in range(120):
        del held[0]
        held.append(pool.empty((size,), np.dtype("u1")))
    before = len(fresh)
    assert before - 12 < 90, "all of them, where the oldest goes"
    assert len(pool.buffers) == 8
    # Those that are held for good make way for others.
    for _ in range(60):
        pool.empty((size,), np.dtype("u1"))
    assert len(fresh) - before <= 2


def test_of_two_threads_each_has_its_own() -> None:
    double = polyml.einsum(TEXT)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.full(COUNT, seed, "f")
        for _ in range(20):
            if not np.all(double(x) == 2 * seed):
                wrong.append(seed)

    double(np.ones(COUNT, "f"))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
