"""The interpreter: executes a parsed Program instance by instance, in plain Python, at the sizes of its arguments.

It is the oracle that the compiler is tested against, so it shares no code with resolution, summation, range inference or the graph: it
reads docs/language.md anew, by brute force. Everything is exact for tiny sizes and hopeless for real ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np

from polyml.dtypes import from_numpy
from polyml.einsum_frontend.interpreter_affine import affine_value, condition_value
from polyml.einsum_frontend.interpreter_prepare import (
    Ready,
    ReadyAssign,
    ReadyCall,
    ReadyDeclare,
    ReadyLoop,
    ReadyProgram,
    ReadyReturn,
    prepare,
)
from polyml.einsum_frontend.interpreter_ranges import infer_ranges
from polyml.einsum_frontend.interpreter_types import Type, promote_types
from polyml.einsum_frontend.interpreter_values import Array, Cell, Evaluator, convert, storage
from polyml.einsum_frontend.syntax import Expression, IndexRef, Parameter, Program, SizeRef, Subscript
from polyml.errors import BoundsError, DTypeError, EinsumSyntaxError, PolymlError, ShapeError
from polyml.ops import OPS, result_dtype

__all__ = ["interpret"]

_UPDATES = {"+=": "add", "-=": "sub", "*=": "mul", "/=": "div"}


def interpret(program: Program, *args: object, wide: bool = False) -> Array | tuple[Array, ...] | None:
    """Runs a parsed program on NumPy arrays, numbers and sizes, one per parameter.

    Args:
        wide: compute and store floats in a wider type (f32 in f64, f64 in long double) and round the results only, so that a comparison
            with a compiled kernel sees that kernel's rounding alone.

    Returns:
        The returned tensor, or the tuple of them; None without a `return`. Parameters that are assigned are updated in the caller's arrays,
        unless an error is raised, and are themselves returned where the program returns them.

    Raises:
        PolymlError: the program is wrong at all sizes, or at these. IndexError: a gather leaves its tensor.
    """
    with np.errstate(all="ignore"):
        ready = prepare(program)
        if len(args) != len(program.parameters):
            raise ShapeError(f"{program.name} takes {len(program.parameters)} arguments, not {len(args)}")
        given = dict(zip((p.name for p in program.parameters), args, strict=True))
        cells, sizes = _bind(ready, given, wide)
        results = _Run(ready, cells, sizes, wide).run()
        for name in ready.assigned:
            array = given[name]
            assert isinstance(array, np.ndarray), "internal: checked when bound"
            array[...] = cells[name].values.astype(array.dtype)
        if results is None:
            return None
        final = tuple(_final(ready, name, cell, given) for name, cell in results)
    return final[0] if len(final) == 1 else final


def _final(ready: ReadyProgram, name: str, cell: Cell, given: Mapping[str, object]) -> Array:
    array = given.get(name)
    if name in ready.assigned and isinstance(array, np.ndarray):
        return array
    return cell.values.astype(cell.type.dtype.numpy)


def _bind(ready: ReadyProgram, given: Mapping[str, object], wide: bool) -> tuple[dict[str, Cell], dict[str, int]]:
    """Cells (copies) of the tensors and scalars, and the values of all sizes."""
    cells: dict[str, Cell] = {}
    sizes: dict[str, int] = {}
    for p in ready.source.parameters:
        if p.is_size:
            sizes[p.name] = _size(p, given[p.name])
        else:
            cells[p.name] = _cell(p, given[p.name], wide, written=p.name in ready.assigned)
    for name in ready.assigned:
        for other, value in given.items():
            if other != name and isinstance(value, np.ndarray) and np.shares_memory(value, given[name]):
                raise PolymlError(f"the arguments {name} and {other} overlap, and {name} is written")
    _bind_sizes(ready, cells, sizes)
    return cells, sizes


def _bind_sizes(ready: ReadyProgram, cells: Mapping[str, Cell], sizes: dict[str, int]) -> None:
    """Binds each size to the first bare entry of a shape, then checks all entries."""
    entries = [
        (p, e, d)
        for p in ready.source.parameters
        if p.shape is not None
        for e, d in zip(ready.shapes[p.name], cells[p.name].values.shape, strict=True)
    ]
    for _, entry, extent in entries:
        if isinstance(entry, SizeRef):
            sizes.setdefault(entry.name, extent)
    for p, entry, extent in entries:
        try:
            expected = affine_value(entry, sizes)
        except KeyError as error:
            raise ShapeError(f"nothing gives the size {error.args[0]}", span=p.span) from error
        if expected != extent:
            raise ShapeError(f"{p.name} has a dimension of {extent} where its type says {expected}", span=p.span)


def _size(p: Parameter, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DTypeError(f"{p.name} is an int, not {type(value).__name__}", span=p.span)
    return int(value)


def _cell(p: Parameter, value: object, wide: bool, *, written: bool) -> Cell:
    assert p.dtype is not None, "internal: sizes have no cell"
    if p.shape is None:
        scalar = np.asarray(value)
        if scalar.ndim:
            raise ShapeError(f"{p.name} is a scalar, not an array of shape {scalar.shape}", span=p.span)
        return Cell(np.array(convert(scalar, Type(p.dtype, weak=True), p.dtype, wide)), None, Type(p.dtype))
    if not isinstance(value, np.ndarray):
        raise DTypeError(f"{p.name} is an array, not {type(value).__name__}", span=p.span)
    if from_numpy(value.dtype) != p.dtype:
        raise DTypeError(f"{p.name} is {p.dtype}, not {value.dtype}", span=p.span)
    if value.ndim != len(p.shape):
        raise ShapeError(f"{p.name} has {len(p.shape)} dimensions, not {value.ndim}", span=p.span)
    if written and not value.flags.writeable:
        raise PolymlError(f"{p.name} is written, and its array is read-only", span=p.span)
    return Cell(np.array(value, dtype=storage(p.dtype, wide), order="C"), None, Type(p.dtype))


class _Run:
    """One execution. env: sizes and the loop variables in scope."""

    def __init__(self, ready: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int], wide: bool) -> None:
        self.ready = ready
        self.cells = cells
        self.env = dict(sizes)
        self.wide = wide
        self.returned: tuple[tuple[str, Cell], ...] | None = None

    def run(self) -> tuple[tuple[str, Cell], ...] | None:
        self.block(self.ready.body)
        return self.returned

    def block(self, body: Sequence[Ready]) -> None:
        for statement in body:
            match statement:
                case ReadyAssign():
                    self.assign(statement)
                case ReadyDeclare():
                    self.declare(statement)
                case ReadyLoop():
                    self.loop(statement)
                case ReadyCall():
                    self.call(statement)
                case ReadyReturn():
                    for name in statement.source.names:
                        self.require_whole(name, "returned")
                    self.returned = tuple((name, self.cells[name]) for name in statement.source.names)
                case _:
                    assert_never(statement)

    def require_whole(self, name: str, use: str) -> None:
        written = self.cells[name].written
        if written is not None and not written.all():
            raise PolymlError(
                f"{name} is {use} before it is wholly written", hint=f"declare it with a fill: {name}: ... = 0"
            )

    def loop(self, statement: ReadyLoop) -> None:
        start, stop, step = (affine_value(e, self.env) for e in statement.bounds)
        if step == 0:
            raise EinsumSyntaxError("the step of a loop is 0", span=statement.source.span)
        variable = statement.source.variable
        outer = self.env
        for t in range(start, stop, step):
            self.env = {**outer, variable: t}
            self.block(statement.body)
            for name in statement.temporaries:
                self.cells.pop(name, None)
        self.env = outer

    def declare(self, statement: ReadyDeclare) -> None:
        found = Type(statement.source.dtype)
        shape = tuple(affine_value(e, self.env) for e in statement.shape)
        if any(d < 0 for d in shape):
            raise ShapeError(f"{statement.source.name} has the shape {shape}", span=statement.source.span)
        values = np.zeros(shape, storage(found.dtype, self.wide))
        if statement.fill is None:
            self.cells[statement.source.name] = Cell(values, np.zeros(shape, np.bool_), found)
            return
        fill = Evaluator(self.cells, statement.types, {}, self.wide).value(statement.fill, self.env)
        values[...] = convert(fill, statement.types[id(statement.fill)], found.dtype, self.wide)
        self.cells[statement.source.name] = Cell(values, None, found)

    def call(self, statement: ReadyCall) -> None:
        callee = statement.callee
        evaluator = Evaluator(self.cells, statement.types, {}, self.wide)
        cells: dict[str, Cell] = {}
        sizes: dict[str, int] = {}
        for p, arg in zip(callee.source.parameters, statement.args, strict=True):
            if isinstance(arg, str):
                self.require_whole(arg, f"passed to {callee.source.name}")
                if any(c.values is self.cells[arg].values for n, c in cells.items() if {n, p.name} & callee.assigned):
                    raise PolymlError(f"{arg} is passed twice and written", span=statement.source.span)
                cells[p.name] = Cell(self.cells[arg].values, None, self.cells[arg].type)
            elif p.dtype is None:
                sizes[p.name] = affine_value(arg, self.env)
            else:
                value = convert(evaluator.value(arg, self.env), statement.types[id(arg)], p.dtype, self.wide)
                cells[p.name] = Cell(np.array(value), None, Type(p.dtype))
        _bind_sizes(callee, cells, sizes)
        results = _Run(callee, cells, sizes, self.wide).run() or ()
        for target, (_, cell) in zip(statement.source.targets, results, strict=True):
            if target in statement.creates:
                found = Type(cell.type.dtype)
                self.cells[target] = Cell(cell.values.copy(), None, found)
                continue
            mine = self.cells[target]
            if mine.values.shape != cell.values.shape:
                raise ShapeError(f"{target} has the shape {mine.values.shape}, the result {cell.values.shape}")
            mine.values[...] = cell.values.astype(mine.values.dtype)
            mine.written = None

    # -- one assignment -----------------------------------------------------------------------------------------------------------

    def assign(self, statement: ReadyAssign) -> None:
        name = statement.source.target
        extents = None if statement.creates else self.cells[name].values.shape
        probe = Evaluator(self.cells, statement.types, {}, self.wide)
        ranges = infer_ranges(
            statement.value,
            statement.left,
            extents,
            statement.guards,
            lambda tensor: probe.extents(tensor, self.env),
            self.env,
            statement.source.span,
        )
        evaluator = Evaluator(self.cells, statement.types, ranges, self.wide)
        target = Subscript(name, statement.left, statement.source.target_span)
        found = []
        for point in itertools.product(*(ranges[i] for i in statement.indices)):
            env = {**self.env, **dict(zip(statement.indices, point, strict=True))}
            if not all(condition_value(g, env) for g in statement.guards):
                continue
            position = (
                tuple(affine_value(e, env) for e in statement.left)
                if statement.creates
                else evaluator.position(target, env)
            )
            if statement.source.op != "=":
                evaluator.check_written(target, name, position)
            found.append((position, evaluator.value(statement.value, env)))
        if statement.creates:
            self.create(statement, ranges, [position for position, _ in found])
        self.store(statement, found)

    def create(self, statement: ReadyAssign, ranges: Mapping[str, range], positions: Sequence[tuple[int, ...]]) -> None:
        """A new tensor: its shape is that of the ranges, or under an `if` the box of its instances."""
        own = [ranges[_plain_name(e)] for e in statement.left]
        if any(r and r.start != 0 for r in own):
            raise ShapeError(
                f"the ranges of {statement.source.target} do not start at 0",
                span=statement.source.span,
                hint="declare it",
            )
        shape = tuple(r.stop for r in own)
        written: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None
        if statement.guards:
            shape = tuple(max((p[k] for p in positions), default=-1) + 1 for k in range(len(own)))
            if own and len(set(positions)) != math.prod(shape):
                message = f"{statement.source.target} is new, and its if leaves no whole box"
                raise ShapeError(message, span=statement.source.span, hint="declare it with a fill")
            written = np.zeros(shape, np.bool_)
        values = np.zeros(shape, storage(statement.type.dtype, self.wide))
        self.cells[statement.source.target] = Cell(values, written, statement.type)

    def store(self, statement: ReadyAssign, found: Sequence[tuple[tuple[int, ...], np.generic]]) -> None:
        """All values at once for `=`; one instance after another for updates."""
        cell = self.cells[statement.source.target]
        source, target = statement.types[id(statement.value)], cell.type
        seen: set[tuple[int, ...]] = set()
        for position, value in found:
            if statement.source.op == "=":
                if position in seen:
                    message = f"two instances assign {statement.source.target}{list(position)}"
                    raise BoundsError(message, span=statement.source.span, hint="use an update such as +=")
                seen.add(position)
                cell.values[position] = convert(value, source, target.dtype, self.wide)
            else:
                cell.values[position] = self.updated(statement, cell.values[position], value, source, target)
            if cell.written is not None:
                cell.written[position] = True

    def updated(
        self, statement: ReadyAssign, old: np.generic, value: np.generic, source: Type, target: Type
    ) -> np.generic:
        """`old op value` in their common dtype, as the target's."""
        op = _UPDATES[statement.source.op]
        common = promote_types(target, source).dtype
        if op == "div":
            common = result_dtype(op, common)
        arguments = (convert(old, target, common, self.wide), convert(value, source, common, self.wide))
        return convert(OPS[op].meaning(*arguments), Type(common), target.dtype, self.wide)


def _plain_name(expr: Expression) -> str:
    """The name of a plain index."""
    assert isinstance(expr, IndexRef), "internal: the left side of a new tensor has plain indices"
    return expr.name
