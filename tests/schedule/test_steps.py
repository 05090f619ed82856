"""Contractions in sequential loops: each iteration in blocks and panels like a program of its own, with the loops around; which programs do, and that what an iteration leaves to the next one is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.schedule.tree import print_tree
from polyml.target import Target

SMALL = Target("host", l1_bytes=4096, l2_bytes=32 * 1024, cores=2)
"""This machine with caches so small that blocks appear at test sizes."""


def packed(program: polyml.Einsum, *arguments: object) -> list[str]:
    """The statements that fill panels, and nothing fell back."""
    regions = program.lower(*arguments).stages.regions
    assert not [note for region in regions for note in region.notes if note.stage == "fallback"]
    return [name for region in regions for name in region.schedule.scop.statements if "_panels" in name]


def powers(x: np.ndarray, a: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        x = a @ x
    return x


def layers(x: np.ndarray, a: np.ndarray, count: int) -> np.ndarray:
    h = x
    for t in range(count):
        h = np.tanh(h.T @ a).T + x * t
    return h


def there_and_back(x: np.ndarray, a: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        y = a @ x
        x = a.T @ y / len(a)
    return x


CASES: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray], int]] = {
    "powers": ("x[i, j] = sum[k](a[i, k] * x[k, j])", powers, 1),
    "layers": ("h[i, j] = tanh(sum[k](x[k, j] * a[k, i])) + x0[i, j] * t\n        x[i, j] = h[i, j]", layers, 1),
    "there and back": (
        "y[i, j] = sum[k](a[i, k] * x[k, j])\n        x[i, j] = sum[k](a[k, i] * y[k, j]) / N",
        there_and_back,
        2,
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(1)
def test_products_of_each_step_are_packed(case: str, known: bool) -> None:
    """With a number of steps that is known and with any; rests of rows and columns; threads change no result."""
    line, reference, panels = CASES[case]
    head, steps = ("", "3") if known else (", T: int", "T")
    text = f"""
def steps(a: f64["N N"], x0: f64["N M"]{head}):
    x: f64["N M"]
    x[i, j] = x0[i, j]
    for t in range({steps}):
        {line}
    return x
"""
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((70, 70)) / 8, rng.standard_normal((70, 61))
    found = []
    for threads in (1,) if known else (1, 2):
        program = polyml.einsum(text, target=SMALL, threads=threads, verify=threads == 2)
        assert len(packed(program, a, x, *(() if known else (3,)))) >= panels
        for count in (3,) if known else (3, 1, 0):
            found.append(program(a, x, *(() if known else (count,))))
            np.testing.assert_allclose(found[-1], reference(x, a, count), rtol=1e-11, atol=1e-12)
    assert known or all(np.array_equal(one, two) for one, two in zip(found[:3], found[3:], strict=True))


def test_narrow_products_run_step_by_step() -> None:
    """Too few columns for panels: still no column goes through all steps by itself, whose lanes would gather."""
    program = polyml.einsum(
        """
def steps(a: f32["N N"], x0: f32["N 16"], T: int):
    x: f32["N 16"]
    x[i, j] = x0[i, j]
    for t in range(T):
        x[i, j] = 0.9 * sum[k](a[i, k] * x[k, j]) + 0.1 * x0[i, j]
    return x
""",
        target=SMALL,
        verify=True,
    )
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((80, 80), np.float32) / 9, rng.standard_normal((80, 16), np.float32)
    want = x.astype(float)
    for _ in range(3):
        want = 0.9 * (a @ want) + 0.1 * x
    np.testing.assert_allclose(program(a, x, 3), want, rtol=1e-4, atol=1e-5)
    trees = [print_tree(r.schedule.tree, r.schedule.scop) for r in program.lower(a, x, 3).stages.regions]
    assert any(tree.split("\n")[1].startswith("└─ band[t |") for tree in trees)


def test_a_step_that_reads_what_it_overwrites() -> None:
    """Rows of x are read for all columns, and updated from products with them in the same step."""
    program = polyml.einsum(
        """
