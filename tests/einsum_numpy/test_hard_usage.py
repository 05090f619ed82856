"""Stray accesses, many threads, and calls that are no calls."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import polyml
from polyml.testing.einsum_calls import RandomChooser


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect as Linux has it")
def test_nothing_outside_of_the_operands_is_touched() -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.einsum_numpy.guard_pages", "5", "15"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout == "15 calls\n"


def test_the_guard_notices() -> None:
    code = (
        "import numpy as np; from tests.einsum_numpy.guard_pages import guarded; "
        "a = guarded(np.zeros(5), True); np.lib.stride_tricks.as_strided(a, (6,)).sum()"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False).returncode < 0


def test_threads_that_make_the_same_calls() -> None:
    rng = np.random.default_rng(0)
    cases = [(rng.standard_normal((n, 3)), rng.standard_normal((3, n + 1))) for n in range(1, 9)]

    def work(seed: int) -> int:
        order = random.Random(seed)
        for _ in range(200):
            a, b = order.choice(cases)
            assert np.allclose(polyml.einsum("st,tw->sw", a, b), a @ b)
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_nonsense_raises() -> None:
    chooser = RandomChooser(random.Random(0))
    things: list[Any] = [None, 1, 2.5, "x", b"y", [], [1, 2], np.ones(2), np.ones((2, 2)), object(), {}, Ellipsis, 1j]
    characters = "ij .,->+*0(%é\n\0def:"
    for _ in range(1500):
        text = "".join(chooser.pick(characters) for _ in range(chooser.integer(0, 9)))
        arguments = [text, *(chooser.pick(things) for _ in range(chooser.integer(1, 3)))]
        if chooser.flag(30):
            chooser.random.shuffle(arguments)
        keywords = {
            k: chooser.pick(things) for k in ("out", "dtype", "order", "casting", "optimize") if chooser.flag(6)
        }
        try:
            expected = np.einsum(*arguments, **keywords)
        except Exception:
            expected = None
        try:
            actual = polyml.einsum(*arguments, **keywords)
        except Exception:  # which one: the differential tests say
            assert expected is None, (arguments, keywords)
        else:
            assert expected is None or np.array_equal(actual, expected), (arguments, keywords)
