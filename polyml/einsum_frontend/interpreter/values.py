"""The interpreter's evaluator: one instance of one expression at a time, in NumPy scalars."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from polyml.dtypes import DTYPES, DType, boolean, f32
from polyml.einsum_frontend.interpreter.affine import (
    affine_value,
    compare,
    condition_value,
    decide,
    has_reads,
)
from polyml.einsum_frontend.interpreter.names import children
from polyml.einsum_frontend.interpreter.real_factors import meaning_of
from polyml.einsum_frontend.interpreter.types import BINARY_OPS, COMPARE_OPS, Type, promote_types
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
from polyml.errors import BoundsError, DTypeError, PolymlError, ShapeError
from polyml.ops import OPS, REDUCTIONS
from polyml.records import dataclass

__all__ = ["Cell", "Evaluator", "convert", "storage"]

Array = npt.NDArray[np.generic]


@functools.cache
def storage(dtype: DType, wide: bool) -> np.dtype[np.generic]:
    """The NumPy dtype that elements of `dtype` are kept in: itself, or for floats and complex numbers a wider one."""
    if not wide or not (dtype.is_float or dtype.is_complex):
        return dtype.numpy
    narrow = dtype.part == f32
    if dtype.is_complex:
        return np.dtype(np.complex128 if narrow else np.clongdouble)
    return np.dtype(np.float64 if narrow else np.longdouble)


def convert(value: object, source: Type, target: DType, wide: bool, *, rounded: bool = False) -> Any:
    """`value`, a number or an array of some, as `target`, half precision as f32; a weak number is rounded to the true dtype first, so that `x == 0.1` means the same in both modes.

    rounded: weak numbers are rounded to half precision, too.
    """
    kept = storage(f32 if not wide and target.is_half else target, wide)
    element = (
        value if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim) else _scalar(value)
    )
    if source.weak:
        whole = target if rounded or not target.is_half else f32
        element = element.astype(whole.numpy)
    return element if element.dtype == kept else element.astype(kept)


def _scalar(value: object) -> np.generic:
    (element,) = np.asarray(value).reshape(1)
    assert isinstance(element, np.generic), "internal: elements of arrays are NumPy scalars"
    return element


@dataclass
class Cell:
    """A tensor of a running program: its values, and which elements are written (None: all)."""

    values: Array
    written: npt.NDArray[np.bool_] | None
    type: Type


@dataclass(frozen=True, slots=True)
class _Applied:
    """An operator with its arguments, as in all instances. types: of the arguments. common: what they are converted to."""

    types: tuple[Type, ...]
    common: Type
    result: DType
    meaning: Callable[..., np.generic]


@dataclass
class Evaluator:
    """Evaluates resolved expressions of one statement.

    types: the type of each node by identity. ranges: of every index. wide: floats in a wider type.
    """

    cells: Mapping[str, Cell]
    types: Mapping[int, Type]
    ranges: Mapping[str, range]
    wide: bool
    _applied: dict[int, _Applied] = field(default_factory=dict, init=False)
    _gathers: dict[int, bool] = field(default_factory=dict, init=False)

    # -- values -------------------------------------------------------------------------------------------------------------------

    def value(self, expr: Expression, env: Mapping[str, int]) -> np.generic:
        """The value at one instance; `env` has every index, loop variable and size.

        Raises:
            BoundsError: an affine subscript leaves its tensor. IndexError: a gathered one does. PolymlError: an unwritten element is read.
        """
        match expr:
            case Number():
                return self._cast(expr.value, self.types[id(expr)], self.types[id(expr)].dtype)
            case IndexRef() | LoopRef() | SizeRef():
                return np.int64(env[expr.name])
            case Name():
                raise AssertionError(f"internal: unresolved name {expr.identifier}")
            case Subscript():
                return self._read(expr, env)
            case Unary(op="-"):
                return self._apply("neg", expr, (expr.operand,), env)
            case Unary():
                return np.bool_(not self.value(expr.operand, env))
            case Binary():
                return self._apply(BINARY_OPS[expr.op], expr, (expr.left, expr.right), env)
            case Compare():
                return self._compare(expr, env)
            case Boolean():
                truths = [bool(self.value(e, env)) for e in expr.operands]
                return np.bool_(all(truths) if expr.op == "and" else any(truths))
            case Call():
                return self._call(expr, env)
            case Reducer():
                return self._reduce(expr, env)
            case _:
                assert_never(expr)

    def _cast(self, value: object, source: Type, target: DType) -> np.generic:
        found: np.generic = convert(value, source, target, self.wide)
        return found

    def _apply(self, op: str, expr: Expression, args: tuple[Expression, ...], env: Mapping[str, int]) -> np.generic:
        """`op` in the common dtype of its arguments, result in the node's dtype."""
        known = self._applied.get(id(expr))
        if known is None:
            types = tuple(self.types[id(e)] for e in args)
            meaning = np.conjugate if op == "conj" else meaning_of(op, [t.dtype.is_complex for t in types])
            known = _Applied(types, Type(self.common(op, expr, args)), self.types[id(expr)].dtype, meaning)
            self._applied[id(expr)] = known
        common = known.common.dtype
        values = [self._cast(self.value(e, env), t, common) for e, t in zip(args, known.types, strict=True)]
        try:
            found = values[0] if len(values) > 2 else known.meaning(*values)
            for v in values[1:] if len(values) > 2 else ():
                found = known.meaning(found, v)
        except ValueError as error:  # NumPy: integers to negative integer powers
            raise DTypeError(str(error), span=expr.span, hint="cast to a float first") from error
        return self._cast(found, known.common, known.result)

    def common(self, op: str, expr: Expression, args: Sequence[Expression]) -> DType:
        """What the arguments of `op` are converted to."""
        result = self.types[id(expr)]
        common = promote_types(*(self.types[id(e)] for e in args)).dtype
        rule = "same" if op == "conj" else OPS[op].rule
        if rule == "pair":
            common = result.dtype.part
        if rule in ("float", "true_divide") or common == boolean:
            common = result.dtype if rule != "comparison" else common
        if op == "pow" and result.dtype.is_float:
            common = result.dtype  # a number to a negative power
        return common

    def _compare(self, expr: Compare, env: Mapping[str, int]) -> np.generic:
        values = [self.value(e, env) for e in expr.operands]
        pairs = itertools.pairwise(zip(values, expr.operands, strict=True))
        result = True
        for op, ((a, left), (b, right)) in zip(expr.ops, pairs, strict=True):
            s, t = self.types[id(left)], self.types[id(right)]
            common = promote_types(s, t).dtype
            if common.is_float or common.is_complex:
                meaning = OPS[COMPARE_OPS[op]].meaning
                result &= bool(meaning(*(convert(v, k, common, self.wide, rounded=True) for v, k in ((a, s), (b, t)))))
            else:  # integers of any width compare by value, as in NumPy
                result &= compare(op, int(a), int(b))
        return np.bool_(result)

    def _call(self, expr: Call, env: Mapping[str, int]) -> np.generic:
        if expr.function in DTYPES:
            target = DTYPES[expr.function]
            value = self._cast(self.value(expr.args[0], env), self.types[id(expr.args[0])], target)
            return self._cast(np.asarray(value).astype(storage(target, self.wide)), Type(target), target)
        if expr.function != "where":
            return self._apply(expr.function, expr, expr.args, env)
        test, yes, no = expr.args
        truth = bool(self.value(test, env))
        chosen, other = (yes, no) if truth else (no, yes)
        if decide(test, env) is None:
            self.check(other, env)
        return self._cast(self.value(chosen, env), self.types[id(chosen)], self.types[id(expr)].dtype)

    # -- reductions ---------------------------------------------------------------------------------------------------------------

    def _points(self, expr: Reducer, env: Mapping[str, int]) -> Iterator[dict[str, int]]:
        own = [e.name for e in expr.items if isinstance(e, IndexRef)]
        conditions = [e for e in expr.items if not isinstance(e, IndexRef)]
        for point in itertools.product(*(self.ranges[name] for name in own)):
            inner = {**env, **dict(zip(own, point, strict=True))}
            if all(condition_value(c, inner) for c in conditions):
                yield inner

    def _reduce(self, expr: Reducer, env: Mapping[str, int]) -> np.generic:
        source, target = self.types[id(expr.body)], self.types[id(expr)].dtype
        values = ((inner, self.value(expr.body, inner)) for inner in self._points(expr, env))
        if expr.kind in ("argmax", "argmin"):
            return self._arg_reduce(expr, values)
        row = REDUCTIONS[expr.kind]
        assert row.combine is not None, "internal: argmax has its own path"
        meaning = OPS[row.combine].meaning
        found = self._cast(row.identity(target), Type(target), target)
        is_empty = True
        for _, value in values:
            found = self._cast(meaning(found, self._cast(value, source, target)), Type(target), target)
            is_empty = False
        if is_empty and expr.kind in ("max", "min"):
            raise ShapeError(f"{expr.kind} over no value", span=expr.span)
        return found

    def _arg_reduce(self, expr: Reducer, values: Iterator[tuple[dict[str, int], np.generic]]) -> np.generic:
        """The first index that wins; NaN wins over all, as in NumPy."""
        (index,) = (e.name for e in expr.items if isinstance(e, IndexRef))
        beats = np.greater if expr.kind == "argmax" else np.less
        best: np.generic | None = None
        where = 0
        for inner, value in values:
            is_better = best is None or beats(value, best) or (value != value and best == best)
            if is_better and (best is None or best == best):
                best, where = value, inner[index]
        if best is None:
            raise ShapeError(f"{expr.kind} over no value", span=expr.span)
        return np.int64(where)

    # -- reads --------------------------------------------------------------------------------------------------------------------

    def extents(self, tensor: str | Pad, env: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a tensor, or of a padded one."""
        if isinstance(tensor, str):
            return self.cells[tensor].values.shape
        widths = [(affine_value(a, env), affine_value(b, env)) for a, b in tensor.widths]
        if any(w < 0 for pair in widths for w in pair):
            raise ShapeError(f"pad of {tensor.tensor} by a negative width", span=tensor.span)
        return tuple(a + d + b for (a, b), d in zip(widths, self.cells[tensor.tensor].values.shape, strict=True))

    def position(self, expr: Subscript, env: Mapping[str, int]) -> tuple[int, ...]:
        """The subscripts as numbers, in bounds of the (padded) tensor."""
        found = []
        for s, extent in zip(expr.subscripts, self.extents(expr.tensor, env), strict=True):
            gather = self._gathers.get(id(s))
            if gather is None:
                gather = self._gathers[id(s)] = has_reads(s)
            at = int(self.value(s, env)) if gather else affine_value(s, env)
            if not 0 <= at < extent:
                raise _out_of_bounds(expr, at, extent, env, gather=gather)
            found.append(at)
        return tuple(found)

    def _read(self, expr: Subscript, env: Mapping[str, int]) -> np.generic:
        position = self.position(expr, env)
        name = expr.tensor if isinstance(expr.tensor, str) else expr.tensor.tensor
        cell = self.cells[name]
        if isinstance(expr.tensor, Pad):
            position = tuple(p - affine_value(a, env) for p, (a, _) in zip(position, expr.tensor.widths, strict=True))
            if not all(0 <= p < d for p, d in zip(position, cell.values.shape, strict=True)):
                return self._cast(0, Type(cell.type.dtype), cell.type.dtype)
        self.check_written(expr, name, position)
        value: np.generic = cell.values[position]
        return value

    def check_written(self, expr: Subscript, name: str, position: tuple[int, ...]) -> None:
        """Raises PolymlError unless the elements that are read are written; a gather may read its whole dimension."""
        written = self.cells[name].written
        if written is None:
            return
        reached = tuple(slice(None) if has_reads(s) else p for s, p in zip(expr.subscripts, position, strict=True))
        if not np.all(written[reached]):
            raise PolymlError(f"{name}{list(position)} is read before it is written", span=expr.span)

    # -- the proof of what a data-dependent `where` does not execute ----------------------------------------------------------------

    def check(self, expr: Expression, env: Mapping[str, int]) -> None:
        """Raises BoundsError for any affine subscript that the branch could evaluate, PolymlError for an unwritten element; gathers are only
        checked where they happen."""
        match expr:
            case Call(function="where"):
                test, yes, no = expr.args
                self.check(test, env)
                truth = decide(test, env)
                if truth is not False:
                    self.check(yes, env)
                if truth is not True:
                    self.check(no, env)
            case Reducer():
                for inner in self._points(expr, env):
                    self.check(expr.body, inner)
            case Subscript():
                self._check_access(expr, env)
            case _:
                for e in children(expr):
                    self.check(e, env)

    def _check_access(self, expr: Subscript, env: Mapping[str, int]) -> None:
        for s, extent in zip(expr.subscripts, self.extents(expr.tensor, env), strict=True):
            if has_reads(s):
                self.check(s, env)
            elif not 0 <= (at := affine_value(s, env)) < extent:
                raise _out_of_bounds(expr, at, extent, env, gather=False)
        if isinstance(expr.tensor, str) and not any(has_reads(s) for s in expr.subscripts):
            self.check_written(expr, expr.tensor, tuple(affine_value(s, env) for s in expr.subscripts))


def _out_of_bounds(expr: Subscript, at: int, extent: int, env: Mapping[str, int], *, gather: bool) -> Exception:
    name = expr.tensor if isinstance(expr.tensor, str) else expr.tensor.tensor
    if gather:
        return IndexError(f"index {at} is out of bounds for a dimension of size {extent} of {name}")
    instance = ", ".join(f"{k.partition('@')[0]} = {v}" for k, v in env.items())
    return BoundsError(f"the subscript of {name} is {at}, outside 0 .. {extent - 1}, at {instance}", span=expr.span)
