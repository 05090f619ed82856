"""Half precision and complex numbers through the whole pipeline: one list of programs per kind, every type, layout and an odd size, against the interpreter, the graph's
reference and (where gcc is) the C text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import polyml
from polyml.dtypes import DTYPES, DType
from polyml.einsum_frontend.interpreter.execute import interpret
from polyml.einsum_frontend.parse import parse
from polyml.source import Source
from polyml.testing import assert_close
from polyml.testing.c_program import CProgram, compiler_path
from polyml.testing.cases import LAYOUTS, Case, Layout, copy_with_layout, lay_out
from polyml.testing.fuzz import check_other_types
from polyml.testing.strategies import programs_in_other_types
from polyml.testing.verify import verify
from tests.differential.oracles import results_of, run_graph

HALVES = ("f16", "bf16")
COMPLEX = ("c64", "c128")

# T is the type, P that of its parts. Every program takes x[N, K], w[K, M], v[N] and ids[N].
HALF_PROGRAMS = {
    "matmul": "y[n, m] = relu(x[n, k] * w[k, m] + v[n])",
    "sums": "y[n] = x[n, k]; s = sum[n, k](x[n, k] * x[n, k]); z[n] = y[n] / s",
    "extrema": "y[n] = max[k](x[n, k]); i[n] = argmin[k](x[n, k]); p[n] = prod[k](x[n, k]); t = min[n](y[n])",
    "softmax": "m[n] = max[k](x[n, k]); e[n, k] = exp(x[n, k] - m[n]); y[n, k] = e[n, k] / sum[j](e[n, j])",
    "rounded": "y[n, k] = f32(x[n, k]) * 3; z[n, k] = f32(T(y[n, k] + 0.3)); u[n, k] = i32(z[n, k])",
    "mixed": 'y: f64["N K"]\ny[n, k] = x[n, k] / 3\nz[n] = v[n] + f64(v[n])\nu[n] = v[n] * n',
    "in place": "x[n, k] *= 1.5\nx[n, k] += w[k, 0] * v[n]\nv[n] -= x[n, k] * w[k, 0]",
    "scatter": 'h: T["N"] = 0\nh[ids[n]] += x[n, 0]\ng[n] = x[ids[n], 0]',
    "conditions": "y[n] = where(v[n] > 0.1, v[n], -v[n] / 2); c[n] = v[n] == 0.1; q: T[\"N\"] = 1\nif n > 1:\n    q[n] = v[n]",
    "loop": "for t in range(1, N):\n    v[t] = v[t - 1] * 0.5 + v[t]",
    "shift": "y[n] = pad(v, ((1, 1),))[n + r] * w[r, 0]",
    "functions": "y[n] = sigmoid(v[n]) + tanh(v[n]) ** 2 + floor(v[n]) % 3; z[n] = abs(v[n]) // 0.75",
}  # fmt: skip
COMPLEX_PROGRAMS = {
    "matmul": "y[n, m] = x[n, k] * conj(w[k, m]) + v[n]",
    "sums": "y[n] = x[n, k]; s = sum[n, k](x[n, k] * x[n, k]); z[n] = y[n] / s",
    "parts": "a[n] = abs(v[n]); r[n] = real(v[n]) + imag(v[n]); c[n] = complex(a[n], -imag(v[n])); p[n] = real(a[n]) + imag(a[n])",
    "quotients": "y[n, k] = x[n, k] / w[k, 0]; z[n] = 1 / v[n] + v[n] / 2; u[n] = a_real[n] / v[n]",
    "large": "y[n, k] = x[n, k] / (w[k, 0] / (v[n] / (x[n, k] + 2))); z[n] = v[n] * v[n] * v[n] * v[n] * v[n] * v[n]; s[n] = sum[k, k < 2](x[n, k] / w[k, 0] / v[n]); q: T[\"N\"] = 1\nif n > 1:\n    q[n] = v[n] / v[n - 1] / v[n - 2] * v[n]",
    "powers": "y[n] = v[n] ** 3 + v[n] ** -2 - 2j * v[n] + 1.5; e[n] = exp(v[n] / 4)",
    "mixed": "y[n] = v[n] * a_real[n] + n; z[n] = 1j * a_real[n]; d[n] = f64(a_real[n]) * v[n]; k[n] = c128(v[n]) / 3",
    "comparisons": "y[n] = v[n] == x[n, 0]; z[n] = v[n] != 1j; b[n] = where(v[n] != 0 and a_real[n] > 0, v[n], conj(v[n])); t = any[n](v[n] == 0)",
    "in place": "x[n, k] *= 1j\nx[n, k] += w[k, 0] * v[n]\nv[n] -= x[n, k] * w[k, 0]\nv[n] /= 2",
    "scatter": 'h: T["N"] = 0\nh[ids[n]] += x[n, 0]\ng[n] = x[ids[n], 0] * v[n]',
    "conditions": 'q: T["N"] = 1\nif n > 1:\n    q[n] = v[n]\nu[n] = sum[k, k < 2](x[n, k] * w[k, 0])',
    "loop": "for t in range(1, N):\n    v[t] = v[t - 1] * 0.5j + v[t]",
    "products": 'p[n] = prod[k](x[n, k]); t = prod[n, k, k <= n](x[n, k] + 1); h: T["N"] = 2\nh[ids[n]] *= x[n, 0]\nh[n // 2] /= v[n] + 2\nfor j in range(2):\n    v[n] += prod[k, k <= j](x[n, k])',
    "shift": "y[n] = pad(v, ((1, 1),))[n + r] * w[r, 0]",
    "strides": "y[n] = v[N - 1 - n] + v[n // 2]; z[n, k] = x[n, k // 2] - w[k, 0]; u[n, m] = w[m % K, m] * v[n]",
}  # fmt: skip
RESULTS = "y s z i p t e m u g h c q a r d k b".split()


def source(name: str, body: str, dtype: DType) -> str:
    body = body.replace("T[", f"{dtype}[").replace("T(", f"{dtype}(")
    lines = [part.rstrip() for line in body.split("\n") for part in line.split("; ")]
    text = [f"    {line}" for line in lines]
    made = {line.split("=")[0].split("[")[0].split(":")[0].strip() for line in lines if not line.startswith(" ")}
    results = [name for name in RESULTS if name in made]
    tail = [f"    return {', '.join(results)}"] if results else []
    head = f'def f(x: {dtype}["N K"], w: {dtype}["K M"], v: {dtype}["N"], ids: i64["N"], a_real: {dtype.part}["N"]):'
    return "\n".join([head, *text, *tail, ""])


def arguments(dtype: DType, layout: Layout, sizes: tuple[int, int, int]) -> list[np.ndarray]:
    n, k, m = sizes
    rng = np.random.default_rng(7)

    def values(*shape: int) -> np.ndarray:
        found = rng.choice([0.5, 1.0, -1.0, 2.0, 1.5, -0.5, 0.25, -1.25], size=(2, *shape))
        whole = found[0] + 1j * found[1] if dtype.is_complex else found[0]
        return lay_out(np.asarray(whole).astype(dtype.numpy), layout)

    ids = lay_out(rng.integers(0, max(n, 1), n), layout)
    real = lay_out(np.abs(rng.standard_normal(n)).astype(dtype.part.numpy) + 1, layout)
    return [values(n, k), values(k, m), values(n), ids, real]


def check(text: str, given: list[np.ndarray], *, in_c: bool) -> None:
    def fresh() -> list[np.ndarray]:
        return [copy_with_layout(a) for a in given]

    expected_arguments = fresh()
    expected = results_of(interpret(parse(Source(text)), *expected_arguments, wide=True))
    program = polyml.einsum(text)
    in_text = [(CProgram(program.lower(*fresh())), fresh())] if in_c else []  # the call takes what was lowered
    runs = [(program, fresh()), (lambda *a: run_graph(text, a), fresh()), *in_text]
    computed_in = from_halves(given)
    length = 2 * sum(given[0].shape)
    for run, own in runs:
        actual = results_of(run(*own))
        for a, e in zip((*actual, *own), (*expected, *expected_arguments), strict=True):
            assert_close(a, e, length, computed_in=computed_in, scale=1.0)


def from_halves(given: list[np.ndarray]) -> DType | None:
    """The type whose rounding an f32 or f64 result may have seen."""
    return next((d for d in DTYPES.values() if d.numpy == given[0].dtype), None)


def every_program() -> Iterator[object]:
    """Each program on each type and layout; in every run each program on contiguous operands of all types, and on others of one type, layouts by turns."""
    layouts = [layout for layout in LAYOUTS if layout != "inner"]
    for dtype in (*HALVES, *COMPLEX):
        for number, (name, body) in enumerate((HALF_PROGRAMS if dtype in HALVES else COMPLEX_PROGRAMS).items()):
            for turn, layout in enumerate(layouts):
                long = layout != "contiguous" and (dtype in ("bf16", "c128") or (number + turn) % 3 == 0)
                marks = [pytest.mark.slow] if long else []
                yield pytest.param(dtype, name, body, layout, marks=marks, id=f"{dtype}-{name}-{layout}")


def test_a_complex_product_counts_each_factor_once() -> None:
    """However many values an index has that stands beside it, not in it."""
    body = "y[n, m] = w[0, m] * prod[k, k < n + 2](x[n, k]); s = sum[m](w[0, m] * prod[n](v[n]))"
    given = arguments(DTYPES["c128"], "contiguous", (3, 2, 5))
    assert verify(source("product", body, DTYPES["c128"]), *given)


def test_terms_that_a_sum_skips_have_a_type_all_the_same() -> None:
    """A bool beside the number 0 is a whole number, in a product with f32 of f64; beside False it stays one."""
    text = 'def f(b: bool["N"], x: f32["N"], u: u8["N"]):\n'
    text += "".join(
        f"    {name}[n] = x[n] * sum[k](where(k < n, b[k], {zero}) * {other}[k])\n"
        for name, zero, other in (("y", "0", "x"), ("z", "0", "u"), ("t", "False", "x"))
    )
    b, x, u = np.arange(7) % 2 == 0, np.arange(7, dtype=np.float32), np.arange(250, 257).astype(np.uint8)
    assert verify(f"{text}    return y, z, t\n", b, x, u)
    assert [a.dtype for a in polyml.einsum(f"{text}    return y, z, t\n")(b, x, u)] == ["f8", "f8", "f4"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("dtype", "name", "body", "layout"), list(every_program()))
@pytest.mark.few(3)
def test_programs(dtype: str, name: str, body: str, layout: Layout) -> None:
    kind = DTYPES[dtype]
    text = source(name, body, kind)
    sizes = {"contiguous": (19, 5, 33), "transposed": (9, 4, 17), "strided": (17, 3, 9)}.get(layout, (7, 4, 5))
    check(text, arguments(kind, layout, sizes), in_c=layout == "contiguous" and compiler_path() is not None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [*HALVES, *COMPLEX])
@pytest.mark.few(1)
def test_verify_knows_the_rounding_of_every_type(dtype: str) -> None:
    kind = DTYPES[dtype]
    bodies = HALF_PROGRAMS if kind.is_half else COMPLEX_PROGRAMS
    for name in ("matmul", "in place", "mixed"):
        given = arguments(kind, "contiguous", (5, 4, 3))
        report = verify(source(name, bodies[name], kind), *given)
        assert report, report
        assert report.elements > report.open, report
    text = source("matmul", bodies["matmul"], kind)
    exact = polyml.einsum(text)
    wrong = verify(
        text, *arguments(kind, "contiguous", (5, 4, 3)), computed_by=lambda *a: exact(*a) + kind.numpy.type(1)
    )
    assert not wrong
    assert wrong.wrong > 0


@pytest.mark.parametrize("dtype", ["f16", "bf16", "c64", "c128"])
def test_scalars_and_empty_arrays(dtype: str) -> None:
    kind = DTYPES[dtype]
    program = polyml.einsum(
        f'def f(a: {dtype}, x: {dtype}["N"]):\n    y[n] = a * x[n]\n    s = sum[n](x[n]) + a\n    return y, s\n'
    )
    for size in (0, 1, 3):
        x = np.arange(size).astype(kind.numpy)
        for number in (2, 1.5, kind.numpy.type(1.5), *((1 - 2j,) if kind.is_complex else ())):
            y, s = program(number, x)
            assert y.dtype == s.dtype == kind.numpy
            wide = complex if kind.is_complex else float
            np.testing.assert_array_equal(y, (wide(number) * x.astype(wide)).astype(kind.numpy))
            assert s == kind.numpy.type(x.astype(wide).sum() + wide(number))
    with pytest.raises(polyml.PolymlError, match="argument a must be"):
        program("1", x)


REFUSED = [
    ("c64", "y[n] = v[n] < 1", "complex numbers have no order", "abs"),
    ("c64", "y[n] = min(v[n], 1)", "complex numbers have no order", "abs"),
    ("c64", "y = max[n](v[n])", "complex numbers have no order", "abs"),
    ("c64", "y = argmin[n](v[n])", "complex numbers have no order", "abs"),
    ("c64", "y[n] = relu(v[n])", "complex numbers have no order", "abs"),
    ("c64", "y[n] = sigmoid(v[n])", "sigmoid is not defined for c64", "1 / (1 + exp(-x))"),
    ("c64", "y[n] = floor(v[n])", "floor is not defined for c64", "real"),
    ("c64", "y[n] = v[n] % 2", "`%` is not defined for c64", "real"),
    ("c64", "y[n] = f32(v[n])", "c64 does not convert to f32", "real"),
    ("c64", "y[n] = complex(v[n], 1)", "takes two real numbers", ""),
    ("c64", 'y: f32["N"]\ny[n] = v[n]', "y has dtype f32, and is assigned values of dtype c64", "real"),
    ("c64", "y[n] = x[v[n], 0]", "only integers can be subscripts", ""),
    ("bf16", "y[n] = v[n] + ids[n]", "bf16 and i64 have no common type", "f32"),
    ("bf16", "y[n] = v[n] + f16(v[n])", "bf16 and f16 have no common type", "f32"),
    ("f16", 'y: i32["N"]\ny[n] = v[n]', "y has dtype i32, and is assigned values of dtype f16", "i32"),
]


@pytest.mark.parametrize(("dtype", "body", "message", "hint"), REFUSED)
def test_refusals_point_at_the_place(dtype: str, body: str, message: str, hint: str) -> None:
    kind = DTYPES[dtype]
    text = source("refused", body, kind)
    with pytest.raises(polyml.PolymlError, match=message) as caught:
        polyml.einsum(text)(*arguments(kind, "contiguous", (5, 4, 3)))
    assert hint in (caught.value.hint or "")
    assert "^" in str(caught.value)
    with pytest.raises((polyml.PolymlError, TypeError)):
        interpret(parse(Source(text)), *arguments(kind, "contiguous", (5, 4, 3)))


SPECIAL = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-30, 1e30]


COMPLEX_FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "tanh", "abs", "round")


def values_of_functions(dtype: DType) -> np.ndarray:
    """Parts of every size, and all pairs of special ones."""
    rng = np.random.default_rng(3)
    special = np.array([*SPECIAL, -1.0, 0.5, 11.0, 89.5, -95.0, 1.0000001])
    pairs = np.stack([part.ravel() for part in np.meshgrid(special, special)])
    parts = np.concatenate([pairs, rng.standard_normal((2, 2000)) * np.exp(rng.uniform(-8, 4, (2, 2000)))], axis=1)
    found = np.empty(parts.shape[1], dtype.numpy)
    found.real, found.imag = parts
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_functions_have_numpys_values_and_branch_cuts(dtype: str) -> None:
    """Infinities, NaN and the signs of zeros too; errors relative to the size of the result, which the wider type knows."""
    kind = DTYPES[dtype]
    z = values_of_functions(kind)
    lines = [f"    {name}_[n] = {name}(z[n])" for name in COMPLEX_FUNCTIONS]
    tail = f"    return {', '.join(f'{name}_' for name in COMPLEX_FUNCTIONS)}"
    found = polyml.einsum("\n".join([f'def f(z: {dtype}["N"]):', *lines, tail, ""]))(z)
    limits = np.finfo(kind.part.numpy)
    for name, actual in zip(COMPLEX_FUNCTIONS, found, strict=True):
        function = getattr(np, name)
        wide = function(z.astype(np.clongdouble))
        expected = wide.astype(actual.dtype)
        known = np.isfinite(expected)
        errors = np.abs(actual - wide) / np.maximum(np.abs(wide), limits.tiny)
        assert errors[known].max() < 8 * limits.eps, (name, z[known][errors[known].argmax()])
        for part in (np.real, np.imag):
            a, e, large = part(actual), part(expected), np.abs(part(wide)) < limits.max / 2
            assert np.array_equal(np.isnan(a), np.isnan(e)), (name, z[np.isnan(a) != np.isnan(e)])
            assert np.array_equal(np.isinf(a[large]), np.isinf(e[large])), name
            decided = ~np.isnan(e) & np.isfinite(z) & (e != 0 if name == "round" else True)
            assert np.array_equal(np.signbit(a[decided]), np.signbit(e[decided])), (name, z[decided])


@pytest.mark.parametrize(("dtype", "least"), [("c64", 2.0**-149), ("c128", 2.0**-1074)])
def test_the_root_of_the_smallest_numbers(dtype: str, least: float) -> None:
    """Half of them is zero, their root is not."""
    z = np.array([complex(a, b) for a in (0.0, least, -least) for b in (least, -least, 3 * least)])
    text = f'def f(z: {dtype}["N"]):\n    y[n] = sqrt(z[n])\n    return y\n'
    kind = DTYPES[dtype].numpy
    assert_close(polyml.einsum(text)(z.astype(kind)), np.sqrt(z).astype(kind), reduction_length=1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.few(1)
def test_complex_powers(dtype: str) -> None:
    kind = DTYPES[dtype]
    rng = np.random.default_rng(4)
    base, exponent = (rng.standard_normal(400) + 1j * rng.standard_normal(400) for _ in range(2))
    corners = np.array([(a, b) for a in (0, 1, -1, 2j, 1 - 1j) for b in (0, 1, -1, 2j, 0.5, 1 + 1j, -2 - 1j, 3)]).T
    z, w = (np.concatenate(part).astype(kind.numpy) for part in ((corners[0], base), (corners[1], 4 * exponent)))
    text = f'def f(z: {dtype}["N"], w: {dtype}["N"]):\n    a[n] = z[n] ** w[n]\n    b[n] = z[n] ** 2.5\n    c[n] = z[n] ** 0\n    d[n] = 2 ** w[n]\n    return a, b, c, d\n'
    found = polyml.einsum(text)(z, w)
    for actual, expected in zip(found, (z**w, z**2.5, z**0, 2**w), strict=True):
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        known = ~np.isnan(expected)
        errors = np.abs(actual - expected)[known] / np.maximum(np.abs(expected[known]), 1e-30)
        assert errors.max() < 400 * np.finfo(kind.numpy).eps


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_operators_on_special_values(dtype: str) -> None:
    """As NumPy, for finite numbers; what has a NaN or infinity in NumPy has none less here."""
    kind = DTYPES[dtype]
    parts = np.array(SPECIAL)
    x = (parts[:, None] + 0j * 0).repeat(len(parts), axis=1).astype(kind.numpy)
    x.imag = parts[None, :]
    x, y = (v.ravel() for v in np.meshgrid(x.ravel(), x.ravel()))
    found = polyml.einsum(f"""
