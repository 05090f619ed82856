"""What is said of an index tensor whose elements leave the dimension that they are looked up in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyml
from polyml.errors import SubscriptError

EMBED = 'def embed(t: f32["V D"], ids: i64["N"]):\n    y[n, d] = t[ids[n], d]\n    return y\n'
TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


def _message(call: Any, *args: object, **keywords: object) -> str:
    with pytest.raises(SubscriptError) as caught:
        call(*args, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_first_bad_element_is_named_with_its_value(dynamic: bool) -> None:
    f = polyml.einsum(EMBED, dynamic=dynamic)
    bad, good = np.array([0, 2, 3, 7]), np.array([0, 2, 1, 1])
    for ids in (bad, bad.astype(np.int64)[::-1].copy()[::-1], bad):  # compiles, is copied or compiles, enters at once
        text = _message(f, TABLE, ids)
        extent, size = ("V", ", and V is 3") if dynamic else ("3", "")
        assert f"an index into dimension 0 of t (extent {extent}) is out of range: ids[2] is 3{size}\n" in text
        assert "t[ids[n], d]" in text
        assert "^^^^^^" in text
    assert np.array_equal(f(TABLE, good), TABLE[good])
    out = np.full((4, 2), 9, np.float32)
    assert "ids[2] is 3" in _message(f, TABLE, bad, out=out)
    assert "ids[2] is 3" in _message(f.bind(t=TABLE), bad)


def test_a_negative_one_does_not_count_from_the_end() -> None:
    text = _message(polyml.einsum(EMBED), TABLE, np.array([0, -1]))
    assert "ids[1] is -1" in text
    assert "hint: indices count from 0 to 2, and none from the end" in text


def test_positions_of_several_dimensions_scalars_and_numbers_that_do_not_fit_in_i64() -> None:
    f = polyml.einsum(
        'def f(t: f32["V"], ids: u64["N M"], k: i32):\n    y[n, m] = t[ids[n, m]]\n    z = t[k]\n    return y, z\n'
    )
    ids = np.array([[0, 1], [2**63 + 1, 2]], np.uint64)
    for _ in range(2):
        assert f"ids[1, 0] is {2**63 + 1}" in _message(f, TABLE[:, 0], ids, 1)
        assert "k is 3\n" in _message(f, TABLE[:, 0], ids % 2, 3)


def test_updated_tensors_stay_as_they_are() -> None:
    f = polyml.einsum('def f(h: i64["V"], ids: i64["N"]):\n    h[ids[n]] += 1\n    return h\n')
    for _ in range(2):
        h = np.zeros(3, np.int64)
        assert "ids[1] is 3" in _message(f, h, np.array([0, 3]))
        assert not h.any()


@pytest.mark.parametrize("line", ["if n < 2:\n        y[n] = t[ids[n]]", "y[n] = where(m[n], t[ids[n]], 0)"])
def test_elements_that_are_not_looked_up_are_not_blamed(line: str) -> None:
    text = f'def f(t: f32["V"], ids: i64["N"], m: bool["N"]):\n    y: f32["N"] = 0\n    {line}\n    return y\n'
    f = polyml.einsum(text)
    t, mask = TABLE[:, 0], np.array([True, True, False])
    assert f(t, np.array([0, 1, 9]), mask).tolist() == [0, 2, 0]
    assert "is out of range\n" in _message(f, t, np.array([0, 4, 9]), mask)
