"""The NumPy reference of a Graph: each op executed by itself, over index grids, at real sizes.

It is one of the two oracles for compiled kernels, so it is written to be read: `run` has one row per op kind, `Grid.value`
(reference_grid.py) one per expression node. An Equation is evaluated over the bounding box of its domain; where the domain is not a box, a mask says which points
count. Affine accesses that stay inside their tensor become strided views; all others are clamped gathers whose live points are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import field
from typing import Any, assert_never

import islpy as isl
import numpy as np

from polyml.dtypes import DType
from polyml.expressions import Subscript
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.graph.reference_grid import Array, Box, Grid, numpy_dtype
from polyml.ops import OPS, REDUCTIONS
from polyml.records import dataclass
from polyml.sets.affine import Affine
from polyml.sets.from_isl import Constraint, constraints_of

__all__ = ["evaluate", "execute", "execute_equation"]

Number = int | float | bool | np.generic

_POINTS_AT_ONCE = 1 << 22


def execute(
    graph: Graph,
    arguments: Sequence[Array | Number],
    *,
    sizes: Mapping[str, int] | None = None,
    wide: bool = False,
) -> tuple[Array, ...]:
    """The outputs of the graph for one call, in order; arrays passed for written inputs are updated in place, as a kernel does.

    Args:
        arguments: one per input of the graph, in order; arrays of the inputs' shapes, numbers for 0-d inputs. Converted to the inputs' dtypes.
        sizes: values of those of `graph.sizes` that the arguments' shapes do not tell.
        wide: compute and return every float as f64 (integers stay), which makes the results an accurate yardstick for f32 kernels.

    Raises:
        IndexError: a `Check` found its flag set. Nothing is updated then.
    """
    values = evaluate(graph, arguments, sizes=sizes, wide=wide)
    outputs = tuple(values[tensor.name].copy() for tensor in graph.outputs)
    for item, argument in zip(graph.inputs, arguments, strict=True):
        if item.final is not None and isinstance(argument, np.ndarray):
            argument[...] = values[item.final.name]
    return outputs


def evaluate(
    graph: Graph,
    arguments: Sequence[Array | Number],
    *,
    sizes: Mapping[str, int] | None = None,
    wide: bool = False,
) -> dict[str, Array]:
    """The value of every tensor outside of loop bodies, by name (arguments as for `execute`); nothing passed in is changed."""
    assert len(arguments) == len(graph.inputs), "internal: one argument per input of the graph"
    run = _Run(dict(sizes or {}), {}, wide)
    for item, argument in zip(graph.inputs, arguments, strict=True):
        tensor = item.tensor
        array = np.asarray(argument).astype(run.dtype(tensor.dtype), copy=False)
        assert array.ndim == len(tensor.shape), f"internal: {tensor.name} has rank {array.ndim}"
        for extent, length in zip(tensor.shape, array.shape, strict=True):
            if extent.name is not None and extent.name in graph.sizes:
                run.numbers.setdefault(extent.name, length)
        run.values[tensor.name] = array
    for item in graph.inputs:
        expected, got = run.shape(item.tensor), run.values[item.tensor.name].shape
        assert expected == got, f"internal: {item.tensor.name} has shape {got}, not {expected}"
    with np.errstate(all="ignore"):
        run.run(graph.ops)
    return dict(run.values)


def execute_equation(equation: Equation, values: Mapping[str, Array], numbers: Mapping[str, int]) -> Array:
    """The result of one equation, given the tensors that it reads and the sizes and loop variables."""
    with np.errstate(all="ignore"):
        return _Run(dict(numbers), dict(values), wide=False).equation(equation)


@dataclass(slots=True)
class _Run:
    """One execution: `numbers` are the values of sizes and loop variables, `values` those of tensors."""

    numbers: dict[str, int]
    values: MutableMapping[str, Array]
    wide: bool
    pieces: dict[str, tuple[tuple[Constraint, ...], ...]] = field(default_factory=dict)

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        return numpy_dtype(dtype, self.wide)

    def _grid(self, indices: Sequence[str], box: Box) -> Grid:
        return Grid(indices, box, self.values, self.numbers, self.wide)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(extent.evaluate(self.numbers) for extent in tensor.shape)

    # -- ops --------------------------------------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            match op:
                case Check():
                    if self.values[op.flag.name][()]:
                        raise IndexError(op.message)
                case Loop():
                    self._loop(op)
                case Equation(base=Tensor() as base, only_if=Tensor() as flag) if not self.values[flag.name][()]:
                    self.values[op.result.name] = self.values[base.name].copy()
                case Equation():
                    self.values[op.result.name] = self.equation(op)
                case _:
                    assert_never(op)

    def _loop(self, loop: Loop) -> None:
        now = {carried.inner.name: self.values[carried.initial.name] for carried in loop.carried}
        for value in range(loop.start.evaluate(self.numbers), loop.stop.evaluate(self.numbers), loop.step):
            inside = _Run({**self.numbers, loop.variable: value}, {**self.values, **now}, self.wide, self.pieces)
            inside.run(loop.body)
            now = {carried.inner.name: inside.values[carried.next.name] for carried in loop.carried}
        for carried in loop.carried:
            self.values[carried.result.name] = now[carried.inner.name]

    def equation(self, equation: Equation) -> Array:
        """The base with the reduced values put (or combined) where the target says; without a base, what no instance hits is the
        reduction's identity."""
        identity = REDUCTIONS[equation.reduce].identity(equation.result.dtype) if equation.reduce else None
        start = np.asarray(0 if identity is None else identity, self.dtype(equation.result.dtype))
        if equation.base is None:
            result = np.full(self.shape(equation.result), start)
        else:
            result = self.values[equation.base.name].copy()
        left = equation.left
        if equation.base is not None and equation.instances is not None and not equation.accumulate:
            self._fill(result, equation, left, equation.instances, start)
        box = self._box(equation.domain)
        if box is None:
            return result
        points, values, hit = self._reduced(equation, box)
        target = self._grid(left, points)
        view = None if hit is not None else target.view(result, equation.target)
        if view is not None and not equation.accumulate:
            view[...] = values
            return result
        if view is not None and _is_injective(equation.target, target):
            _combiner(equation.reduce)(view, values, out=view)
            return result
        live = ... if hit is None else hit
        steps = [stride // result.itemsize for stride in result.strides]
        at = np.zeros(target.shape, np.intp)
        for position, step in zip(target.positions(equation.target, hit, result.shape), steps, strict=True):
            at = at + position * step
        if equation.accumulate:
            _combiner(equation.reduce).at(result.reshape(-1), at[live].reshape(-1), values[live].reshape(-1))
        else:
            result.reshape(-1)[at[live]] = values[live]
        return result

    def _fill(self, result: Array, equation: Equation, left: Sequence[str], points: isl.Set, value: Array) -> None:
        """Puts the identity where the left side's points are, some of which may have nothing to reduce."""
        box = self._box(points)
        if box is None:
            return
        grid = self._grid(left, box)
        mask = grid.mask([constraints_of(piece, left) for piece in points.compute_divs().get_basic_sets()])
        live = np.broadcast_to(np.ones((), bool) if mask is None else mask, grid.shape)
        places = [np.broadcast_to(p, grid.shape)[live] for p in grid.positions(equation.target, mask, result.shape)]
        result[tuple(places)] = value

    # -- reductions -------------------------------------------------------------------------------------------------------------

    def _reduced(self, equation: Equation, box: Box) -> tuple[Box, Array, Array | None]:
        """The box of the left side's indices, the reduced values over it, and which of its points have an instance (None: all).

        A large box is halved along its longest side, which bounds the memory that intermediates take."""
        left = len(equation.left)
        extents = [stop - start for start, stop in box]
        splittable = extents if equation.reduce not in ("argmax", "argmin") else extents[:left]
        if np.prod(extents, dtype=float) > _POINTS_AT_ONCE and max(splittable, default=1) > 1:
            axis = splittable.index(max(splittable))
            middle = (box[axis][0] + box[axis][1]) // 2
            sides = (box[axis][0], middle), (middle, box[axis][1])
            halves = [self._reduced(equation, (*box[:axis], side, *box[axis + 1 :])) for side in sides]
            return box[:left], *_joined(equation.reduce, axis if axis < left else None, halves)
        grid = self._grid(equation.indices, box)
        mask = grid.mask(self._constraints(equation))
        body = grid.value(equation.body, mask)
        axes = tuple(range(left, len(equation.indices)))
        hit = None if mask is None else np.asarray(np.broadcast_to(mask, grid.shape).any(axis=axes))
        if equation.reduce is None or not equation.reduced:
            return box[:left], np.broadcast_to(body, grid.shape), hit
        body = np.broadcast_to(body, grid.shape)
        mask = None if mask is None else np.broadcast_to(mask, grid.shape)
        if equation.reduce in ("argmax", "argmin"):
            assert len(axes) == 1, "internal: argmax and argmin go over one index"
            return box[:left], _first_winner(equation.reduce, body, mask) + box[left][0], hit
        identity = REDUCTIONS[equation.reduce].identity(equation.result.dtype)
        inside: Array | bool = True if mask is None else mask
        values = _combiner(equation.reduce).reduce(body, axis=axes, dtype=body.dtype, initial=identity, where=inside)
        return box[:left], np.asarray(values), hit

    # -- domains ----------------------------------------------------------------------------------------------------------------

    def _box(self, domain: isl.Set) -> Box | None:
        """The bounding box of the domain for the current sizes and loop variables; None when it is empty."""
        for position in range(domain.dim(isl.dim_type.param)):
            name = domain.get_dim_name(isl.dim_type.param, position)
            assert name is not None, "internal: a parameter without a name"
            domain = domain.fix_val(isl.dim_type.param, position, isl.Val(self.numbers[name]))
        if domain.is_empty():
            return None
        return tuple(
            (domain.dim_min_val(d).to_python(), domain.dim_max_val(d).to_python() + 1)
            for d in range(domain.dim(isl.dim_type.set))
        )

    def _constraints(self, equation: Equation) -> tuple[tuple[Constraint, ...], ...]:
        """The domain as a union of conjunctions."""
        found = self.pieces.get(equation.result.name)
        if found is None:
            basic = equation.domain.compute_divs().get_basic_sets()
            found = tuple(constraints_of(piece, equation.indices) for piece in basic)
            self.pieces[equation.result.name] = found
        return found


def _combiner(reduce: str | None) -> np.ufunc:
    """The ufunc that joins two partial results of a reduction."""
    combine = REDUCTIONS[reduce].combine if reduce else None
    assert combine is not None, f"internal: {reduce} does not combine values"
    ufunc = OPS[combine].meaning
    assert isinstance(ufunc, np.ufunc), "internal: reductions combine by ufuncs"
    return ufunc


def _is_injective(target: Sequence[Subscript], grid: Grid) -> bool:
    """True when the subscripts are affine and each index moves exactly one subscript of its own."""
    moved = [sorted(s.variables() & set(grid.indices)) for s in target if isinstance(s, Affine)]
    names = [name for names in moved for name in names]
    movable = {name for name, extent in zip(grid.indices, grid.shape, strict=True) if extent > 1}
    return all(len(m) <= 1 for m in moved) and len(set(names)) == len(names) and movable <= set(names)


def _first_winner(reduce: str, values: Array, mask: Array | None) -> Array:
    """The first position of the best value along the last axis; NaN is the best, as in NumPy; masked-out values never win."""
    if mask is None:
        return np.asarray(np.argmax(values, axis=-1) if reduce == "argmax" else np.argmin(values, axis=-1))
    choose = np.maximum if reduce == "argmax" else np.minimum
    # Any value of the row may stand in for the masked-out ones when looking for the best.
    stand_in = np.take_along_axis(values, np.argmax(mask, axis=-1, keepdims=True), axis=-1)
    best = choose.reduce(np.where(mask, values, stand_in), axis=-1, keepdims=True)
    is_best = (values == best) | ((values != values) & (best != best))
    return np.asarray(np.argmax(mask & is_best, axis=-1))


def _joined(
    reduce: str | None, axis: int | None, halves: Sequence[tuple[Box, Array, Array | None]]
) -> tuple[Array, Array | None]:
    """Two half boxes' values and hits as one: side by side along `axis` of the left side, or combined (None: a reduced index was cut)."""
    (_, low, low_hit), (_, high, high_hit) = halves
    if axis is None:
        both = None if low_hit is None or high_hit is None else low_hit | high_hit
        return np.asarray(_combiner(reduce)(low, high)), both
    values = np.concatenate((low, high), axis=axis)
    if low_hit is None and high_hit is None:
        return values, None
    hits = [np.ones(v.shape, bool) if h is None else h for v, h in ((low, low_hit), (high, high_hit))]
    return values, np.concatenate(hits, axis=axis)