def f(x: {dtype}["N"], y: {dtype}["N"]):
    s[n] = x[n] + y[n]
    p[n] = x[n] * y[n]
    q[n] = x[n] / y[n]
    a[n] = abs(x[n])
    e[n] = x[n] == y[n]
    return s, p, q, a, e
""")(x, y)
    expected = (x + y, x * y, x / y, np.abs(x), x == y)
    limit = 64 * np.finfo(kind.part.numpy).eps
    for name, f, w in zip("spqae", found, expected, strict=True):
        finite = np.isfinite(w)
        if name == "q":
            finite &= (np.abs(w) > np.finfo(kind.part.numpy).tiny * 1e3) | (w == 0)
        scale = np.abs(x * y)[finite] if name == "p" else np.abs(w)[finite]
        error = np.abs(f[finite].astype(complex) - w[finite].astype(complex))
        assert np.all((error <= limit * scale) | (error == 0) | ~np.isfinite(scale)), name
        assert not np.any(np.isfinite(f[~np.isfinite(w)])), name


@given(programs_in_other_types())
@settings(max_examples=6, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs(case: Case) -> None:
    check_other_types(case)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "c64", "c128"])
@pytest.mark.few(1)
def test_transposed_copies(dtype: str) -> None:
    kind = DTYPES[dtype]
    for shape in ((40, 70), (64, 48), (17, 33)):
        x = np.arange(shape[0] * shape[1]).reshape(shape) % 11 - 5
        x = (x * (1j if kind.is_complex else 1)).astype(kind.numpy)
        transposed = polyml.einsum(f'def f(x: {dtype}["N M"]):\n    y[m, n] = x[n, m]\n    return y\n', threads=1)
        np.testing.assert_array_equal(transposed(x), x.T)
        np.testing.assert_array_equal(transposed(x.T), x)
        product = polyml.einsum("nm,km->nk", x, x[:8])
        wide = complex if kind.is_complex else float
        expected = x.astype(wide) @ x[:8].astype(wide).T
        limit = {"f16": 1e-3, "bf16": 1e-2}.get(dtype, 1e-5)
        assert np.max(np.abs(product.astype(wide) - expected)) <= limit * np.max(np.abs(expected))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [*HALVES, *COMPLEX])
@pytest.mark.few(1)
def test_programs_for_smaller_machines(dtype: str, target: str) -> None:
    """Without AVX-512, and without conversions of half precision."""
    machine, kind = polyml.Target(target), DTYPES[dtype]
    if not machine.runs_here:
        pytest.skip("this machine is another one")
    bodies = HALF_PROGRAMS if kind.is_half else COMPLEX_PROGRAMS
    for name in ("matmul", "sums", "in place", "conditions", "shift"):
        text, given = source(name, bodies[name], kind), arguments(kind, "contiguous", (9, 4, 17))
        runs = [
            (polyml.einsum(text, **options), [copy_with_layout(a) for a in given])
            for options in ({}, {"target": machine})
        ]
        (expected, own), (actual, mine) = ((results_of(run(*a)), a) for run, a in runs)
        for a, e in zip((*actual, *mine), (*expected, *own), strict=True):
            assert_close(a, e, 16, computed_in=kind, scale=1.0)
