"""All instances of an assignment at once: the evaluator of `values.py`, with an array of all instances in place of the number of one.

Each element goes through the same operations in the same order, the terms of a reduction one after the other: only Python's work per instance is shared. What may raise for some instance, or has to be
looked at one by one (products of complex numbers, argmax, an element that is written twice), is left to `values.py`: `Leave`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DTYPES
from polyml.einsum_frontend.interpreter.affine import affine_value, condition_value, has_reads
from polyml.einsum_frontend.interpreter.types import BINARY_OPS, COMPARE_OPS, Type, promote_types
from polyml.einsum_frontend.interpreter.values import Array, Evaluator, convert, storage
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
    Pad,
    Reducer,
    SizeRef,
    Subscript,
    Unary,
)
from polyml.errors import NotAffineError
from polyml.ops import OPS, REDUCTIONS

__all__ = ["FEW", "Leave", "grid", "positions", "values"]

FEW = 12
"""Instances that are not worth it."""
_FAR = 2**20
"""Numbers in subscripts from here on might wrap around in arrays."""

Places = Mapping[str, Any]
"""Sizes and loop variables as ints; indices as arrays of int64 with one value per instance."""
Active = npt.NDArray[np.bool_] | bool
"""The instances that evaluate an expression."""


class Leave(Exception):  # no error: an answer
    """These instances are to be evaluated one by one."""


def grid(indices: Sequence[str], ranges: Mapping[str, range]) -> dict[str, npt.NDArray[np.int64]]:
    """The values of the indices at all instances, in order, each of shape [instances]."""
    axes = [np.arange(ranges[i].start, ranges[i].stop, ranges[i].step, dtype=np.int64) for i in indices]
    return {i: axis.ravel() for i, axis in zip(indices, np.meshgrid(*axes, indexing="ij"), strict=True)}


def positions(subscripts: Sequence[Expression], env: Places, shape: Sequence[int] | None) -> tuple[Array, ...]:
    """Affine subscripts at all instances, each an array or a number; in bounds of `shape`.

    Raises:
        Leave: some is not.
    """
    found = tuple(_affine(s, env) for s in subscripts)
    if shape is not None and not all(_is_inside(at, extent, True) for at, extent in zip(found, shape, strict=True)):
        raise Leave
    return found


def values(evaluator: Evaluator, expr: Expression, env: Places) -> Array:
    """The values at all instances, broadcast against the arrays in `env`.

    Raises:
        Leave: not to be had at once.
    """
    try:
        return np.asarray(_Values(evaluator).value(expr, env, True))
    except (ValueError, NotAffineError, OverflowError) as fault:
        raise Leave from fault


def _affine(expr: Expression, env: Places) -> Any:
    if isinstance(expr, Number) and abs(expr.value) >= _FAR:
        raise Leave
    match expr:
        case Unary(op="-"):
            return -_affine(expr.operand, env)
        case Binary(op="+"):
            return _affine(expr.left, env) + _affine(expr.right, env)
        case Binary(op="-"):
            return _affine(expr.left, env) - _affine(expr.right, env)
        case Binary(op="*"):
            return _affine(expr.left, env) * _affine(expr.right, env)
        case Binary(op="//" | "%") if isinstance(expr.right, Number | SizeRef):
            divisor = _affine(expr.right, env)
            if divisor <= 0:
                raise Leave
            return _affine(expr.left, env) // divisor if expr.op == "//" else _affine(expr.left, env) % divisor
        case IndexRef() | LoopRef() | SizeRef():
            return env[expr.name]
        case Number():
            return affine_value(expr, {})
        case _:
            raise Leave


def _is_inside(at: Any, extent: int, active: Active) -> bool:
    return bool(np.all(((at >= 0) & (at < extent)) | np.logical_not(active)))


class _Values:
    """One evaluation; its methods are those of Evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.scalar = evaluator
        self.types, self.wide = evaluator.types, evaluator.wide

    def value(self, expr: Expression, env: Places, active: Active) -> Any:
        match expr:
            case Number():
                return self._cast(expr.value, self.types[id(expr)], self.types[id(expr)])
            case IndexRef() | LoopRef() | SizeRef():
                return np.int64(env[expr.name])
            case Subscript():
                return self._read(expr, env, active)
            case Unary(op="-"):
                return self._apply("neg", expr, (expr.operand,), env, active)
            case Unary():
                return np.logical_not(self.value(expr.operand, env, active))
            case Binary():
                return self._apply(BINARY_OPS[expr.op], expr, (expr.left, expr.right), env, active)
            case Compare():
                return self._compare(expr, env, active)
            case Boolean():
                truths = [np.not_equal(self.value(e, env, active), 0) for e in expr.operands]
                return (np.logical_and if expr.op == "and" else np.logical_or).reduce(np.broadcast_arrays(*truths))
            case Call(function="where"):
                return self._where(expr, env, active)
            case Call(function=name) if name in DTYPES:
                target = Type(DTYPES[name])
                found = self._cast(self.value(expr.args[0], env, active), self.types[id(expr.args[0])], target)
                return self._cast(np.asarray(found).astype(storage(target.dtype, self.wide)), target, target)
            case Call():
                return self._apply(expr.function, expr, expr.args, env, active)
            case Reducer():
                return self._reduce(expr, env, active)
            case Name():
                raise AssertionError(f"internal: unresolved name {expr.identifier}")

    def _cast(self, value: object, source: Type, target: Type) -> Any:
        return convert(value, source, target.dtype, self.wide)

    def _apply(self, op: str, expr: Expression, args: Sequence[Expression], env: Places, active: Active) -> Any:
        common = Type(self.scalar.common(op, expr, args))
        self._require_plain(op, common)
        meaning: Callable[..., Any] = OPS[op].meaning
        first, *rest = (self._cast(self.value(e, env, active), self.types[id(e)], common) for e in args)
        found = first if rest else meaning(first)
        for other in rest:
            found = meaning(found, other)
        return self._cast(found, common, self.types[id(expr)])

    def _require_plain(self, op: str, dtype: Type) -> None:
        """Raises Leave for products of complex numbers, which NumPy's vectors fuse, and what consists of some."""
        if dtype.dtype.is_complex and op not in ("add", "sub", "neg"):
            raise Leave

    def _compare(self, expr: Compare, env: Places, active: Active) -> Any:
        found = [self.value(e, env, active) for e in expr.operands]
        result: Any = np.True_
        sides = zip(itertools.pairwise(expr.operands), itertools.pairwise(found), strict=True)
        for op, ((left, right), (a, b)) in zip(expr.ops, sides, strict=True):
            s, t = self.types[id(left)], self.types[id(right)]
            common = promote_types(s, t).dtype
            if common.is_float or common.is_complex:
                a, b = (convert(v, k, common, self.wide, rounded=True) for v, k in ((a, s), (b, t)))
            result = result & OPS[COMPARE_OPS[op]].meaning(a, b)  # NumPy compares integers of any width by value
        return result

    def _where(self, expr: Call, env: Places, active: Active) -> Any:
        test, yes, no = expr.args
        if _is_affine_condition(test, env):
            truth = self._holds(test, env)
            sides = (active & truth, active & np.logical_not(truth))
        else:  # what is not chosen is checked, too
            truth, sides = np.not_equal(self.value(test, env, active), 0), (active, active)
        chosen = (
            self._cast(self.value(e, env, side), self.types[id(e)], self.types[id(expr)])
            for e, side in zip((yes, no), sides, strict=True)
        )
        return np.where(truth, *chosen)

    def _holds(self, expr: Expression, env: Places) -> Any:
        """Whether an affine condition does."""
        match expr:
            case Compare():
                found = [_affine(e, env) for e in expr.operands]
                parts = [
                    OPS[COMPARE_OPS[op]].meaning(a, b)
                    for op, (a, b) in zip(expr.ops, itertools.pairwise(found), strict=True)
                ]
                return np.logical_and.reduce(np.broadcast_arrays(*parts))
            case Boolean():
                parts = [self._holds(e, env) for e in expr.operands]
                return (np.logical_and if expr.op == "and" else np.logical_or).reduce(np.broadcast_arrays(*parts))
            case Unary(op="not"):
                return np.logical_not(self._holds(expr.operand, env))
            case Number(value=bool() as value):
                return np.bool_(value)
            case _:
                raise Leave

    def _reduce(self, expr: Reducer, env: Places, active: Active) -> Any:
        row = REDUCTIONS[expr.kind]
        if row.combine is None:
            raise Leave
        source, target = self.types[id(expr.body)], Type(self.types[id(expr)].dtype)
        own = [e.name for e in expr.items if isinstance(e, IndexRef)]
        conditions = [e for e in expr.items if not isinstance(e, IndexRef)]
        self._require_plain(row.combine, target)
        meaning = OPS[row.combine].meaning
        found = self._cast(row.identity(target.dtype), target, target)
        reached: Any = np.False_
        for point in itertools.product(*(self.scalar.ranges[name] for name in own)):
            inner = {**env, **dict(zip(own, point, strict=True))}
            holds: Active = True
            for condition in conditions:
                holds = holds & self._holds(condition, inner)
            if not np.any(holds):
                continue
            term = self._cast(self.value(expr.body, inner, active & holds), source, target)
            joined = self._cast(meaning(found, term), target, target)
            found = joined if np.all(holds) else np.where(holds, joined, found)
            reached = reached | holds
        if expr.kind in ("max", "min") and not np.all(reached | np.logical_not(active)):
            raise Leave
        return found

    def _read(self, expr: Subscript, env: Places, active: Active) -> Any:
        name = expr.tensor if isinstance(expr.tensor, str) else expr.tensor.tensor
        cell = self.scalar.cells[name]
        if cell.written is not None and not cell.written.all():
            raise Leave
        at = []
        for s, extent in zip(expr.subscripts, self.scalar.extents(expr.tensor, env), strict=True):
            place = np.int64(self.value(s, env, active)) if has_reads(s) else _affine(s, env)
            if not _is_inside(place, extent, active):
                raise Leave
            at.append(place)
        inside: Any = np.True_
        if isinstance(expr.tensor, Pad):
            at = [p - affine_value(a, env) for p, (a, _) in zip(at, expr.tensor.widths, strict=True)]
            for p, d in zip(at, cell.values.shape, strict=True):
                inside = inside & ((p >= 0) & (p < d))
        if not cell.values.size:
            raise Leave
        kept = tuple(np.clip(p, 0, d - 1) for p, d in zip(at, cell.values.shape, strict=True))
        found = cell.values[kept]
        if np.all(inside):
            return found
        return np.where(inside, found, self._cast(0, Type(cell.type.dtype), Type(cell.type.dtype)))


def _is_affine_condition(expr: Expression, env: Places) -> bool:
    """Whether a condition is affine at one instance, hence at all."""
    if has_reads(expr):
        return False
    one = {name: int(np.ravel(at)[0]) for name, at in env.items()}
    try:
        condition_value(expr, one)
    except NotAffineError:
        return False
    return True
