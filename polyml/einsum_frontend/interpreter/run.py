"""The interpreter's dynamic half: one execution of a prepared program, statement by statement and instance by instance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import numpy as np

from polyml.einsum_frontend.interpreter import at_once
from polyml.einsum_frontend.interpreter.affine import affine_value, condition_value
from polyml.einsum_frontend.interpreter.names import free_indices
from polyml.einsum_frontend.interpreter.ranges import infer_ranges
from polyml.einsum_frontend.interpreter.ready import (
    Ready,
    ReadyAssign,
    ReadyCall,
    ReadyDeclare,
    ReadyLoop,
    ReadyProgram,
    ReadyReturn,
)
from polyml.einsum_frontend.interpreter.real_factors import meaning_of
from polyml.einsum_frontend.interpreter.types import Type, promote_types
from polyml.einsum_frontend.interpreter.values import Cell, Evaluator, convert, storage
from polyml.einsum_frontend.syntax import Expression, IndexRef, SizeRef, Subscript
from polyml.einsum_frontend.walk import walk
from polyml.errors import BoundsError, EinsumSyntaxError, PolymlError, ShapeError
from polyml.ops import result_dtype

__all__ = ["UPDATES", "Run", "bind_sizes"]

UPDATES = {"+=": "add", "-=": "sub", "*=": "mul", "/=": "div"}


def bind_sizes(ready: ReadyProgram, cells: Mapping[str, Cell], sizes: dict[str, int]) -> None:
    """Binds each size to the first bare entry of a shape, else to the first `c*P + d` of it alone, then checks all entries."""
    entries = [
        (p, e, d)
        for p in ready.source.parameters
        if p.shape is not None
        for e, d in zip(ready.shapes[p.name], cells[p.name].values.shape, strict=True)
    ]
    for _, entry, extent in entries:
        if isinstance(entry, SizeRef):
            sizes.setdefault(entry.name, extent)
    for _, entry, extent in entries:
        unknown = {node.name for node in walk(entry) if isinstance(node, SizeRef)}
        if len(unknown) == 1 and not unknown <= sizes.keys():
            (name,) = unknown
            at_zero, at_one = (affine_value(entry, {name: value}) for value in (0, 1))
            if at_one > at_zero:
                sizes[name] = (extent - at_zero) // (at_one - at_zero)
    for p, entry, extent in entries:
        try:
            expected = affine_value(entry, sizes)
        except KeyError as error:
            raise ShapeError(f"nothing gives the size {error.args[0]}", span=p.span) from error
        if expected != extent:
            raise ShapeError(f"{p.name} has a dimension of {extent} where its type says {expected}", span=p.span)


class Run:
    """One execution. env: sizes and the loop variables in scope. Subclasses may watch what `evaluate`, `store` and `receive` see."""

    def __init__(self, ready: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int], wide: bool) -> None:
        self.ready = ready
        self.cells = cells
        self.env = dict(sizes)
        self.wide = wide
        self.returned: tuple[tuple[str, Cell], ...] | None = None

    def run(self) -> tuple[tuple[str, Cell], ...] | None:
        self.block(self.ready.body)
        return self.returned

    def evaluator(self, types: Mapping[int, Type], ranges: Mapping[str, range]) -> Evaluator:
        return Evaluator(self.cells, types, ranges, self.wide)

    def evaluate(
        self, statement: ReadyAssign, evaluator: Evaluator, position: tuple[int, ...], env: Mapping[str, int]
    ) -> np.generic:
        """The value of one instance, which goes to `position`."""
        return evaluator.value(statement.value, env)

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
        fill = self.evaluator(statement.types, {}).value(statement.fill, self.env)
        values[...] = convert(fill, statement.types[id(statement.fill)], found.dtype, self.wide)
        self.cells[statement.source.name] = Cell(values, None, found)

    def call(self, statement: ReadyCall) -> None:
        callee = statement.callee
        evaluator = self.evaluator(statement.types, {})
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
                cells[p.name] = Cell(np.array(value, storage(p.dtype, self.wide)), None, Type(p.dtype))
        bind_sizes(callee, cells, sizes)
        results = self.inner(callee, cells, sizes).run() or ()
        for target, (_, cell) in zip(statement.source.targets, results, strict=True):
            self.receive(target, cell, creates=target in statement.creates)

    def inner(self, callee: ReadyProgram, cells: dict[str, Cell], sizes: Mapping[str, int]) -> Run:
        """The execution of a program that this one calls."""
        return type(self)(callee, cells, sizes, self.wide)

    def receive(self, target: str, cell: Cell, *, creates: bool) -> None:
        """A result of a called program becomes, or overwrites, the tensor `target`."""
        if creates:
            self.cells[target] = Cell(cell.values.copy(), None, Type(cell.type.dtype))
            return
        mine = self.cells[target]
        if mine.values.shape != cell.values.shape:
            raise ShapeError(f"{target} has the shape {mine.values.shape}, the result {cell.values.shape}")
        mine.values[...] = cell.values.astype(mine.values.dtype)
        mine.written = None

    # -- one assignment -----------------------------------------------------------------------------------------------------------

    def assign(self, statement: ReadyAssign) -> None:
        name = statement.source.target
        extents = None if statement.creates else self.cells[name].values.shape
        probe = self.evaluator(statement.types, {})
        ranges = infer_ranges(
            statement.value,
            statement.left,
            extents,
            statement.ifs,
            lambda tensor: probe.extents(tensor, self.env),
            self.env,
            statement.source.span,
        )
        evaluator = self.evaluator(statement.types, ranges)
        if self.assign_at_once(statement, evaluator, ranges):
            return
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
            found.append((position, self.evaluate(statement, evaluator, position, env)))
        if statement.creates:
            self.create(statement, ranges, [position for position, _ in found])
        self.store(statement, found)

    def assign_at_once(self, statement: ReadyAssign, evaluator: Evaluator, ranges: Mapping[str, range]) -> bool:
        """Whether that was possible; else nothing is done."""
        count = math.prod(len(ranges[i]) for i in statement.indices)
        scales = statement.source.op in ("*=", "/=") and statement.type.dtype.is_complex
        if type(evaluator) is not Evaluator or statement.guards or scales or count < at_once.FEW:
            return False
        name = statement.source.target
        shape = None if statement.creates else self.cells[name].values.shape
        env = {**self.env, **at_once.grid(statement.indices, ranges)}
        try:
            places = np.broadcast_arrays(*at_once.positions(statement.left, env, shape))
            if not places or len(set(zip(*(p.ravel().tolist() for p in places), strict=True))) != count:
                return False  # some element twice
            value = at_once.values(evaluator, statement.value, env)
        except at_once.Leave:
            return False
        if statement.creates:
            self.create(statement, ranges, [])
        cell = self.cells[name]
        source, position = statement.types[id(statement.value)], tuple(places)
        if statement.source.op == "=":
            cell.values[position] = convert(value, source, cell.type.dtype, self.wide)
        elif cell.written is not None and not cell.written[position].all():
            return False
        else:
            cell.values[position] = self.updated(statement, cell.values[position], value, source, cell.type)
        if cell.written is not None:
            cell.written[position] = True
        return True

    def create(self, statement: ReadyAssign, ranges: Mapping[str, range], positions: Sequence[tuple[int, ...]]) -> None:
        """A new tensor: its shape is that of the ranges, or under an `if` the least box from 0 on around its instances."""
        own = [ranges[_plain_name(e)] for e in statement.left]
        named = frozenset[str]().union(*map(free_indices, statement.guards))
        if any(r and r.start != 0 and _plain_name(e) not in named for e, r in zip(statement.left, own, strict=True)):
            raise ShapeError(
                f"the ranges of {statement.source.target} do not start at 0",
                span=statement.source.span,
                hint="declare it",
            )
        shape = tuple(r.stop for r in own)
        written: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None
        if statement.guards:
            if positions:
                shape = tuple(max(p[k] for p in positions) + 1 for k in range(len(own)))
            else:
                shape = tuple(
                    0 if _plain_name(e) in named else r.stop for e, r in zip(statement.left, own, strict=True)
                )
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

    def updated(self, statement: ReadyAssign, old: Any, value: Any, source: Type, target: Type) -> Any:
        """`old op value` in their common dtype, as the target's."""
        op = UPDATES[statement.source.op]
        common = promote_types(target, source).dtype
        if op == "div":
            common = result_dtype(op, common)
        arguments = (convert(old, target, common, self.wide), convert(value, source, common, self.wide))
        meaning = meaning_of(op, [target.dtype.is_complex, source.dtype.is_complex])
        return convert(meaning(*arguments), Type(common), target.dtype, self.wide)


def _plain_name(expr: Expression) -> str:
    """The name of a plain index."""
    assert isinstance(expr, IndexRef), "internal: the left side of a new tensor has plain indices"
    return expr.name
