"""The interpreter's own typing: the dtype of every node of one statement, weak numbers included.

NumPy decides: promotions go through `numpy.result_type`, which treats Python numbers as weak (NEP 50).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import assert_never

import numpy as np

from polyml.dtypes import DTYPES, DType, bf16, boolean, c64, c128, f32, f64, from_numpy, i64, promote
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

__all__ = ["BINARY_OPS", "COMPARE_OPS", "Type", "promote_types", "type_expression"]

BINARY_OPS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow"}
COMPARE_OPS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_NO_BOOL = frozenset({"sub", "neg", "floordiv", "mod", "pow"})


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


def type_expression(expr: Expression, tensors: Mapping[str, Type], types: dict[int, Type]) -> Type:
    """The type of a resolved expression; `types` receives that of every node below, by identity.

    Raises:
        DTypeError: an operation that NumPy refuses for these types, or a sum of narrow integers.
    """
    for e in children(expr):
        type_expression(e, tensors, types)
    found = types[id(expr)] = _type(expr, tensors, types)
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
            return _apply("neg", expr, types[id(expr.operand)])
        case Binary():
            return _apply(BINARY_OPS[expr.op], expr, types[id(expr.left)], types[id(expr.right)])
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


def _call(expr: Call, types: Mapping[int, Type]) -> Type:
    args = [types[id(e)] for e in expr.args]
    if expr.function in DTYPES:
        if len(args) != 1:
            raise EinsumSyntaxError(f"{expr.function} takes one argument, not {len(args)}", span=expr.span)
        target = DTYPES[expr.function]
        if args[0].dtype.is_complex and not target.is_complex and target != boolean:
            raise DTypeError(f"{args[0].dtype} does not convert to {target}", span=expr.span)
        return Type(target)
    op = "select" if expr.function == "where" else expr.function
    if op == "conj":
        return args[0]
    if op not in OPS:
        raise EinsumSyntaxError(f"unknown function {expr.function}", span=expr.span)
    arity = OPS[op].arity
    if len(args) != arity and not (op in ("min", "max") and len(args) > 2):
        raise EinsumSyntaxError(f"{expr.function} takes {arity} arguments, not {len(args)}", span=expr.span)
    return promote_types(*args[1:]) if op == "select" else _apply(op, expr, *args)


def _apply(op: str, expr: Expression, *args: Type) -> Type:
    promoted = promote_types(*args)
    if op in _NO_BOOL and promoted.dtype == boolean and not promoted.weak:
        raise DTypeError(f"{op} is not defined on bool", span=expr.span, hint="cast first, or use and, or, not, !=")
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
