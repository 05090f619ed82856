"""The interpreter's own typing: the dtype of every node of one statement, weak numbers included.

NumPy decides: promotions go through `numpy.result_type`, which treats Python numbers as weak (NEP 50).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import assert_never

import numpy as np

from polyml.dtypes import DTYPES, DType, bf16, boolean, c64, c128, f32, f64, from_numpy, i32, i64, promote
from polyml.einsum_frontend.interpreter.names import children
from polyml.einsum_frontend.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Expression,
    IndexRef,
    LoopRef,
    Name,
    Number,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.errors import DTypeError, EinsumSyntaxError
from polyml.ops import OPS, result_dtype
from polyml.records import dataclass
from polyml.source import Span

__all__ = ["BINARY_OPS", "COMPARE_OPS", "Type", "check_number", "promote_types", "type_expression"]

BINARY_OPS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
    "&": "bitand", "|": "bitor", "^": "bitxor", "<<": "shl", ">>": "shr",
}  # fmt: skip
COMPARE_OPS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_OF_BITS = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
_NO_BOOL = frozenset({"sub", "neg", "floordiv", "mod", "pow", "shl", "shr"})


@dataclass(frozen=True)
class Type:
    """A dtype; a weak one (of numbers, sizes, index values) yields to any strong one of its kind or higher."""

    dtype: DType
    weak: bool = False


_WEAK_SAMPLES: dict[DType, int | float | bool | complex] = {boolean: True, i64: 1, f64: 1.0, c128: 1j}
_OF_COMPLEX = frozenset(
    "add sub mul div neg pow abs exp log log1p sqrt rsqrt sin cos tanh round real imag conj".split()
)
_PARTS = frozenset({"real", "imag", "abs"})


@functools.cache
def promote_types(*types: Type) -> Type:
    """NumPy's promotion; of weak types only: bool, i64, f64 or c128, weak.

    Raises:
        DTypeError: there is no common type.
    """
    weak = [t.dtype for t in types if t.weak]
    if len(weak) == len(types):
        return Type(max(weak, key=list(_WEAK_SAMPLES).index), weak=True)
    strong = promote(*(t.dtype for t in types if not t.weak))
    if strong == bf16:  # NumPy does not know that numbers are weak beside it
        return Type(c64 if c128 in weak else bf16)
    return Type(from_numpy(np.result_type(strong.numpy, *(_WEAK_SAMPLES[dtype] for dtype in weak))))


def type_expression(
    expr: Expression, tensors: Mapping[str, Type], types: dict[int, Type], *, in_subscript: bool = False
) -> Type:
    """The type of a resolved expression; `types` receives that of every node below, by identity.

    in_subscript: it is a part of a subscript, in which integers of 8 and 16 bits are promoted to i32, as in C.

    Raises:
        DTypeError: an operation that NumPy refuses for these types, or a sum of narrow integers.
    """
    for e in children(expr):
        type_expression(e, tensors, types, in_subscript=in_subscript or isinstance(expr, Subscript))
    found = _type(expr, tensors, types)
    if in_subscript and found.dtype.is_integer and found.dtype.bits < 32:
        found = Type(i32)
    types[id(expr)] = found
    return found


def _type(expr: Expression, tensors: Mapping[str, Type], types: Mapping[int, Type]) -> Type:
    match expr:
        case Number():
            weak = boolean if isinstance(expr.value, bool) else i64 if isinstance(expr.value, int) else f64
            return Type(weak, weak=True)
        case IndexRef() | LoopRef() | SizeRef():
            return Type(i64, weak=True)
        case Name():
            raise AssertionError(f"internal: unresolved name {expr.identifier}")
        case Subscript():
            for s in expr.subscripts:
                if not types[id(s)].dtype.is_integer:
                    raise DTypeError(f"a subscript of type {types[id(s)].dtype}; indices are integers", span=expr.span)
            return tensors[expr.tensor if isinstance(expr.tensor, str) else expr.tensor.tensor]
        case Unary(op="-"):
            return _apply("neg", expr, (expr.operand,), types)
        case Binary():
            return _apply(BINARY_OPS[expr.op], expr, (expr.left, expr.right), types)
        case Compare():
            ordered = any(op not in ("==", "!=") for op in expr.ops)
            if ordered and any(types[id(e)].dtype.is_complex for e in expr.operands):
                raise DTypeError("complex numbers have no order", span=expr.span)
            promote_types(*(types[id(e)] for e in expr.operands))
            return Type(boolean, weak=all(types[id(e)].weak for e in children(expr)))
        case Unary() | Boolean():
            return Type(boolean, weak=all(types[id(e)].weak for e in children(expr)))
        case Call():
            return _call(expr, types)
        case Reducer():
            return _reducer(expr, types[id(expr.body)])
        case _:
            assert_never(expr)


def check_number(expr: Expression, types: Mapping[int, Type], dtype: DType, span: Span) -> None:
    """Raises DTypeError where the expression is a number, known before anything runs, that an integer type cannot hold; other values wrap."""
    if not dtype.is_integer:
        return
    value = _number(expr, types)
    if value is None or (math.isfinite(value) and _RANGES[dtype][0] <= int(value) <= _RANGES[dtype][1]):
        return
    raise DTypeError(f"{value} does not fit in {dtype}", span=span, hint="convert the tensor, e.g. i64(..)")


_RANGES = {
    dtype: (0, (1 << dtype.bits) - 1) if dtype.kind == "u" else (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
    for dtype in DTYPES.values()
    if dtype.is_integer
}
"""The least and the greatest value of each integer type."""


def _number(expr: Expression, types: Mapping[int, Type]) -> int | float | None:
    """The value of an expression of numbers alone; None for others, and for truths and complex numbers."""
    match expr:
        case Number(value=int() | float() as value):
            return value
        case Unary(op="-"):
            return _number_of("neg", expr, (expr.operand,), types)
        case Binary():
            return _number_of(BINARY_OPS[expr.op], expr, (expr.left, expr.right), types)
        case Call() if expr.function in DTYPES:
            target, given = DTYPES[expr.function], _number(expr.args[0], types)
            if given is None or target == boolean or target.is_complex:
                return None
            return int(given) if target.is_integer else float(given)
        case Call() if expr.function in OPS:
            return _number_of(expr.function, expr, expr.args, types)
        case _:
            return None


def _number_of(
    op: str, expr: Expression, args: tuple[Expression, ...], types: Mapping[int, Type]
) -> int | float | None:
    result, values = types[id(expr)], [_number(arg, types) for arg in args]
    if any(value is None for value in values) or not result.weak or result.dtype.is_complex:
        return None
    in_result = op == "pow" or OPS[op].rule in ("float", "true_divide")
    dtype = result.dtype if in_result else promote_types(*(types[id(a)] for a in args)).dtype
    if op in ("floordiv", "mod") and not values[1]:
        return None
    with np.errstate(all="ignore"):
        found, *others = (dtype.numpy.type(value) for value in values)
        if not others:
            found = OPS[op].meaning(found)
        for other in others:
            found = OPS[op].meaning(found, other)
    value: int | float = np.asarray(found).astype(result.dtype.numpy).item()
    return value


def _call(expr: Call, types: Mapping[int, Type]) -> Type:
    args = [types[id(e)] for e in expr.args]
    if expr.function in DTYPES:
        if len(args) != 1:
            raise EinsumSyntaxError(f"{expr.function} takes one argument, not {len(args)}", span=expr.span)
        target = DTYPES[expr.function]
        if args[0].dtype.is_complex and not target.is_complex and target != boolean:
            raise DTypeError(f"{args[0].dtype} does not convert to {target}", span=expr.span)
        check_number(expr.args[0], types, target, expr.span)
        return Type(target)
    op = "select" if expr.function == "where" else expr.function
    if op == "conj":
        return args[0]
    if op not in OPS:
        raise EinsumSyntaxError(f"unknown function {expr.function}", span=expr.span)
    arity = OPS[op].arity
    if len(args) != arity and not (op in ("min", "max") and len(args) > 2):
        raise EinsumSyntaxError(f"{expr.function} takes {arity} arguments, not {len(args)}", span=expr.span)
    if op == "select":
        chosen = promote_types(*args[1:])
        for arg in expr.args[1:]:
            check_number(arg, types, chosen.dtype, expr.span)
        return chosen
    return _apply(op, expr, expr.args, types)


def _apply(op: str, expr: Expression, args: tuple[Expression, ...], types: Mapping[int, Type]) -> Type:
    promoted = promote_types(*(types[id(e)] for e in args))
    if op in _NO_BOOL and promoted.dtype == boolean and not promoted.weak:
        raise DTypeError(f"{op} is not defined on bool", span=expr.span, hint="cast first, or use and, or, not, !=")
    if op in _OF_BITS and not (promoted.dtype.is_integer or promoted.dtype == boolean):
        raise DTypeError(f"{op} is not defined on {promoted.dtype}", span=expr.span)
    if op == "popcount" and (promoted.weak or promoted.dtype.kind != "u"):
        raise DTypeError(f"{op} is not defined on {promoted.dtype}", span=expr.span, hint="cast first")
    dtype = i64 if op in _NO_BOOL and promoted.dtype == boolean else promoted.dtype
    if op == "complex":
        if dtype.is_complex:
            raise DTypeError(f"complex(..) of {dtype}", span=expr.span)
        return Type(c64 if dtype.part == f32 and not promoted.weak else c128, promoted.weak)
    if op in ("real", "imag") and not dtype.is_complex:
        return promoted
    if dtype.is_complex and op not in _OF_COMPLEX:
        raise DTypeError(f"{op} is not defined for {dtype}", span=expr.span)
    if dtype.is_complex and op in _PARTS:
        return Type(dtype.part, promoted.weak)
    if op == "pow" and dtype.is_integer and (_number(args[1], types) or 0) < 0:
        if promoted.weak:
            return Type(f64, weak=True)
        message = f"{dtype} to the power {_number(args[1], types)} has no integer value"
        raise DTypeError(message, span=expr.span, hint="cast to a float first")
    if OPS[op].rule not in ("float", "true_divide") and not promoted.weak:
        for arg in args:
            check_number(arg, types, dtype, expr.span)
    return Type(result_dtype(op, dtype), promoted.weak)


def _reducer(expr: Reducer, body: Type) -> Type:
    if body.dtype.is_complex and expr.kind not in ("sum", "prod"):
        raise DTypeError(f"{expr.kind} of {body.dtype} is not supported", span=expr.span)
    match expr.kind:
        case "sum" | "prod":
            if body.dtype == boolean:
                return Type(i64, body.weak)
            if body.dtype.is_integer and body.dtype.bits < 32:
                message = f"{expr.kind} of {body.dtype} would wrap"
                raise DTypeError(message, span=expr.span, hint="cast the summand, as in i32(x[n])")
            return body
        case "max" | "min":
            return body
        case "any" | "all":
            return Type(boolean, body.weak)
        case "argmax" | "argmin":
            return Type(i64)
