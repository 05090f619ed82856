"""Subscripts that read tensors: proved by the interval of their value, else checked.

Where only arguments are read, a bool Equation over all instances and its Check stand before all other ops, so that nothing is written when an
index is out of range. Else the subscript is clamped, and a flag is carried to a Check at the end of the program. So it is where floats are computed on the way
to the subscript: two computations need not round alike (one has a fused product, the other none), and what the check saw is not sure to be what is used. Where such a subscript goes one way along an index, its ends are checked (ends.py).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce

import islpy as isl

from polyml.dtypes import DType, boolean, i64, u32
from polyml.einsum_frontend.proofs import Scope, parameters
from polyml.einsum_frontend.ranges import Range, interval
from polyml.einsum_frontend.typing import Typed, cast
from polyml.errors import BoundsError, DTypeError
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, apart, walk
from polyml.graph.builder.ends import at_ends
from polyml.graph.builder.parts import Path, fill, image, index_value, variables_of
from polyml.graph.builder.state import Flag, State
from polyml.graph.ir import Check, Equation, Tensor
from polyml.sets.affine import Affine, Extent, affine
from polyml.source import Span

__all__ = ["checked_index", "value_interval"]

_OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}

Interval = tuple[int | None, int | None]


def checked_index(
    state: State, index: Typed, extent: Extent, path: Path, *, access: str, position: int, span: Span
) -> Expr:
    """The subscript as it may be evaluated without leaving the dimension of `extent`; its check is emitted.

    Raises:
        DTypeError: it is no integer. BoundsError: the dimension is empty.
    """
    if not index.dtype.is_integer:
        message = f"subscript {position} of {access} has dtype {index.dtype}, and only integers can be subscripts"
        hint = "how many elements a mask keeps is data: write where(mask, .., ..)" if index.dtype == boolean else None
        raise DTypeError(message, span=span, hint=hint or "convert it: i64(..)")
    if extent == 0:
        if path.scope.points().is_empty():
            return Const(0, i64)
        raise BoundsError(f"dimension {position} of {access} is empty, so no subscript is in bounds", span=span)
    if isinstance(extent, Affine) and not extent.variables() <= state.extents:
        state.assume([extent - 1])  # there is an element to clamp to
        wraps, above = _is_remainder(index.expr, extent), not _is_below(index.expr, extent, path.scope.known)
    else:
        wraps, above = False, isinstance(extent, Affine)
    low, high = value_interval(index.expr, path.scope.known, state.value_ranges)
    below = not wraps and (low is None or low < 0)
    above = above or (isinstance(extent, int) and (high is None or high >= extent))
    if not (below or above):
        return index.expr
    wide = _wide(index.expr, path.scope.known, state.value_ranges)
    moved, (least, most) = _at_ends(wide, path)
    beyond = Const(extent - most, i64) if isinstance(extent, int) else index_value(affine(extent) - most).expr
    alone = not path.data and not path.scope.conditions
    forms = at_ends(moved, {r.name: r for r in path.scope.indices}) if alone else (moved,)
    sides = [_compare("lt", form, Const(-least, i64)) for form in forms] if below else []
    sides += [_compare("ge", form, beyond) for form in forms] if above else []
    outside = reduce(lambda a, b: Apply("or", (a, b), boolean), sides)
    message = f"an index into dimension {position} of {access} (extent {extent}) is out of range"
    parts = [n for e in (wide, *path.data) for n in walk(e)]
    if all(n.tensor in state.inputs for n in parts if isinstance(n, Read)) and not any(map(_rounds, parts)):
        _check_ahead(state, index.expr, outside, extent, path, message, span)
        return index.expr
    _check_late(state, outside, path, message, span)
    return _clamped(wide, extent, below=below, above=above)


def _is_remainder(index: Expr, extent: Affine) -> bool:
    """Whether it is one by the extent, which is positive."""
    match index:
        case Apply(op="mod", args=(_, IndexValue(affine=divisor))):
            return index.dtype.bits == i64.bits and divisor == extent
        case _:
            return False


def _is_below(index: Expr, extent: Affine, known: Mapping[str, Range]) -> bool:
    """Whether the subscript is less than an extent that is no number, and positive."""
    match index:
        case IndexValue() | Const():
            value = index.affine if isinstance(index, IndexValue) else Affine((), int(index.value))
            least = interval(extent - value - 1, known)[0]
            return (least is not None and least >= 0) or (value.is_constant and value.constant <= 0)
        case Apply(op="cast", args=(inner,)) if inner.dtype.is_integer and _is_wider(index.dtype, inner.dtype):
            return _is_below(inner, extent, known)
        case Apply(op="min" | "max" as op, args=args):
            return (any if op == "min" else all)(_is_below(arg, extent, known) for arg in args)
        case _:
            return _is_remainder(index, extent)


def _wide(index: Expr, known: Mapping[str, Range], tensors: Mapping[str, tuple[int, int]]) -> Expr:
    """The subscript in 64 bits; so are the sums in it that cannot wrap, for what indices say of them."""
    if None in value_interval(index, known, tensors):
        return cast(index, i64)
    match index:
        case Apply(op="add" | "sub" as op, args=(first, second)):
            return Apply(op, (_wide(first, known, tensors), _wide(second, known, tensors)), i64)
        case Apply(op="cast", args=(inner,)):
            return _wide(inner, known, tensors)
        case _:
            return cast(index, i64)


def _at_ends(index: Expr, path: Path) -> tuple[Expr, tuple[int, int]]:
    """What tensors say of the subscript, and the least and the greatest of what is added to that by indices which have the same values for all of it: `t + d[c]` is out of range where it is for the first or for the last t. Else the subscript as it is, and nothing."""
    known, rest = apart(index)
    ranges = {r.name: r for r in path.scope.indices}
    names = [atom for atom, _ in known.terms if isinstance(atom, str) and atom in ranges]
    if rest is None or path.data or path.scope.conditions or len(names) < len(known.terms):
        return index, (0, 0)
    if not variables_of(rest).isdisjoint(names) or any(ranges[n].may_be_empty for n in names):
        return index, (0, 0)
    low, high = interval(known, ranges)
    return (index, (0, 0)) if low is None or high is None or low > high else (rest, (low, high))


def _clamped(index: Expr, extent: Extent, *, below: bool, above: bool) -> Expr:
    """The subscript of 64 bits where it is in bounds, and any that is where it is not: by its lower 32 bits, negative numbers being large ones, where these are enough for the dimension. A vector has twice as many of them, and AVX2 no minimum of 64 bits."""
    if isinstance(extent, int) and extent <= 1 << 32:
        return Apply("min", (Apply("cast", (index,), u32), Const(extent - 1, u32)), u32)
    capped = Apply("min", (index, index_value(affine(extent) - 1).expr), i64) if above else index
    return Apply("max", (capped, Const(0, i64)), i64) if below else capped


def _check_ahead(
    state: State, index: Expr, outside: Expr, extent: Extent, path: Path, message: str, span: Span
) -> None:
    """A bool Equation over all instances (of enclosing loops too), and its Check, before all other ops."""
    sizes = tuple(r for r in path.scope.outer if r.name in state.sizes)
    loops = tuple(r for r in path.scope.outer if r.name not in state.sizes)
    flat = Scope(sizes, (*loops, *path.scope.indices), path.scope.conditions)
    flag = state.tensor("out_of_range", boolean, (), message)
    state.ahead.append(_any(flag, outside, flat, path.data, None, span))
    indices = None if path.data else _all_elements(state, index, flat)
    known = None if indices is None else affine(extent)
    state.ahead.append(Check(flag=flag, error="IndexError", message=message, span=span, indices=indices, extent=known))


def _rounds(part: Expr) -> bool:
    return isinstance(part, Apply) and (part.dtype.is_float or part.dtype.is_complex)


def _all_elements(state: State, index: Expr, scope: Scope) -> str | None:
    """The input of which it is an element, if it is each of them somewhere in the scope."""
    if not isinstance(index, Read):
        return None
    for variable in state.env.values():
        if variable.tensor is not None and variable.tensor.name == index.tensor:
            elements = [f"e{d}'" for d in range(len(variable.shape))]
            inside = [f"0 <= {e} < {affine(n).isl_text()}" for e, n in zip(elements, variable.shape, strict=True)]
            box = isl.Set(f"{parameters(scope.outer)}{{ [{', '.join(elements)}] : {' and '.join(['true', *inside])} }}")
            looked_up = image(index.subscripts, variable, scope)
            return index.tensor if box.intersect_params(looked_up.params()).is_subset(looked_up) else None
    return None


def _check_late(state: State, outside: Expr, path: Path, message: str, span: Span) -> None:
    """A bool Equation here, carried out of all enclosing loops."""
    if len(state.frames) == 1:
        result = state.tensor("out_of_range", boolean, (), message)
        state.emit(_any(result, outside, path.scope, path.data, None, span))
        state.flags.append(Flag([result], message, span))
        return
    flag = Flag([state.tensor("out_of_range", boolean, (), message)], message, span)
    state.frames[0].ops.append(fill(flag.tensors[0], Const(False, boolean), span))
    for frame in state.frames[1:]:
        inner = state.tensor("out_of_range", boolean, (), message)
        frame.flags[len(state.flags)] = (flag.tensors[-1], inner)
        flag.tensors.append(inner)
    result = state.tensor("out_of_range", boolean, (), message)
    state.emit(_any(result, outside, path.scope, path.data, flag.tensors[-1], span))
    flag.tensors[-1] = result
    state.flags.append(flag)


def _any(flag: Tensor, outside: Expr, scope: Scope, data: Sequence[Expr], base: Tensor | None, span: Span) -> Equation:
    """`flag = base or any over the scope of outside`, where the conditions on data hold."""
    body = outside
    for condition in reversed(data):
        body = Apply("select", (condition, body, Const(False, boolean)), boolean)
    used = variables_of(body)
    names = tuple(r.name for r in scope.indices if r.name in used)
    return Equation(
        result=flag,
        indices=names,
        domain=scope.domain(flag.name, names),
        target=(),
        body=body,
        reduce="any",
        reduced=names,
        accumulate=base is not None,
        base=base,
        span=span,
    )


def _compare(op: str, value: Expr, bound: Expr) -> Expr:
    return Apply(op, (value, cast(bound, i64)), boolean)


def value_interval(expr: Expr, known: Mapping[str, Range], tensors: Mapping[str, tuple[int, int]]) -> Interval:
    """The least and greatest value of an integer expression; None where nothing bounds it. Arithmetic in it may wrap, so only what cannot, with all that its operands can be, is followed."""
    match expr:
        case Const():
            return int(expr.value), int(expr.value)
        case IndexValue():
            return interval(expr.affine, known)
        case Read() if expr.tensor in tensors:
            return tensors[expr.tensor]
        case Read() if expr.dtype.is_integer and expr.dtype.bits <= 16:
            bits = expr.dtype.bits
            return (0, (1 << bits) - 1) if expr.dtype.kind == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        case Apply(op="cast", args=(inner,)) if expr.dtype.is_integer and inner.dtype.is_integer:
            low, high = value_interval(inner, known, tensors)
            return (low, high) if _holds(expr.dtype, low, high) or _is_wider(expr.dtype, inner.dtype) else (None, None)
        case Apply(op="mod", args=(_, Const(value=divisor))) if divisor > 0:
            return 0, int(divisor) - 1
        case Apply(op="bitand", args=(_, Const(value=mask))) if mask >= 0:
            return 0, int(mask)
        case Apply(op="shr", args=(first, Const(value=places))) if 0 <= places < expr.dtype.bits:
            low, high = value_interval(first, known, tensors)
            return (None if low is None else low >> int(places)), (None if high is None else high >> int(places))
        case Apply(op="add" | "sub" | "mul" as op, args=(first, second)) if expr.dtype.is_integer:
            return _arithmetic(
                op, value_interval(first, known, tensors), value_interval(second, known, tensors), expr.dtype
            )
        case Apply(op="min" | "max" as op, args=(first, second)):
            (a, b), (c, d) = value_interval(first, known, tensors), value_interval(second, known, tensors)
            return _extreme(op, a, c, low=True), _extreme(op, b, d, low=False)
        case _:
            return None, None


def _arithmetic(op: str, first: Interval, second: Interval, dtype: DType) -> Interval:
    """Of x + y, x - y or x * y: the extremes are reached at the ends. Unknown where one of them is, or where the type cannot hold all results."""
    (a, b), (c, d) = first, second
    if a is None or b is None or c is None or d is None:
        return None, None
    ends = [_OPERATIONS[op](x, y) for x in (a, b) for y in (c, d)]
    low, high = min(ends), max(ends)
    return (low, high) if _holds(dtype, low, high) else (None, None)


def _holds(dtype: DType, low: int | None, high: int | None) -> bool:
    """The type has all numbers from the least to the greatest."""
    least = 0 if dtype.kind == "u" else -(1 << dtype.bits - 1)
    return low is not None and high is not None and least <= low and high < least + (1 << dtype.bits)


def _is_wider(dtype: DType, other: DType) -> bool:
    """The integer type has all numbers of the other one."""
    return dtype.bits >= other.bits if dtype.kind == other.kind else dtype.kind == "i" and dtype.bits > other.bits


def _extreme(op: str, first: int | None, second: int | None, *, low: bool) -> int | None:
    """A bound of min(x, y) or max(x, y) from those of x and y."""
    given = [value for value in (first, second) if value is not None]
    if len(given) < 2 and (op == "min") == low:
        return None
    return (min if op == "min" else max)(given) if given else None
