"""Executes Loops in Python, one instance at a time: the oracle that every loop pass and emitter is tested with (tiny sizes only).

A vector loop runs its body node by node, each node for all active lanes before the next node: what lanes do may not depend on their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import numpy as np

from polyml.codegen.loops import (
    Allocate,
    Assign,
    Block,
    For,
    Function,
    If,
    Lead,
    Node,
    Place,
    Prefetch,
    Scan,
    UpdateArgument,
    Variable,
)
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript
from polyml.ops import OPS, REDUCTIONS
from polyml.records import dataclass
from polyml.sets.affine import Affine

__all__ = ["interpret"]

_Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def interpret(function: Function, arrays: Mapping[str, _Array], sizes: Mapping[str, int] | None = None) -> None:
    """Runs `function` on `arrays` (name -> array of the argument's shape, any strides), which are updated in place.

    Scratch memory and registers start as NaN (integers: a conspicuous number), so that a read before a write shows.

    Raises:
        AssertionError: an access outside its array, or of a register with lanes outside of a vector loop of that width.
    """
    values = dict(sizes or {})
    for name, factors in function.products.items():
        values[name] = math.prod(factor.evaluate(values) for factor in factors)
    storage: dict[str, _Storage] = {}
    for variable in function.arguments:
        array = arrays[variable.name]
        shape = tuple(extent.evaluate(values) for extent in variable.shape)
        assert array.shape == shape, f"internal: argument {variable.name} has shape {array.shape}, not {shape}"
        storage[variable.name] = _Storage(array, 1)
    for lead in function.leads:
        if not lead.inside:
            values[lead.name] = _lead(lead, arrays[lead.array], values)
    with np.errstate(all="ignore"):
        _Machine(storage, tuple(lead for lead in function.leads if lead.inside)).run(
            function.body, [_Lane(values, 0)], 1
        )


@dataclass(frozen=True, slots=True)
class _Storage:
    array: _Array
    lanes: int


@dataclass(frozen=True, slots=True)
class _Lane:
    """The values of variables in one lane, and its number."""

    values: dict[str, int]
    number: int


def _lead(lead: Lead, array: _Array, values: Mapping[str, int]) -> int:
    """The lead's value, by the array's address."""
    at = sum(s.evaluate(values) * stride for s, stride in zip(lead.row, array.strides, strict=False))
    return -(array.ctypes.data + at) % lead.bytes // array.itemsize


_Value = Callable[[_Lane, int], np.generic]
"""An expression, for a lane and the width of its loop."""


def _number(affine: Affine) -> Callable[[Mapping[str, int]], int]:
    """What `affine.evaluate` does, the terms looked at once."""
    constant = affine.constant
    match affine.terms:
        case ():
            return lambda _: constant
        case ((str() as name, int() as factor),):
            return lambda values: constant + factor * values[name]
        case ((str() as name, int() as factor), (str() as second, int() as times)):
            return lambda values: constant + factor * values[name] + times * values[second]
    return affine.evaluate


class _Machine:
    def __init__(self, storage: dict[str, _Storage], leads: tuple[Lead, ...]) -> None:
        self.storage = storage
        self.leads = leads
        self.values: dict[int, tuple[Expr, _Value]] = {}
        """By id, with the expression, which keeps the id from being another's."""
        self.places: dict[int, tuple[tuple[Subscript, ...], list[Callable[[Mapping[str, int]], int]] | None]] = {}
        """The same of subscripts, where all are affine."""

    def run(self, nodes: Iterable[Node], lanes: Sequence[_Lane], width: int) -> None:
        """Runs the nodes for the active `lanes` of a vector loop of `width` (1: outside of any)."""
        for node in nodes:
            match node:
                case Assign():
                    self.assign(node, lanes, width)
                case UpdateArgument():
                    self.update_argument(node, lanes, width)
                case Prefetch():
                    pass
                case For():
                    self.loop(node, lanes, width)
                case If():
                    chosen = [bool(self.value(node.condition, lane, width)) for lane in lanes]
                    yes = [lane for lane, c in zip(lanes, chosen, strict=True) if c]
                    no = [lane for lane, c in zip(lanes, chosen, strict=True) if not c]
                    if yes:
                        self.run(node.then, yes, width)
                    if no:
                        self.run(node.otherwise, no, width)
                case Allocate():
                    self.allocate(node, lanes, width)
                case Block():
                    self.run(node.body, lanes, width)
                case _:
                    assert_never(node)

    def loop(self, node: For, lanes: Sequence[_Lane], width: int) -> None:
        first = lanes[0].values
        lower, upper = node.lower.evaluate(first), node.upper.evaluate(first)
        for lane in lanes[1:]:
            same = (node.lower.evaluate(lane.values), node.upper.evaluate(lane.values)) == (lower, upper)
            assert same, f"internal: bounds of {node.variable} differ between lanes"
        if node.kind != "vector" or node.width == 1:
            leads = [lead for lead in self.leads if lead.inside == node.variable]
            for value in range(lower, upper, node.step):
                inner = [_Lane({**lane.values, node.variable: value}, lane.number) for lane in lanes]
                for lead in leads:
                    if all(s.variables() <= inner[0].values.keys() for s in lead.row):
                        for lane in inner:
                            lane.values[lead.name] = _lead(lead, self.storage[lead.array].array, lane.values)
                self.run(node.body, inner, width)
            return
        assert width == 1, "internal: a vector loop inside a vector loop"
        assert node.step % node.width == 0, "internal: the step of a vector loop is not a multiple of its width"
        for value in range(lower, upper, node.step):
            if not node.masked:
                assert value + node.step <= upper, f"internal: vector loop {node.variable} runs past its bound"
            active = [
                _Lane({**first, node.variable: value + number}, number)
                for number in range(node.width)
                if not node.masked or value + number < upper
            ]
            self.run(node.body, active, node.width)

    def allocate(self, node: Allocate, lanes: Sequence[_Lane], width: int) -> None:
        variable: Variable = node.variable
        shape = tuple(extent.evaluate(lanes[0].values) for extent in variable.shape)
        assert variable.scope != "register" or not shape, "internal: a register that is an array"
        inexact = variable.dtype.is_float or variable.dtype.is_complex
        fill = math.nan if inexact else (True if variable.dtype.kind == "b" else 77)
        outer = self.storage.get(variable.name)
        made = np.full((*shape, variable.lanes), fill, dtype=variable.dtype.numpy)
        self.storage[variable.name] = _Storage(made if variable.lanes > 1 else made[..., 0], variable.lanes)
        self.run(node.body, lanes, width)
        if outer is None:
            del self.storage[variable.name]
        else:
            self.storage[variable.name] = outer

    def assign(self, node: Assign, lanes: Sequence[_Lane], width: int) -> None:
        if node.across:
            assert width == 1, "internal: a reduction across lanes inside a vector loop"
            assert isinstance(node.value, Read), "internal: a reduction across lanes of something else than a register"
            assert node.reduction is not None, "internal: lanes are combined by a reduction"
            for number in range(self.storage[node.value.tensor].lanes):
                value = self.storage[node.value.tensor].array[number]
                self.store(node.target, self.combined(node.target, value, node.reduction, lanes[0], 1), lanes[0], 1)
            return
        if node.scan is not None:
            self.scan(node, node.scan, lanes, width)
            return
        if node.reduction is not None:
            # Lanes that share an element would be combined in one step: the vectorizer gives each its own.
            places = [self.address(node.target.variable, node.target.subscripts, lane, width) for lane in lanes]
            assert len(set(places)) == len(places), f"internal: lanes of {node.target} collide"
        values = [self.value(node.value, lane, width) for lane in lanes]
        for lane, value in zip(lanes, values, strict=True):
            if node.reduction is not None:
                value = self.combined(node.target, value, node.reduction, lane, width)
            self.store(node.target, value, lane, width)

    def scan(self, node: Assign, scan: Scan, lanes: Sequence[_Lane], width: int) -> None:
        values = [self.value(node.value, lane, width) for lane in lanes]
        factors = [None if scan.factor is None else self.value(scan.factor, lane, width) for lane in lanes]
        resets = [scan.reset is not None and bool(self.value(scan.reset, lane, width)) for lane in lanes]
        op = REDUCTIONS[node.reduction or "sum"].combine
        assert op is not None, "internal: a scan of argmax or argmin"
        for lane, value, factor, reset in zip(lanes, values, factors, resets, strict=True):
            carry = self.load(scan.carry, (), lane, width)
            if scan.second is not None and scan.earlier is not None:
                earlier = self.load(scan.earlier, (), lane, width)
                value = OPS["add"].meaning(OPS["mul"].meaning(self.value(scan.second, lane, width), earlier), value)
                self.store(Place(scan.earlier, ()), carry, lane, width)
            moved = carry if factor is None else OPS["mul" if op == "add" else "add"].meaning(factor, carry)
            result = value if reset else OPS[op].meaning(moved, value)
            self.store(Place(scan.carry, ()), result, lane, width)
            self.store(node.target, result, lane, width)

    def combined(self, target: Place, value: np.generic, reduction: str, lane: _Lane, width: int) -> np.generic:
        op = REDUCTIONS[reduction].combine
        assert op is not None, "internal: argmax and argmin have an update of their own"
        old = self.load(target.variable, target.subscripts, lane, width)
        result: np.generic = OPS[op].meaning(old, value)
        return result

    def update_argument(self, node: UpdateArgument, lanes: Sequence[_Lane], width: int) -> None:
        if not node.across:
            for lane in lanes:
                candidate, index = (
                    self.value(node.candidate, lane, width),
                    self.value(node.candidate_index, lane, width),
                )
                self.challenge(node, candidate, int(index), lane, width)
            return
        assert width == 1, "internal: a reduction across lanes inside a vector loop"
        assert isinstance(node.candidate, Read), "internal: argmax across lanes of something else than a register"
        assert isinstance(node.candidate_index, Read), "internal: argmax across lanes of something else than a register"
        best, seen = self.storage[node.candidate.tensor], self.storage[node.candidate_index.tensor]
        for number in range(best.lanes):
            if int(seen.array[number]) != -1:
                self.challenge(node, best.array[number], int(seen.array[number]), lanes[0], 1)

    def challenge(self, node: UpdateArgument, candidate: np.generic, index: int, lane: _Lane, width: int) -> None:
        """One candidate: a better value wins, NaN is best, the smaller index wins a tie."""
        best = self.load(node.best.variable, node.best.subscripts, lane, width)
        argument = int(self.load(node.argument.variable, node.argument.subscripts, lane, width))
        if argument != -1:
            new_nan, old_nan = candidate != candidate, best != best
            better = bool(np.greater(candidate, best) if node.kind == "argmax" else np.less(candidate, best))
            equal = bool(candidate == best) or (new_nan and old_nan)
            wins = (new_nan and not old_nan) or (better and not old_nan) or (equal and index < argument)
            if not wins:
                return
        self.store(node.best, candidate, lane, width)
        self.store(node.argument, np.int64(index), lane, width)

    # -- expressions --------------------------------------------------------------------------------------------------

    def value(self, expr: Expr, lane: _Lane, width: int) -> np.generic:
        return self.evaluator(expr)(lane, width)

    def evaluator(self, expr: Expr) -> _Value:
        found = self.values.get(id(expr))
        if found is None:
            found = self.values[id(expr)] = expr, self.made(expr)
        return found[1]

    def made(self, expr: Expr) -> _Value:
        kind = expr.dtype.numpy.type
        match expr:
            case Const():
                number: np.generic = kind(expr.value)
                return lambda lane, width: number
            case IndexValue():
                index = _number(expr.affine)
                return lambda lane, width: kind(index(lane.values))
            case Read():
                name, subscripts = expr.tensor, expr.subscripts
                return lambda lane, width: self.load(name, subscripts, lane, width)
            case Apply():
                return self.applied(expr.op, [self.evaluator(arg) for arg in expr.args], kind)
            case _:
                assert_never(expr)

    @staticmethod
    def applied(op: str, args: Sequence[_Value], kind: Callable[[object], np.generic]) -> _Value:
        if op == "select":
            condition, yes, no = args
            return lambda lane, width: yes(lane, width) if condition(lane, width) else no(lane, width)
        if op in ("and", "or"):
            decided = all if op == "and" else any
            return lambda lane, width: np.bool_(decided([arg(lane, width) for arg in args]))
        meaning = OPS[op].meaning
        if len(args) == 2:
            left, right = args
            return lambda lane, width: kind(meaning(left(lane, width), right(lane, width)))
        return lambda lane, width: kind(meaning(*[arg(lane, width) for arg in args]))

    def address(
        self, variable: str, subscripts: tuple[Subscript, ...], lane: _Lane, width: int
    ) -> tuple[str, tuple[int, ...]]:
        storage = self.storage[variable]
        found = self.places.get(id(subscripts))
        if found is None:
            affine = [_number(s) for s in subscripts if isinstance(s, Affine)]
            found = self.places[id(subscripts)] = subscripts, affine if len(affine) == len(subscripts) else None
        numbers, values = found[1], lane.values
        if numbers is not None:
            at = [number(values) for number in numbers]
        else:
            at = [s.evaluate(values) if isinstance(s, Affine) else int(self.value(s, lane, width)) for s in subscripts]
        if storage.lanes > 1:
            assert storage.lanes == width, f"internal: register {variable} has {storage.lanes} lanes, the loop {width}"
            at.append(lane.number)
        shape = storage.array.shape
        inside = len(at) == len(shape)
        for w, extent in zip(at, shape, strict=False):
            inside = inside and 0 <= w < extent
        assert inside, f"internal: access {variable}{at} of shape {shape}"
        return variable, tuple(at)

    def load(self, variable: str, subscripts: tuple[Subscript, ...], lane: _Lane, width: int) -> np.generic:
        value: np.generic = self.storage[variable].array[self.address(variable, subscripts, lane, width)[1]]
        return value

    def store(self, target: Place, value: np.generic, lane: _Lane, width: int) -> None:
        where = self.address(target.variable, target.subscripts, lane, width)[1]
        array = self.storage[target.variable].array
        array[where] = value
