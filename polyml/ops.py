"""The scalar functions: one row each with arity, dtype rule and NumPy meaning.

Arguments of an op have one common dtype by the time it is applied (the typer inserts casts); each emitter keeps its own table over these names,
and a test holds that every table is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from polyml.dtypes import DType, bf16, boolean, c64, c128, f32, f64, i64
from polyml.records import dataclass

__all__ = ["BITWISE", "FUNCTIONS", "OPS", "REDUCTIONS", "Op", "Reduction", "Rule", "result_dtype"]

Rule = Literal["same", "float", "true_divide", "comparison", "logical", "select", "cast", "part", "pair"]
"""How the result's dtype follows from the promoted dtype of the arguments:

same: that dtype; float: the float that computes it (integers: f64 from 32 bits up, else f32); true_divide: a float dtype, else f64;
comparison, logical: bool; select: that of the two values (the condition does not count); cast: given, u32 of a pair of bf16, f32 of a product of pairs;
part: the float of the parts of a complex type; pair: the complex type of two parts.
"""


@dataclass(frozen=True, slots=True)
class Op:
    """A scalar function. `meaning` takes and returns NumPy arrays or scalars of the common dtype."""

    name: str
    arity: int
    rule: Rule
    meaning: Callable[..., Any]


def _floordiv(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.floor_divide(x, y)


def _mod(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.remainder(x, y)


def _whole(rounded: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Integers are whole already; NumPy 2.0 makes f64 of them."""
    return lambda x: rounded(x) if np.asarray(x).dtype.kind == "f" else x


def _popcount(x: Any) -> Any:
    return np.bitwise_count(x).astype(np.asarray(x).dtype)


def _erf(x: Any) -> Any:
    import math  # scalar erf of the C library: NumPy has none

    flat = np.asarray(x, dtype=np.float64)
    result = np.vectorize(math.erf, otypes=[np.float64])(flat) if flat.size else flat
    return result.astype(np.asarray(x).dtype) if np.asarray(x).dtype.kind == "f" else result


def _sigmoid(x: Any) -> Any:
    with np.errstate(all="ignore"):
        z = np.exp(-np.abs(x))
        one = np.ones((), dtype=np.asarray(z).dtype)[()]
        return np.where(x < 0, z, one) / (one + z)


def _gelu(x: Any) -> Any:
    half = np.asarray(0.5, dtype=np.asarray(x).dtype)
    root = np.asarray(0.7071067811865476, dtype=np.asarray(x).dtype)
    return half * x * (1 + _erf(x * root))


def _pair(x: Any, y: Any) -> Any:
    parts = np.broadcast_arrays(x, y)
    result = np.empty(parts[0].shape, np.result_type(parts[0].dtype, np.complex64))
    result.real, result.imag = parts
    return result[()]


def _pair_bf16(x: Any, y: Any) -> Any:
    first, second = (np.asarray(v).astype(bf16.numpy).view(np.uint16).astype(np.uint32) for v in (x, y))
    return (first | second << 16)[()]


def _dot_bf16(x: Any, y: Any) -> Any:
    (a, b), (c, d) = (
        tuple(part.astype(np.uint32).view(np.float32) for part in (bits << 16, bits & 0xFFFF0000))
        for bits in (np.asarray(x), np.asarray(y))
    )
    with np.errstate(all="ignore"):
        return (a * c + b * d)[()]


def _pair_i16(x: Any, y: Any) -> Any:
    first, second = (np.asarray(v, np.int16).view(np.uint16).astype(np.uint32) for v in (x, y))
    return (first | second << 16)[()]


def _dot_i16(x: Any, y: Any) -> Any:
    (a, b), (c, d) = (
        tuple(part.astype(np.uint16).view(np.int16).astype(np.int32) for part in (bits & 0xFFFF, bits >> 16))
        for bits in (np.asarray(x), np.asarray(y))
    )
    with np.errstate(all="ignore"):
        return (a * c + b * d)[()]


def _quad_i8(*values: Any) -> Any:
    parts = [np.asarray(v) for v in values]
    bits = [part.astype(np.int64).astype(np.uint8).astype(np.uint32) << (8 * k) for k, part in enumerate(parts)]
    return (bits[0] | bits[1] | bits[2] | bits[3])[()]


def _dot_i8(x: Any, y: Any) -> Any:
    unsigned = [(np.asarray(x) >> (8 * k)).astype(np.uint8).astype(np.int32) for k in range(4)]
    signed = [(np.asarray(y) >> (8 * k)).astype(np.uint8).view(np.int8).astype(np.int32) for k in range(4)]
    return sum(a * b for a, b in zip(unsigned, signed, strict=True))


