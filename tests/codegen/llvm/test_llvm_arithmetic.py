"""Every scalar op, cast and reduction against NumPy, as scalars and in lanes, on values that include the awkward ones."""

from __future__ import annotations

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.expression import EMITTED
from polyml.codegen.llvm.reductions.combine import COMBINED
from polyml.codegen.loops import Allocate, Node, Place, UpdateArgument
from polyml.dtypes import COMPUTED, DTYPES, DType, boolean, f32, f64, i64
from polyml.expressions import Const, IndexValue
from polyml.ops import BITWISE, OPS, REDUCTIONS, result_dtype
from polyml.sets.affine import affine
from tests.codegen.llvm.support import (
    apply,
    compile_functions,
    const,
    function_of,
    loop,
    read,
    run_each,
    store,
    variable,
    vector,
)

NAMES = sorted(COMPUTED)
FLOAT_ONLY = {
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "log1p",
    "atan2",
    "copysign",
    "sigmoid",
    "erf",
    "gelu",
    "div",
}
OTHER = {
    "select",
    "cast",
    "pow",
    "real",
    "imag",
    "complex",
    "pair_bf16",
    "dot_bf16",
    "pair_i16",
    "dot_i16",
    "quad_i8",
    "dot_i8",
}
ARITHMETIC = sorted(OPS.keys() - FLOAT_ONLY - OTHER)


def test_every_op_and_reduction_has_a_row() -> None:
    assert OPS.keys() <= EMITTED
    assert REDUCTIONS.keys() <= COMBINED


def awkward(dtype: DType, seed: int) -> np.ndarray:
    """Random values among zeros, extremes, infinities and NaN; odd in number."""
    generator = np.random.default_rng(seed)
    if dtype.kind == "b":
        return generator.integers(0, 2, 203).astype(bool)
    if dtype.is_float:
        special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -2.5, 1e-310, 3e38])
        x = np.concatenate([special, generator.normal(size=60) * 5, generator.integers(-9, 9, 60)])
        return generator.choice(x, 203).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    special = np.array([0, 1, 2, 3, info.min, info.max, info.max - 1] + ([-1, -2, -7] if info.min else []), dtype.numpy)
    return generator.choice(np.concatenate([special, generator.integers(info.min, info.max, 20, dtype.numpy)]), 203)


def in_both_forms(node: Node, size: int, lanes: int = 16) -> list[list[Node]]:
    return [[vector("i", size, lanes, node)], [loop("i", 0, size, node)]]


def lanes_of(*dtypes: DType) -> int:
    """A vector and more of the narrower ones; of wide ones 16 lanes take long to compile."""
    return 16 if max(dtype.itemsize for dtype in dtypes) < 4 else 8


NOT_ON_BOOL = {"sub", "neg", "floordiv", "mod", "floor", "ceil", "round", "relu", "abs"}


def takes(op: str, dtype: DType) -> bool:
    """Whether the op is defined for the type by the time that it is emitted."""
    if op in BITWISE:
        return dtype.is_integer
    if op == "popcount":
        return dtype.kind == "u"
    return dtype.name != "bool" or op not in NOT_ON_BOOL