def steps(x0: f64["N M"], b: f64["3 N N"]):
    x: f64["N M"]
    s: f64["3 N M"]
    x[i, j] = x0[i, j]
    for t in range(3):
        x[i, j] += 0.1 * sum[k](b[t, i, k] * x[k, j])
        g[i, k] = sum[j](x[i, j] * x[k, j])
        x[i, j] -= 0.01 * sum[k](g[i, k] * x[k, j])
        s[t, i, j] = x[i, j]
    return x, s
""",
        target=SMALL,
        verify=True,
    )
    rng = np.random.default_rng(1)
    x, b = rng.standard_normal((50, 70)) / 8, rng.standard_normal((3, 50, 50)) / 7
    want, kept = x, []
    for t in range(3):
        want = want + 0.1 * (b[t] @ want)
        want = want - 0.01 * (want @ want.T) @ want
        kept.append(want)
    found = program(x, b)
    np.testing.assert_allclose(found[0], want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found[1], np.stack(kept), rtol=1e-11, atol=1e-13)


def test_gates_of_a_cell_and_constant_weights() -> None:
    """What follows a product takes its results from several places; panels of constants are filled once, not once for each step."""
    program = polyml.einsum(
        """
def cells(x: f64["T B M"], u: f64["2 M M"]):
    h: f64["B M"] = 0
    for t in range(T):
        g[q, b, j] = x[t, b, j] + sum[k](h[b, k] * u[q, k, j])
        h[b, j] = tanh(g[0, b, j]) * g[1, b, j]
    return h
""",
        target=SMALL,
    )
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((3, 40, 56)), rng.standard_normal((2, 56, 56)) / 8
    want = np.zeros((40, 56))
    for step in x:
        want = np.tanh(step + want @ u[0]) * (step + want @ u[1])
    notes = [note for r in program.lower(x, u).stages.regions for note in r.notes]
    assert [note.subject for note in notes if note.stage == "blocking"] == ["S_g_sum"]
    np.testing.assert_allclose(program(x, u), want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(program.bind(u=u)(x), want, rtol=1e-11, atol=1e-13)


def test_precise_sums_stay() -> None:
    text = 'def steps(a: f64["N N"], x: f64["N M"], T: int):\n    for t in range(T):\n        x[i, j] = sum[k](a[i, k] * x[k, j])\n    return x\n'
    a, x = np.eye(70), np.ones((70, 60))
    assert not packed(polyml.einsum(text, target=SMALL, precise=True), a, x, 2)


@pytest.mark.parametrize("steps", [0, -2])
def test_a_first_call_without_steps(steps: int) -> None:
    """No iteration has a range that anything could be asked of."""
    text = """
def f(w: f32["N M"], first: int, count: int):
    y: f32["M"] = 1
    for s in range(first, first + count):
        y[j] = y[j] / 2 + w[s, j]
    return y
"""
    program = polyml.einsum(text)
    w = np.ones((5, 4), np.float32)
    assert (program(w, 3, steps) == 1).all()
    assert (program(w, 2, 1) == 1.5).all()


@pytest.mark.parametrize(("columns", "copies"), [(128, {"a_panels"}), (129, {"a_panels", "a_rest"})])
def test_each_step_packs_matrices_of_its_own(columns: int, copies: set[str]) -> None:
    """The loop's variable says where copies read; columns that whole vectors leave over are copied, too."""
    target = Target("x86-64-v3", l1_bytes=8 * 1024, l2_bytes=64 * 1024)
    program = polyml.einsum(
        """
def steps(x: f32["T N K"], a: f32["T K M"], c: f32["N M"]):
    for t in range(T):
        c[i, j] = c[i, j] / 2 + x[t, i, k] * a[t, k, j]
    return c
""",
        target=target if target.runs_here else Target("host"),
        threads=1,
    )
    rng = np.random.default_rng(columns)
    x, a, c = (rng.integers(-2, 3, s).astype(np.float32) for s in ((3, 70, 260), (3, 260, columns), (70, columns)))
    expected = c
    for left, right in zip(x, a, strict=True):
        expected = expected / 2 + left @ right
    if target.runs_here:
        assert copies <= {name for r in program.lower(x, a, c).stages.regions for name in r.schedule.scop.arrays}
    np.testing.assert_array_equal(program(x, a, c), expected)
