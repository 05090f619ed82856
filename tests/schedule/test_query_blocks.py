"""Blocks of queries: as many as L2 holds scores for beside the keys that every block reads again, one register tile at least."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyml

ATTENTION = """
def attention(q: f32["S D"], k: f32["T D"], v: f32["T D"]):
    a[i, j] = q[i, d] * k[j, d]
    m[i] = max[j](a[i, j])
    e[i, j] = exp(a[i, j] - m[i])
    s[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i]
    return y
"""


@pytest.mark.parametrize(
    ("keys", "least", "most"),
    [
        (512, 40, 64),  # keys and values are a quarter of L2
        (1024, 1, 16),  # half of it: an eighth is left for scores
        (4096, 1, 16),  # twice as much as it
    ],
)
def test_blocks_of_queries(keys: int, least: int, most: int) -> None:
    target = polyml.Target("x86-64-v4", l2_bytes=1 << 20)
    arrays = [np.ones((n, 64), np.float32) for n in (512, keys, keys)]
    text = str(polyml.einsum(ATTENTION, target=target).lower(*arrays).explain())
    found = re.search(r"blocks of (\d+) i", text)
    assert found is not None
    assert least <= int(found[1]) <= most
