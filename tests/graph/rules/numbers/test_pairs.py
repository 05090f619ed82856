"""Sums of products of bf16 over pairs: which become that, and what they compute."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

import polyml
from polyml.dtypes import bf16
from polyml.testing import verify

ml_dtypes = pytest.importorskip("ml_dtypes")

OFTEN = polyml.Target("host", dot_bf16=1.0)
"""A machine whose instruction is worth it in every product."""

SELDOM = polyml.Target("host", dot_bf16=4.0)
"""One where it pays for conversions only."""

PRODUCTS = {
    "matrices": ('x: bf16["N K"], w: bf16["K M"]', "y[n, m] = x[n, k] * w[k, m]"),
    "second transposed": ('x: bf16["N K"], w: bf16["M K"]', "y[n, m] = x[n, k] * w[m, k]"),
    "first transposed": ('x: bf16["K N"], w: bf16["K M"]', "y[n, m] = x[k, n] * w[k, m]"),
    "batches": ('x: bf16["B N K"], w: bf16["B K M"]', "y[b, n, m] = f32(x[b, n, k]) * f32(w[b, k, m])"),
    "two sums": ('x: bf16["N K L"], w: bf16["K L M"]', "y[n, m] = x[n, k, l] * w[k, l, m]"),
    "bias": ('x: bf16["N K"], w: bf16["K M"], b: bf16["M"]', "y[n, m] = relu(sum[k](x[n, k] * w[k, m]) + b[m])"),
    "rows": ('x: bf16["N K"], w: bf16["K"]', "y[n] = x[n, k] * w[k]"),
    "pairs of rows": ('x: bf16["N K"], w: bf16["N K"]', "y[n] = x[n, k] * w[n, k]"),
    "updated": ('x: bf16["N K"], w: bf16["K M"], y: f32["N M"]', "y[n, m] += f32(x[n, k]) * f32(w[k, m])"),
}


def program(name: str, **options: object) -> polyml.Einsum:
    parameters, line = PRODUCTS[name]
    result = "" if "+=" in line else "\n    return y"
    return polyml.einsum(f"def f({parameters}):\n    {line}{result}\n", **options)


def arguments(name: str, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    found = []
    for parameter in PRODUCTS[name][0].split("], "):
        dtype, shape = parameter.split(": ")[1].rstrip(']"').split('["')
        values = rng.standard_normal([sizes[letter] for letter in shape.split()])
        found.append(values.astype(np.float32 if dtype == "f32" else bf16.numpy))
    return found


def shown(lowered: polyml.Lowered, view: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        lowered.show(view)
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "depth", "target"),
    [*((name, 77, OFTEN) for name in PRODUCTS), ("matrices", 64, OFTEN)]
    + [(name, depth, SELDOM) for name in ("matrices", "rows", "pairs of rows") for depth in (64, 77)],
)
@pytest.mark.few(2)
def test_pairs_compute_the_sum(name: str, depth: int, target: polyml.Target) -> None:
    sizes = {"N": 35, "M": 49, "B": 2, "K": depth, "L": 3}
    given = arguments(name, sizes)
    made = program(name, target=target)
    graph = shown(made.lower(*given), "graph")
    paired = target is OFTEN or name in ("rows", "pairs of rows")
    assert ("dot_bf16" in graph) == paired
    assert ("_pairs[" in graph) == (paired and name not in ("rows", "pairs of rows"))
    own = [a.copy() for a in given]
    plain = [a.copy() for a in given]
    found, want = made(*own), program(name, precise=True)(*plain)
    found, want = (own[-1], plain[-1]) if found is None else (found, want)
    assert found.dtype == want.dtype
    np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("name", "sizes"), [("matrices", {"N": 5, "K": 17, "M": 18}), ("rows", {"N": 4, "K": 67})])
@pytest.mark.few(1)
def test_verify_knows_the_bounds(name: str, sizes: dict[str, int]) -> None:
    given = arguments(name, sizes)
    assert verify(program(name, target=OFTEN), *given)
    given[0][1, 3] = 1e-39  # read as zero
    given[1][3] = 1e38
    assert verify(program(name, target=OFTEN), *given)
    assert not verify(program(name), *given, computed_by=lambda x, w: program(name)(x, w * np.float32(1.25)))


@pytest.mark.parametrize("name", ["matrices", "rows", "pairs of rows"])
def test_what_pads_an_odd_sum_does_not_leak(name: str) -> None:
    given = arguments(name, {"N": 34, "K": 65, "M": 33})
    for number in (np.inf, np.nan):
        x = given[0].copy()
        x[5, 64] = number
        found = np.isfinite(program(name, target=OFTEN)(x, *given[1:]).astype(np.float32))
        assert not found[5].any()
        assert np.delete(found, 5, axis=0).all()


def test_subnormal_numbers_of_precise_programs_stay() -> None:
    x, w = np.full((2, 128), 1e-39, bf16.numpy), np.full(128, 1e38, bf16.numpy)
    exact = float(x[0, 0]) * float(w[0]) * 128
    made = program("rows", target=OFTEN, precise=True)
    assert "dot_bf16" not in shown(made.lower(x, w), "graph")
    np.testing.assert_allclose(made(x, w).astype(float), exact, rtol=1e-2)


@pytest.mark.parametrize("name", ["matrices", "rows", "pairs of rows"])
def test_strides_and_odd_addresses(name: str) -> None:
    given = arguments(name, {"N": 34, "K": 131, "M": 33})
    made = program(name, target=OFTEN)
    want = made(*given).astype(float)
    wide = [np.zeros([2 * n + 1 for n in a.shape], a.dtype) for a in given]
    views = [w[tuple(slice(1, None, 2) for _ in w.shape)] for w in wide]
    shifted = [np.empty(a.size + 1, a.dtype)[1:].reshape(a.shape) for a in given]
    padded = [np.zeros([*a.shape[:-1], a.shape[-1] + 3], a.dtype)[..., 2:-1] for a in given]
    for others in (views, shifted, padded):
        for other, a in zip(others, given, strict=True):
            other[...] = a
        np.testing.assert_allclose(made(*others).astype(float), want, rtol=1e-2, atol=1e-2)
    if name != "matrices":
        assert "dot_bf16" not in shown(made.lower(*views), "graph")


def test_what_stays_as_it_is() -> None:
    x, w = arguments("matrices", {"N": 34, "K": 64, "M": 33})
    for options in ({"target": polyml.Target("host", dot_bf16=0.0)}, {"target": OFTEN, "dynamic": True}):
        assert "dot_bf16" not in shown(program("matrices", **options).lower(x, w), "graph")
    short = arguments("matrices", {"N": 34, "K": 8, "M": 33})
    assert "dot_bf16" not in shown(program("matrices", target=OFTEN).lower(*short), "graph")


def test_explain_says_so() -> None:
    x, w = arguments("matrices", {"N": 34, "K": 64, "M": 33})
    assert "pairs of bf16" in str(program("matrices", target=OFTEN).lower(x, w).explain())
    assert "pairs of bf16" not in str(program("matrices", precise=True).lower(x, w).explain())


def test_bound_weights_are_paired_once() -> None:
    x, w = arguments("matrices", {"N": 40, "K": 65, "M": 70})
    made = program("matrices", target=OFTEN)
    np.testing.assert_array_equal(made.bind(w=w)(x), made(x, w))


def test_the_instruction_is_emitted_where_there_is_one() -> None:
    v4 = polyml.Target("x86-64-v4", features="-prefer-256-bit,+avx512bf16,+avx512vl", dot_bf16=1.0)
    other = polyml.Target("x86-64-v3", dot_bf16=1.0)
    x, w = arguments("matrices", {"N": 40, "K": 65, "M": 70})
    assert shown(program("matrices", target=v4).lower(x, w), "asm").count("vdpbf16ps") > 8
    assert "vdpbf16ps" not in shown(program("matrices", target=other).lower(x, w), "asm")
    assert "dot_bf16(" in shown(program("matrices", target=v4).lower(x, w), "c")


def test_a_factor_whose_place_is_read() -> None:
    """Each row has weights of its own, of which an index tensor says which: no dimension of pairs."""
    experts = polyml.einsum(
        """
def experts(x: bf16["N K"], w: bf16["E K M"], g: i64["N"]):
    y: f32["N M"]
    y[n, m] = sum[k](x[n, k] * w[g[n], k, m])
    return y
""",
        target=OFTEN,
    )
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((20, 16), (2, 16, 8)))
    g = rng.integers(0, 2, 20)
    assert np.array_equal(experts(x, w, g), np.einsum("nk,nkm->nm", x.astype("f4"), w.astype("f4")[g]))
