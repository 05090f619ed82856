"""Vector math: errors in ulp over samples of all exponents, special values, every lane count; benchmarks/math_accuracy.py is the exhaustive form."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np
import pytest

import polyml
from polyml.codegen.llvm.emit import emit_module
from polyml.codegen.llvm.ir import Builder, Instructions, Lines, Module, Value, type_of
from polyml.codegen.llvm.machine import assembly, machine_of
from polyml.codegen.llvm.math import MATH
from polyml.codegen.llvm.math.kit import Number, horner
from polyml.codegen.loops import Function
from polyml.dtypes import DType, f32, f64
from polyml.expressions import Apply
from polyml.target import Target
from tests.codegen.llvm.math_kernels import libm_kernel, math_kernel, ulps
from tests.codegen.llvm.support import const, read, store, variable, vector

Wide = np.longdouble
REFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "log1p": np.log1p,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: libm_kernel("erf")(x.astype("d")).astype(Wide),
}
LIMITS_SINGLE = {"log1p": 1.7, "exp": 1.05, "log": 0.9, "sin": 1.6, "cos": 1.6, "tanh": 2.6, "sigmoid": 2.6, "erf": 1.9}
LIMITS_DOUBLE = {"log1p": 1.7, "exp": 1.1, "log": 0.9, "sin": 0.9, "cos": 0.9, "tanh": 2.7, "sigmoid": 2.5, "erf": 2.6}
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1,
    -1,
    0.5,
    -0.5,
    88,
    89,
    -87.5,
    -103.9,
    -104,
    709,
    710,
    -745,
    -746,
    1e22,
    -1e22,
]


def samples(dtype: DType, count: int = 20_000) -> np.ndarray:
    """Any bits at all, then the usual ranges, small numbers, near multiples of pi/2, and special values."""
    generator = np.random.default_rng(7)
    any_bits = generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    parts = [
        any_bits,
        generator.normal(size=count),
        generator.uniform(-10, 10, count),
        generator.uniform(-750, 750, count),
        generator.uniform(-110, 110, count),
        np.exp(generator.uniform(-40, 12, count)),
        np.arange(1, count) * (np.pi / 2),
        np.array(SPECIAL),
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([part.astype(dtype.numpy) for part in parts])


def test_every_recipe_is_measured_here() -> None:
    assert MATH.keys() == REFERENCES.keys() | {"pow", "atan2", "gelu"}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("op", sorted(REFERENCES))
def test_errors(op: str, dtype: DType) -> None:
    x = samples(dtype)
    result = math_kernel(op, dtype, 64 // dtype.itemsize)(x)
    with np.errstate(all="ignore"):
        errors, wrong = ulps(result, REFERENCES[op](x.astype(Wide)))
    assert not wrong.any(), x[wrong][:5]
    limit = (LIMITS_SINGLE if dtype == f32 else LIMITS_DOUBLE)[op]
    assert errors.max() < limit, (x[errors.argmax()], result[errors.argmax()], errors.max())
    odd = op in ("sin", "tanh", "log1p", "erf")
    assert (
        np.signbit(result[x == 0]).tolist()
        == (np.signbit(x[x == 0]) if odd else np.full((x == 0).sum(), op == "log")).tolist()
    )


@pytest.mark.parametrize("op", sorted(MATH.keys() - {"pow", "atan2"}))
@pytest.mark.few(6)
def test_every_lane_count_gives_the_same(op: str) -> None:
    x = samples(f32, 500)
    want = math_kernel(op, f32, 16)(x)
    for lanes in (1, 4, 32):
        np.testing.assert_array_equal(math_kernel(op, f32, lanes)(x), want, err_msg=str(lanes))
    if (
        op not in ("exp", "gelu", "sigmoid") and Target("x86-64-v3").runs_here
    ):  # which look into tables where an instruction does
        np.testing.assert_array_equal(math_kernel(op, f32, 8, "x86-64-v3")(x), want, err_msg="AVX2")


def power_samples(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    special = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 16777217, 3e38])
    x, y = (m.ravel() for m in np.meshgrid(special, special))
    base = np.exp(generator.uniform(-80, 80, 20_000))
    exponent = generator.uniform(-90, 90, 20_000) / np.log(base)
    near_one = 1 + generator.uniform(-1e-3, 1e-3, 20_000)
    x = np.concatenate([x, base, near_one, -base]).astype(dtype.numpy)
    large = generator.uniform(-30_000, 30_000, 20_000)
    return x, np.concatenate([y, exponent, large, np.round(exponent)]).astype(dtype.numpy)


@pytest.mark.parametrize(("dtype", "limit"), [(f32, 0.6), (f64, 1.15)], ids=str)
def test_power(dtype: DType, limit: float) -> None:
    x, y = power_samples(dtype)
    result = math_kernel("pow", dtype, 16)(x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(Wide), y.astype(Wide))
        errors, wrong = ulps(result, exact)
    assert not wrong.any(), (x[wrong][:5], y[wrong][:5], result[wrong][:5])
    assert errors.max() < limit
    known = ~np.isnan(result)
    np.testing.assert_array_equal(np.signbit(result[known]), np.signbit(exact[known]))


@pytest.mark.parametrize(("dtype", "limit"), [(f32, 2.0), (f64, 2.0)], ids=str)
def test_angles(dtype: DType, limit: float) -> None:
    generator = np.random.default_rng(5)
    special = np.array([0.0, -0.0, 1, -1, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.41421356, 2.4142137])
    x, y = (m.ravel() for m in np.meshgrid(special, special))
    size = np.exp(generator.uniform(-85, 85, (2, 20_000))) * generator.choice([-1, 1], (2, 20_000))
    near = generator.normal(size=(2, 20_000))
    x, y = (np.concatenate(part).astype(dtype.numpy) for part in zip((x, y), size, near, strict=True))
    result = math_kernel("atan2", dtype, 16)(y, x)
    exact = np.arctan2(y.astype(Wide), x.astype(Wide))
    errors, wrong = ulps(result, exact)
    assert not wrong.any(), (y[wrong][:5], x[wrong][:5], result[wrong][:5])
    assert errors.max() < limit
    known = ~np.isnan(result)
    np.testing.assert_array_equal(np.signbit(result[known]), np.signbit(exact[known]))
    np.testing.assert_array_equal(math_kernel("atan2", dtype, 1)(y, x), result)


@pytest.mark.parametrize("machine", ["host", "x86-64-v3"])
@pytest.mark.parametrize(("dtype", "limit"), [(f32, 1.5e-7), (f64, 5e-16)], ids=["f32", "f64"])
def test_gelu_is_within_a_rounding_of_its_argument(dtype: DType, limit: float, machine: str) -> None:
    x = np.random.default_rng(1).uniform(-12, 12, 50_000).astype(dtype.numpy)
    wide = x.astype("d")
    exact = wide * 0.5 * libm_kernel("erfc")(wide * -np.sqrt(0.5))
    result = math_kernel("gelu", dtype, 32 // dtype.itemsize, machine)(x)
    assert (np.abs(result - exact) <= limit * np.abs(wide)).all()
    left = (wide < 0) & (wide > -7.9)  # two digits of what is left of negative numbers, and nothing far out
    assert (np.abs(result - exact)[left] <= 0.1 * np.abs(exact[left])).all()
    special = np.array([np.inf, -np.inf, np.nan, -20, 100, 0] * 8, dtype.numpy)
    result = math_kernel("gelu", dtype, 32 // dtype.itemsize, machine)(special)
    np.testing.assert_array_equal(result, np.array([np.inf, np.nan, np.nan, 0, 100, 0] * 8, dtype.numpy))
    far = np.linspace(-16, -11.1, 64).astype(dtype.numpy)  # whose powers of two would be subnormal
    assert (math_kernel("gelu", dtype, 32 // dtype.itemsize, machine)(far) == 0).all()


@pytest.mark.parametrize("machine", ["host", "x86-64-v2"])
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.few(1)
def test_exp_of_few_lanes_is_that_of_whole_vectors(dtype: DType, machine: str) -> None:
    x = samples(dtype, 500)
    want = math_kernel("exp", dtype, 64 // dtype.itemsize, machine)(x)
    for lanes in (1, 2, 3, 4, 6, 8, 24):
        np.testing.assert_array_equal(math_kernel("exp", dtype, lanes, machine)(x), want, err_msg=str(lanes))


@pytest.mark.parametrize("machine", ["aarch64", "x86-64-v3", "apple-m1", "riscv64"])
def test_math_is_emitted_for_other_machines(machine: str) -> None:
    nodes = [store("y", "i", Apply(op, (read("x", f32, "i"),), f32)) for op in sorted(MATH.keys() - {"pow", "atan2"})]
    arguments = (variable("y", f32, "N"), variable("x", f32, "N"))
    function = Function(
        name="kernel", arguments=arguments, written=frozenset("y"), sizes=("N",), body=(vector("i", "N", 4, *nodes),)
    )
    text = assembly(emit_module([function]), machine_of(Target(machine)))
    fused = {"aarch64": "fmla\tv", "apple-m1": "fmla.4s", "riscv64": "vfmadd"}.get(machine, "vfmadd")
    assert "kernel:" in text  # (an underscore before it on macOS)
    assert fused in text


def test_exp_is_one_straight_line_where_an_instruction_scales() -> None:
    arguments = (variable("y", f32, "N"), variable("x", f32, "N"))
    body = (vector("i", "N", 16, store("y", "i", Apply("exp", (read("x", f32, "i"),), f32))),)
    function = Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=("N",), body=body)
    target = Target("x86-64-v4")
    scaled, portable = (
        assembly(emit_module([function], Instructions(scalef=s)), machine_of(target)) for s in (target.scalef, False)
    )
    assert "vscalefps" in scaled
    assert "call" not in scaled
    assert "vscalefps" not in portable
    assert "call" in portable
    assert not Target("x86-64-v3").scalef
    assert not Target("aarch64").scalef


@pytest.mark.parametrize("assists", [True, False])
def test_exp_masks_what_underflows_where_that_takes_microcode(assists: bool) -> None:
    """The scaling itself, not what is computed of it."""
    exp = Apply("exp", (read("x", f32, "i"),), f32)
    body = (vector("i", "N", 16, store("y", "i", Apply("add", (exp, const(1.0, f32)), f32))),)
    arguments = (variable("y", f32, "N"), variable("x", f32, "N"))
    function = Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=("N",), body=body)
    module = emit_module([function], Instructions(scalef=True, assists=assists))
    lines = assembly(module, machine_of(Target("x86-64-v4"))).splitlines()
    assert {line.endswith("{z}") for line in lines if "vscalefps" in line} == {assists}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_exp_of_what_leaves_nothing(dtype: DType) -> None:
    """Around the smallest number and far below, masked or not; the largest, infinities and NaN."""
    near, far = ((-104, -87), (-900, -105)) if dtype == f32 else ((-746, -708), (-4000, -747))
    parts = [np.linspace(*near, 1001), np.linspace(*far, 1001), [np.nan, np.inf, -np.inf, 0.0, 88.5, 1000.0]]
    x = np.concatenate(parts).astype(dtype.numpy)
    text = f'def f(x: {dtype}["N"]):\n    y[n] = exp(x[n])\n    return y\n'
    results = [polyml.einsum(text, target=Target("host", assists=assists))(x) for assists in (True, False)]
    np.testing.assert_array_equal(*results)
    with np.errstate(all="ignore"):
        errors, wrong = ulps(results[0], np.exp(x.astype(Wide)))
    assert not wrong.any()
    assert errors.max() < (LIMITS_SINGLE if dtype == f32 else LIMITS_DOUBLE)["exp"]
    assert (results[0][1001:2002] == 0).all()


@pytest.mark.parametrize(("op", "fused", "table"), [("exp", 8, "vpermilps"), ("gelu", 15, "vpermps")])
def test_avx2_looks_up_parts_of_a_power_of_two(op: str, fused: int, table: str) -> None:
    """One permutation, of halves of a register where four powers do, and so many multiplications and multiply-adds a vector: with coefficients for half a power of two exp has 10, gelu 19.
    Large arguments of exp are looked for in the masks' signs."""
    arguments = (variable("y", f32, "N"), variable("x", f32, "N"))
    body = (vector("i", "N", 8, store("y", "i", Apply(op, (read("x", f32, "i"),), f32))),)
    function = Function(name="kernel", arguments=arguments, written=frozenset("y"), sizes=("N",), body=body)
    target = Target("x86-64-v3")
    code = assembly(emit_module([function], Instructions.of(target)), machine_of(target)).partition("\nkernel:")[2]
    loop = re.search(r"^(\.LBB\w+):\n(?:(?!\.LBB).*\n)*?\tvfmadd(?:.*\n)*?\t(?:jne|jl|jb)\t", code, re.MULTILINE)
    assert loop is not None
    assert re.findall(r"\t(vperm\w+)\t", loop[0]) == [table]
    assert len(re.findall(r"\tv(?:fn?m(?:add|sub)|mul)\w*ps\t", loop[0])) == fused
    assert len(re.findall(r"\tvcmp", loop[0])) == 1  # of the size: signs are chosen by as they are
    assert "vtestps" not in loop[0]
    assert ("vmovmskps" in loop[0]) == (op == "exp")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("op", ["exp", "sin", "log"])
