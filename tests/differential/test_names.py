"""Programs whose names are like those that the compiler makes up: of elements, of second points of a pair, of earlier iterations."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.testing import verify

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


SECOND = """
def f(x: f32["N N K"]):
    y: f32["N N K"] = 0
    if i < i_second:
        y[i, i_second, k // 2] += x[i, i_second, k]
    return y
"""


def test_an_index_named_second() -> None:
    assert verify(SECOND, f32(5, 5, 6))
    with pytest.raises(polyml.PolymlError, match=r"more than once|twice"):
        polyml.einsum(SECOND.replace("+=", "="))(f32(5, 5, 6))


def test_a_loop_variable_named_previous() -> None:
    assert verify(
        """
def f(x: f32["N N"]):
    y: f32["N N"]
    for t_previous in range(N):
        for t in range(t_previous + 1):
            y[t_previous, t] = x[t_previous, t] * 2
        for t in range(t_previous + 1, N):
            y[t_previous, t] = y[t_previous, t - 1] + 1
    return y
""",
        f32(6, 6),
    )


@pytest.mark.parametrize("name", ["i_1", "i_2", "i_", "e0", "p", "x0"])
@pytest.mark.few(3)
def test_a_loop_around_a_statement_that_overwrites_what_it_reads(name: str) -> None:
    assert verify(
        f"""
def f(x: f32["N N"]):
    for {name} in range(3):
        x[i, j] = x[j, i] * 0.5 + x[{name}, j]
    return x
""",
        f32(10, 10),
    )


@pytest.mark.parametrize("name", ["x0", "x1", "i0", "e0"])
@pytest.mark.few(1)
def test_a_loop_with_sums_that_leave_it(name: str) -> None:
    assert verify(
        f"""
def f(x: f32["N"], w: f32["M"]):
    y: f32["N M"] = 0
    for {name} in range(N):
        y[{name}, m] = x[{name}] * w[m] + {name}
        for t in range({name}):
            y[t, m] += y[{name}, M - 1 - m] * w[m]
        s[m] = sum[n, n <= {name}](y[n, m])
        y[{name}, m] = s[m]
    return y
""",
        f32(12),
        f32(12),
    )


@pytest.mark.parametrize("name", ["x0", "x1", "i0", "i1", "e0"])
@pytest.mark.few(2)
def test_an_int_in_shapes(name: str) -> None:
    assert verify(
        f"""
def f(x: f32["N"], w: f32["M"], {name}: int):
    y: f32["{name} {name}"] = 2
    if i < j: y[i, j] += x[i]
    c = sum[i, j](y[i, j])
    z: f32["M"] = 0
    for t in range({name}):
        v[m] = w[m] * x[t]
        z[m] += v[m]
        if m < t:
            z[m] = z[M - 1 - m] + {name}
    return y, c, z
""",
        f32(40),
        f32(12),
        7,
    )


@pytest.mark.parametrize("name", ["i0", "i1"])
def test_an_int_in_the_shape_of_what_is_filled(name: str) -> None:
    text = f"""
def f(x: f32["N"], {name}: int):
    h: f32["{name} {name}"] = 2
    if i < j: h[i, j] += x[i]
    return h
"""
    assert verify(text, f32(40), 7)


@pytest.mark.parametrize("name", ["e0", "e1", "n"])
def test_an_int_in_the_shape_of_what_is_partly_written(name: str) -> None:
    function = polyml.einsum(f"""
def f(x: f32["N"], {name}: int):
    y: f32["{name} {name}"]
    if i < 3:
        y[i, k] = x[i]
    return y
""")
    with pytest.raises(polyml.PolymlError, match=r"y\[\d+, 0\] is returned before it is written"):
        function(f32(9), 5)


@pytest.mark.parametrize("name", ["MAX", "Mod", "NOT"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.few(3)
def test_words_that_isl_reads_in_upper_case_as_well(name: str, dynamic: bool) -> None:
    for role in ("SIZE", "loop", "tensor"):
        text = """
def f(tensor: f32["SIZE M"]):
    for loop in range(1, SIZE):
        tensor[loop, j] = tensor[loop - 1, j] * 0.5 + tensor[loop, j] + SIZE
    return tensor
"""
        assert verify(text.replace(role, name), f32(6, 5), dynamic=dynamic)
