"""Programs to transform, and what their schedules compute when they are run instance by instance."""

from __future__ import annotations

import functools

import numpy as np

import polyml as pm
from polyml.codegen.generate import generate
from polyml.codegen.interpret import interpret
from polyml.codegen.passes.lower import LoopOptions, lower_loops
from polyml.user_schedule import UserSchedule

DENSE = """
def dense(x: f64["N K"], w: f64["K M"]):
    c[i, j] = x[i, k] * w[k, j]
    d[i, j] = max(c[i, j], 0)
    return d
"""
JACOBI = """
def jacobi(a: f64["N"], b: f64["N"], T: int):
    for t in range(T):
        if 1 <= i < N - 1:
            b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3
            a[i] = (b[i - 1] + b[i] + b[i + 1]) / 3
    return a, b
"""
FIXED_JACOBI = JACOBI.replace(", T: int", "").replace("range(T)", "range(5)")
SEIDEL = """
def seidel(a: f64["T N"]):
    for t in range(1, T):
        if 1 <= i < N - 1:
            a[t, i] = (a[t - 1, i - 1] + a[t - 1, i] + a[t - 1, i + 1]) / 3
    return a
"""
TRIANGLE = """
def triangle(l: f64["N N"], x: f64["N M"]):
    y: f64["N M"] = 0
    if j <= i:
        y[i, m] += l[i, j] * x[j, m]
    return y
"""
BLUR = """
def blur(x: f64["N M"]):
    h: f64["N M"] = 0
    y: f64["N M"] = 0
    if 1 <= j < M - 1:
        h[i, j] = x[i, j - 1] + 2 * x[i, j] + x[i, j + 1]
    if 1 <= i < N - 1:
        y[i, j] = h[i - 1, j] + 2 * h[i, j] + h[i + 1, j]
    return y
"""
TOTAL = """
def total(x: f64["N"]):
    s = sum[i](x[i])
    return s
"""
SHAPES: dict[str, tuple[tuple[int, ...] | int, ...]] = {
    DENSE: ((7, 5), (5, 9)),
    JACOBI: ((13,), (13,), 5),
    FIXED_JACOBI: ((13,), (13,)),
    SEIDEL: ((6, 13),),
    TRIANGLE: ((7, 7), (7, 3)),
    BLUR: ((9, 7),),
    TOTAL: ((19,),),
}


@functools.cache
def written(text: str, region: int = -1) -> UserSchedule:
    """The region's schedule in written order, for the program's shapes here."""
    arguments = [s if isinstance(s, int) else np.zeros(s) for s in SHAPES[text]]
    lowered = pm.einsum(text).lower(*arguments)
    return list(lowered.schedules.values())[region].written()


def results(schedule: UserSchedule, *, passes: bool = True) -> dict[str, np.ndarray]:
    """What its loops leave in the arrays that they write, from the same random arrays every time."""
    function = generate(schedule.schedule, name="region")
    if passes:
        function, _ = lower_loops(function, options=LoopOptions(vector_bytes=32))
    sizes = dict.fromkeys(function.sizes, 5)
    rng = np.random.default_rng(3)
    arrays = {v.name: rng.standard_normal([e.evaluate(sizes) for e in v.shape]) for v in function.arguments}
    interpret(function, arrays, sizes)
    return {name: arrays[name] for name in sorted(function.written)}


def assert_same(made: UserSchedule, original: UserSchedule) -> None:
    """Both compute the same, up to the order of sums."""
    expected = results(original, passes=False)
    for name, value in results(made).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12, err_msg=f"{name}\n{made}")