def test_one_unusual_number_is_found_in_any_lane(op: str, dtype: DType, lanes: int) -> None:
    if not Target("x86-64-v3").runs_here:
        pytest.skip("no AVX2")
    kernel = math_kernel(op, dtype, lanes, "x86-64-v3")
    for place in (0, 5, 15):
        x = np.full(16, 0.5, dtype.numpy)
        for number in (np.nan, 90.0, -88.0, -1000.0, np.inf, -np.inf):
            x[place] = number
            with np.errstate(all="ignore"):
                want = REFERENCES[op](x.astype(np.float64))
                np.testing.assert_allclose(kernel(x), want.astype(dtype.numpy), rtol=1e-5)


@pytest.mark.parametrize(("count", "steps"), [(2, 1), (7, 6), (8, 5), (15, 9), (16, 7), (23, 9)])
def test_polynomials_of_many_coefficients_have_few_steps_in_turn(count: int, steps: int) -> None:
    """The value, and the longest way through the instructions."""
    lines: Lines = []
    builder = Builder(Module(), lines)
    x = Number(builder, Value(type_of("double"), "%x"))
    result = horner([1.0 / (k + 1) for k in range(count)], x)
    found: dict[str, tuple[int, float]] = {"%x": (0, 0.75)}
    for line in lines:
        assert isinstance(line, str)
        name, _, rest = line.strip().partition(" = ")
        operands = (
            re.findall(r"double (\S+?)[,)]", rest + ",") if "fma" in rest else rest.split("double ")[1].split(", ")
        )
        values = [found.get(o) or (0, struct.unpack(">d", bytes.fromhex(o[2:]))[0]) for o in operands]
        (a, b, *c) = (value for _, value in values)
        found[name] = (1 + max(depth for depth, _ in values), a * b + (c[0] if c else 0.0))
    depth, value = found[result.value.text]
    assert depth == steps
    assert value == pytest.approx(sum(0.75**k / (k + 1) for k in range(count)), rel=1e-14)


@pytest.mark.parametrize(("dtype", "lanes"), [(f32, 8), (f32, 16), (f64, 4), (f64, 8)])
def test_constants_that_no_register_holds_are_operands_in_memory(dtype: DType, lanes: int) -> None:
    function = Function(
        name="kernel",
        arguments=(variable("y", dtype, "N"), variable("a", dtype, "N")),
        written=frozenset("y"),
        sizes=("N",),
        body=(vector("i", "N", lanes, store("y", "i", Apply("gelu", (read("a", dtype, "i"),), dtype))),),
    )
    target = Target("x86-64-v3")
    text = emit_module([function], Instructions.of(target))
    code = assembly(text, machine_of(target)).partition("kernel:")[2].partition(".Lfunc_end0")[0]
    assert len(re.findall(r"\tvbroadcasts[sd]\t\S+\(%rip\)", code)) <= 3
    # An operand of each instruction that needs it, or loaded for two registers' worth of them.
    assert len(re.findall(r"\tv(?:fmadd|mul|add|movap)\w+\tpolyml\.number\S+\(%rip\)", code)) >= 8
    wide = emit_module([function], Instructions.of(Target("x86-64-v4")))
    assert "@polyml.number" in text
    assert "@polyml.number" not in wide