_ROWS = (
    Op("add", 2, "same", np.add),
    Op("sub", 2, "same", np.subtract),
    Op("mul", 2, "same", np.multiply),
    Op("div", 2, "true_divide", np.true_divide),
    Op("floordiv", 2, "same", _floordiv),  # integers: x // 0 is 0, as in NumPy
    Op("mod", 2, "same", _mod),
    Op("pow", 2, "same", np.power),
    Op("bitand", 2, "same", np.bitwise_and),
    Op("bitor", 2, "same", np.bitwise_or),
    Op("bitxor", 2, "same", np.bitwise_xor),
    Op("shl", 2, "same", np.left_shift),  # by the width or more (a negative number counts as more): 0
    Op("shr", 2, "same", np.right_shift),  # by the width or more: 0, of negative numbers -1
    Op("popcount", 1, "same", _popcount),  # of unsigned integers
    Op("neg", 1, "same", np.negative),
    Op("abs", 1, "same", np.abs),
    Op("min", 2, "same", np.minimum),  # NaN wins
    Op("max", 2, "same", np.maximum),
    Op("eq", 2, "comparison", np.equal),
    Op("ne", 2, "comparison", np.not_equal),
    Op("lt", 2, "comparison", np.less),
    Op("le", 2, "comparison", np.less_equal),
    Op("gt", 2, "comparison", np.greater),
    Op("ge", 2, "comparison", np.greater_equal),
    Op("and", 2, "logical", np.logical_and),
    Op("or", 2, "logical", np.logical_or),
    Op("not", 1, "logical", np.logical_not),
    Op("select", 3, "select", np.where),  # condition, value if true, value if false; only the chosen one's reads happen
    Op("cast", 1, "cast", lambda x: x),
    Op("real", 1, "part", np.real),
    Op("imag", 1, "part", np.imag),
    Op("complex", 2, "pair", _pair),
    Op("pair_bf16", 2, "cast", _pair_bf16),  # two bf16 as 32 bits, the first one low
    Op("dot_bf16", 2, "cast", _dot_bf16),  # x0*y0 + x1*y1 of two pairs
    Op("pair_i16", 2, "cast", _pair_i16),  # two i16 as 32 bits, the first one low
    Op("dot_i16", 2, "cast", _dot_i16),  # x0*y0 + x1*y1 of two pairs, modulo 2**32
    Op("quad_i8", 4, "cast", _quad_i8),  # four numbers of 8 bits as 32 bits, the first one low
    Op("dot_i8", 2, "cast", _dot_i8),  # the sum of the four products of u8 (first) and i8
    Op("exp", 1, "float", np.exp),
    Op("log", 1, "float", np.log),
    Op("sqrt", 1, "float", np.sqrt),
    Op("rsqrt", 1, "float", lambda x: 1 / np.sqrt(x)),
    Op("sin", 1, "float", np.sin),
    Op("cos", 1, "float", np.cos),
    Op("tanh", 1, "float", np.tanh),
    Op("atan2", 2, "float", np.arctan2),
    Op("log1p", 1, "float", np.log1p),
    Op("copysign", 2, "float", np.copysign),
    Op("sigmoid", 1, "float", _sigmoid),
    Op("erf", 1, "float", _erf),
    Op("relu", 1, "same", lambda x: np.maximum(x, np.zeros((), dtype=np.asarray(x).dtype))),
    Op("gelu", 1, "float", _gelu),  # x/2 * (1 + erf(x / sqrt 2))
    Op("floor", 1, "same", _whole(np.floor)),
    Op("ceil", 1, "same", _whole(np.ceil)),
    Op("round", 1, "same", np.round),  # half to even
)
OPS: dict[str, Op] = {row.name: row for row in _ROWS}

BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
"""Of integers; the first three of bool, too."""

FUNCTIONS: frozenset[str] = frozenset(
    "where min max abs exp log log1p sqrt rsqrt sin cos tanh atan2 copysign sigmoid relu gelu erf floor ceil round popcount real imag conj complex".split()
)
"""The function names of the surface language (`where` is the op `select`; `conj` is spelled out in parts; dtypes as functions are casts)."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reducer. `combine` is the op that joins two partial results (None: argmax and argmin, which join pairs)."""

    name: str
    combine: str | None
    meaning: Callable[..., Any]

    def identity(self, dtype: DType) -> int | float | bool | None:
        """The value that changes nothing; None for argmax and argmin."""
        low, high = _extremes(dtype)
        table: dict[str, int | float | bool] = {"sum": 0, "prod": 1, "any": False, "all": True, "max": low, "min": high}
        return table.get(self.name)


REDUCTIONS: dict[str, Reduction] = {
    row.name: row
    for row in (
        Reduction("sum", "add", np.sum),
        Reduction("prod", "mul", np.prod),
        Reduction("max", "max", np.max),
        Reduction("min", "min", np.min),
        Reduction("any", "or", np.any),
        Reduction("all", "and", np.all),
        Reduction("argmax", None, np.argmax),
        Reduction("argmin", None, np.argmin),
    )
}


def result_dtype(op: str, promoted: DType) -> DType:
    """The dtype of `op` applied to arguments of the common dtype `promoted` (for select: of its two values)."""
    inexact = promoted.is_float or promoted.is_complex
    match OPS[op].rule:
        case "same" | "select":
            return promoted
        case "float":
            return promoted if inexact else (f64 if promoted.bits >= 32 else f32)
        case "true_divide":
            return promoted if inexact else f64
        case "part":
            return promoted.part
        case "pair":
            return c64 if promoted == f32 else c128
        case "comparison" | "logical":
            return boolean
        case "cast":
            raise AssertionError("internal: a cast carries its own dtype")


def _extremes(dtype: DType) -> tuple[int | float | bool, int | float | bool]:
    if dtype.is_float or dtype.is_complex:
        return float("-inf"), float("inf")
    if dtype.kind == "b":
        return False, True
    info = np.iinfo(f"{dtype.kind}{dtype.itemsize}")
    return int(info.min), int(info.max)


INDEX_DTYPE = i64
"""The dtype of index values, sizes and argmax results."""
