"""What is compiled does not depend on the order in which Python's sets and dicts of strings are walked, which differs from process to process."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAMS = """
import numpy as np
import polyml

gradient = '''
def gradient(d: f32["K P Q"], w: f32["K C R S"]):
    y: f32["C P+R-1 Q+S-1"] = 0
    y[c, p + r, q + s] += d[k, p, q] * w[k, c, r, s]
    return y
'''
attention = '''
def attention(q: f32["S D"], k: f32["T D"], v: f32["T D"]):
    a[i, j] = q[i, d] * k[j, d]
    m[i] = max[j](a[i, j])
    e[i, j] = exp(a[i, j] - m[i])
    s[i] = e[i, j]
    y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i]
    return y
'''
smoothing = '''
def smoothing(a: f64["N M"], T: int):
    for t in range(T):
        if 1 <= i < N - 1 and 1 <= j < M - 1:
            a[i, j] = (a[i - 1, j] + a[i, j - 1] + a[i, j] + a[i, j + 1] + a[i + 1, j]) / 5
    return a
'''
target = polyml.Target("x86-64-v4")
shapes = {gradient: [(40, 30, 20), (40, 8, 3, 5)], attention: [(70, 40)] * 3}
for text, sizes in shapes.items():
    lowered = polyml.einsum(text, target=target, dynamic=text is gradient).lower(*(np.ones(shape, "f4") for shape in sizes))
    print(*(lowered.text(view) for view in ("graph", "plan", "domains", "dependences", "schedule", "loops", "llvm", "c")))
print(polyml.einsum(smoothing, target=target).lower(np.ones((30, 50)), 7).text("llvm"))
"""


def test_the_same_code_whatever_the_order_of_sets() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAMS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert first.count("define") > 5
    assert first == second
