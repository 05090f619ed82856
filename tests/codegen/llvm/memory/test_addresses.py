"""What addresses are made of: terms in order, of which each is written once to be compared."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import polyml
from polyml.sets.affine import FloorDiv

QUOTIENTS = """
def f(x: f32["N"]):
    y: f32["6 7 8"]
    y[a, b, c] = x[(a * 7 + b) // 3 + c // 2] + 2 * x[(a * 7 + b) // 3 + c // 2 + 1] + 3 * x[(a * 7 + b) // 3 + c // 2 + 5]
    return y
"""


def test_quotients_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(40, dtype=np.float32)
    lowered = polyml.einsum(QUOTIENTS, threads=1).lower(x)
    written, plain = Counter[str](), FloorDiv.__repr__

    def counted(division: FloorDiv) -> str:
        written[str(division)] += 1
        return plain(division)

    with monkeypatch.context() as patched:
        patched.setattr(FloorDiv, "__repr__", counted)
        lowered.text("llvm")
    assert set(written.values()) == {1}
    place = np.add.outer(np.add.outer(np.arange(6) * 7, np.arange(7)) // 3, np.arange(8) // 2)
    np.testing.assert_array_equal(lowered.compile()(x), x[place] + 2 * x[place + 1] + 3 * x[place + 5])