TYPED_REDUCTIONS = [
    (reduction, name)
    for reduction in ("sum", "prod", "max", "min", "any", "all")
    for name in NAMES
    if (reduction in ("any", "all")) == (name == "bool")
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic_is_numpys(op: str) -> None:
    row, functions, given, wanted = OPS[op], [], [], []
    for name in NAMES:
        dtype = DTYPES[name]
        if not takes(op, dtype):
            continue
        result = result_dtype(op, dtype)
        arrays = {"y": np.zeros(203, result.numpy), "a": awkward(dtype, 1), "b": awkward(dtype, 2)}
        args = [read(which, dtype, "i") for which in "ab"[: row.arity]]
        want = row.meaning(*(arrays[which] for which in "ab"[: row.arity]))
        for body in in_both_forms(store("y", "i", apply(op, *args, dtype=result)), 203, lanes_of(dtype)):
            functions.append(function_of(body, arrays))
            given.append(arrays)
            wanted.append(want)
    for call, arrays, want in zip(compile_functions(functions), given, wanted, strict=True):
        out = call(arrays, {})["y"]
        np.testing.assert_array_equal(out, want, err_msg=str(arrays["a"].dtype))
        if op in ("mod", "floordiv", "round", "floor") and arrays["a"].dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(out[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source", NAMES)
def test_casts_are_numpys(source: str) -> None:
    a = DTYPES[source]
    x = awkward(a, 3)
    functions = []
    for target in NAMES:
        node = store("y", "i", apply("cast", read("x", a, "i"), dtype=DTYPES[target]))
        arrays = {"y": np.zeros(203, DTYPES[target].numpy), "x": x}
        functions += [function_of(body, arrays) for body in in_both_forms(node, 203, lanes_of(a, DTYPES[target]))]
    calls = compile_functions(functions)
    for number, target in enumerate(NAMES):
        b = DTYPES[target]
        with np.errstate(all="ignore"):
            want = x.astype(b.numpy)
        fits = np.ones(x.shape, bool)
        if a.is_float and b.is_integer:
            info = np.iinfo(b.numpy)
            fits = np.isfinite(x) & (np.trunc(x) >= info.min) & (np.trunc(x) <= info.max)
        for call in calls[2 * number : 2 * number + 2]:
            out = call({"y": np.zeros(203, b.numpy), "x": x}, {})["y"]
            np.testing.assert_array_equal(out[fits], want[fits], err_msg=target)


EXPONENTS = (None, 0, 1, 2, 3, 5)
"""None: one per element."""


@pytest.mark.parametrize("name", ["i8", "u8", "i32", "u32", "i64", "f32", "f64"])
def test_powers(name: str) -> None:
    dtype = DTYPES[name]
    x = (np.arange(203) % 11 - (5 if dtype.kind != "u" else 0)).astype(dtype.numpy)
    each = (np.arange(203) % 7).astype(dtype.numpy)
    arrays = {"y": np.zeros_like(x), "x": x, "e": each}
    powers = [read("e", dtype, "i") if e is None else const(e, dtype) for e in EXPONENTS]
    nodes = [store("y", "i", apply("pow", read("x", dtype, "i"), power)) for power in powers]
    found = run_each([body for node in nodes for body in in_both_forms(node, 203)], arrays)
    for k, exponent in enumerate(EXPONENTS):
        y = each if exponent is None else np.array(exponent, dtype.numpy)
        for out in found[2 * k : 2 * k + 2]:
            limit = 2e-7 if dtype.is_float else 0
            np.testing.assert_allclose(out["y"], x**y, rtol=limit, err_msg=str(exponent))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_powers_that_are_products(name: str) -> None:
    """Whole exponents and halves up to 16 are multiplications and a root, with pow's values at zeros and infinities."""
    dtype = DTYPES[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, -2.5, 0.3, 1.7]
    x = np.concatenate([special, np.exp(np.random.default_rng(0).uniform(-2, 2, 27))]).astype(dtype.numpy)
    exponents = [*range(1, 17), 0.5, 1.5, 2.5, 7.5, 15.5, 16.5, 17, 0.25]
    exponents += [-e for e in exponents]
    nodes = [store("y", "i", apply("pow", read("x", dtype, "i"), const(exponent, dtype))) for exponent in exponents]
    bodies = [body for node in nodes for body in in_both_forms(node, len(x))]
    found = run_each(bodies, {"y": np.zeros_like(x), "x": x})
    for k, exponent in enumerate(exponents):
        with np.errstate(all="ignore"):
            want = np.power(x.astype(np.float64), np.full(len(x), exponent))  # a number of 0.5 would be a root
        for out in found[2 * k : 2 * k + 2]:
            limit = (2 + abs(exponent)) * np.finfo(dtype.numpy).eps / 2
            np.testing.assert_allclose(out["y"], want.astype(dtype.numpy), rtol=limit, err_msg=str(exponent))
            np.testing.assert_array_equal(np.signbit(out["y"][:4]), np.signbit(want[:4]), err_msg=str(exponent))


def test_products_take_no_logarithm() -> None:
    program = "def f(x: f64['N']):\n    y[n] = x[n]**{}\n    return y\n"

    def size(exponent: float, *, precise: bool) -> int:
        return len(polyml.einsum(program.format(exponent), precise=precise).lower(np.ones(64)).text("llvm"))

    loose = [size(e, precise=False) for e in (-1.5, -14, -4, 1.3)]
    assert 2 * max(loose[:3]) < loose[3]
    exact = [size(e, precise=True) for e in (-1.5, -14, -4, 1.3)]
    assert 2 * exact[2] < min(exact[0], exact[1], exact[3])


def test_index_values_and_their_casts() -> None:
    for dtype in (i64, f32, f64):
        value = apply("cast", IndexValue(affine("i") * 3 - 5, i64), dtype=dtype)
        for out in run_each(in_both_forms(store("y", "i", value), 37), {"y": np.zeros(37, dtype.numpy)}):
            np.testing.assert_array_equal(out["y"], np.arange(37) * 3 - 5)


def test_contraction_happens_only_when_allowed() -> None:
    third = np.float32(1) / np.float32(3)
    product = apply("mul", read("x", f32, "i"), const(3, f32))
    node = store("y", "i", apply("sub", product, const(1, f32)))
    arrays = {"y": np.zeros(16, "f"), "x": np.full(16, third)}
    rounded = np.float32(third * np.float32(3)) - np.float32(1)
    fused = np.float32(float(third) * 3 - 1)
    assert rounded != fused
    for precise, want in ((True, rounded), (False, fused if polyml.Target.host().fma else rounded)):
        for out in run_each(in_both_forms(node, 16), arrays, precise=precise):
            assert (out["y"] == want).all()


# -- reductions -------------------------------------------------------------------------------------------------------------------


def reducible(dtype: DType, size: int) -> np.ndarray:
    if dtype.is_float:
        return np.random.default_rng(size).integers(1, 4, size).astype(dtype.numpy)
    return np.random.default_rng(size).integers(0, 2 if dtype.kind == "b" else 120, size).astype(dtype.numpy)


@pytest.mark.parametrize(("reduction", "name"), TYPED_REDUCTIONS)
@pytest.mark.few(8)
def test_reductions_in_memory_and_through_registers(reduction: str, name: str) -> None:
    dtype, row = DTYPES[name], REDUCTIONS[reduction]
    identity = Const(row.identity(dtype), dtype)  # type: ignore[arg-type]
    value = read("x", dtype, "i")
    lanes = variable("acc", dtype, scope="register", lanes=16)
    functions = []
    for size in ("N", 17):
        in_memory = [store("y", [0], identity), vector("i", size, 16, store("y", [0], value, reduction=reduction))]
        scalar = [store("y", [0], identity), loop("i", 0, size, store("y", [0], value, reduction=reduction))]
        steps = (
            store("acc", [], identity),
            vector("i", size, 16, store("acc", [], value, reduction=reduction)),
            store("y", [0], identity),
            store("y", [0], read("acc", dtype), reduction=reduction, across=True),
        )
        variables = [variable("y", dtype, 1), variable("x", dtype, size)]
        for body in (in_memory, scalar, [Allocate(variable=lanes, body=steps)]):
            functions.append(function_of(body, {}, ["N"], variables=variables))
    calls = compile_functions(functions)
    for size in (1, 15, 16, 17, 50):
        x = reducible(dtype, size)
        with np.errstate(all="ignore"):
            want = row.meaning(x, dtype=dtype.numpy) if reduction in ("sum", "prod") else row.meaning(x)
        for call in calls if size == 17 else calls[:3]:
            assert call({"y": np.zeros(1, dtype.numpy), "x": x}, {"N": size})["y"][0] == want, size


def test_extrema_keep_nan() -> None:
    x = np.array([3, np.nan, 1, 7] * 8, "f")
    for reduction, start in (("max", -np.inf), ("min", np.inf)):
        node = store("y", [0], read("x", f32, "i"), reduction=reduction)
        bodies = [[store("y", [0], const(start, f32)), *body] for body in in_both_forms(node, 32)]
        for out in run_each(bodies, {"y": np.zeros(1, "f"), "x": x}):
            assert np.isnan(out["y"][0])


def argument_programs(kind: str, dtype: DType, size: int) -> list[list[Node]]:
    """Scalar, all lanes into one pair, and lane registers combined at the end."""
    index = IndexValue(affine("i"), i64)
    step = UpdateArgument(
        kind=kind, best=Place("b", (affine(0),)), argument=Place("y", (affine(0),)),
        candidate=read("x", dtype, "i"), candidate_index=index,
    )  # fmt: skip
    start = (store("b", [0], const(0, dtype)), store("y", [0], const(-1, i64)))
    lanes = (variable("lb", dtype, scope="register", lanes=8), variable("ly", i64, scope="register", lanes=8))
    in_lanes = UpdateArgument(
        kind=kind,
        best=Place("lb", ()),
        argument=Place("ly", ()),
        candidate=read("x", dtype, "i"),
        candidate_index=index,
    )
    joined = UpdateArgument(
        kind=kind, best=Place("b", (affine(0),)), argument=Place("y", (affine(0),)),
        candidate=read("lb", dtype), candidate_index=read("ly", i64), across=True,
    )  # fmt: skip
    steps = (
        *start,
        store("lb", [], const(0, dtype)),
        store("ly", [], const(-1, i64)),
        vector("i", size, 8, in_lanes),
        joined,
    )
    wrapped = Allocate(variable=lanes[0], body=(Allocate(variable=lanes[1], body=steps),))
    return [[*start, loop("i", 0, size, step)], [*start, vector("i", size, 8, step)], [wrapped]]


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("name", ["f32", "f64", "i8", "u16", "i64", "bool"])
@pytest.mark.few(5)
def test_arguments_of_extrema(kind: str, name: str) -> None:
    dtype = DTYPES[name]
    cases = [np.random.default_rng(s).integers(0, 2 if name == "bool" else 5, 29).astype(dtype.numpy) for s in range(3)]
    if dtype.is_float:
        with_nan = cases[0].copy()
        with_nan[[7, 21]] = np.nan
        cases += [
            with_nan,
            np.full(29, np.inf, dtype.numpy),
            np.full(29, -np.inf, dtype.numpy),
            np.full(29, np.nan, dtype.numpy),
        ]
    empty = {"y": np.zeros(1, "i8"), "b": np.zeros(1, dtype.numpy)}
    given = [{**empty, "x": x} for x in cases]
    calls = compile_functions(
        [function_of(body, given[0], written=("y", "b")) for body in argument_programs(kind, dtype, 29)]
    )
    for x, arrays in zip(cases, given, strict=True):
        for call in calls:
            out = call(arrays, {})
            assert out["y"][0] == REDUCTIONS[kind].meaning(x)
            np.testing.assert_array_equal(out["b"][0], x[out["y"][0]])


def test_bool_is_stored_as_zero_or_one() -> None:
    x = np.arange(20, dtype="f")
    node = store("y", "i", apply("gt", read("x", f32, "i"), const(7, f32), dtype=boolean))
    for out in run_each(in_both_forms(node, 20), {"y": np.zeros(20, bool), "x": x}):
        np.testing.assert_array_equal(out["y"].view("u1"), x > 7)


@pytest.mark.parametrize(("dtype", "temperature"), [("f32", 1e10), ("f64", 1e19)])
def test_a_softmax_of_products_is_a_number_at_any_temperature(dtype: str, temperature: float) -> None:
    """The maximum is that of rounded products: a difference fused with a product would be far above zero."""
    text = f"""
def hard(x: {dtype}["N M"], w: {dtype}["M"]):
    s[n, m] = x[n, m] * w[m]
    e[n, m] = exp(s[n, m] - max[j](s[n, j]))
    y[n, m] = e[n, m] / sum[j](e[n, j])
    return y
"""
    rng = np.random.default_rng(0)
    x, w = (
        (rng.standard_normal(shape) * scale).astype(DTYPES[dtype].numpy)
        for shape, scale in (((50, 64), temperature), (64, 1))
    )
    s = x * w
    np.testing.assert_array_equal(polyml.einsum(text)(x, w), s == s.max(1, keepdims=True))


def test_numbers_are_read_whatever_a_condition_says() -> None:
    """A choice with a number on one side takes no jump; with an element, which may not be there, it does."""
    text = """
def f(x: i64["N"], a: i64, b: i64["4"]):
    s: i64
    s = 1
    for n in range(N):
        s = where(s % 2 == 1, s // 2 + VALUE, s // 2) + x[n]
    return s
"""
    x, b = np.arange(9), np.arange(4)
    jumps = {}
    for value in ("a", "b[s % 4]"):
        program = polyml.einsum(text.replace("VALUE", value))
        s = 1
        for element in x.tolist():
            s = s // 2 + ((5 if value == "a" else int(b[s % 4])) if s % 2 else 0) + element
        assert program(x, 5, b) == s
        jumps[value] = "chosen" in program.lower(x, 5, b).text("llvm")
    assert jumps == {"a": False, "b[s % 4]": True}
