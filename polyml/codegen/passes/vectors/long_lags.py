"""Loops whose iterations wait for ones further back than a vector is long get lanes: a vector of them waits for nothing in itself.

Rewrite:
    for (t = l; t < n; t++) y[t] = x[t] + g * y[t - 100];
    -> vector for (t = l; t < n; t++) y[t] = x[t] + g * y[t - 100];

A lag that is known at run time only is asked for:
    -> if (lag >= 8 or lag <= 0) vector for ..; else for ..;

What lanes change: all of them execute a statement before any executes the next one. So of two accesses of one element, one of them a write, in iterations less than a vector apart, the earlier iteration's
must belong to the earlier statement; reads are earlier than the write of their own statement.

Source: Allen and Kennedy, "Automatic translation of FORTRAN programs to vector form" (TOPLAS 1987): dependences that are longer than a section are no hindrance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.vectors.in_turn import IN_TURN, is_long
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import expressions
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Subscript, reads_of
from polyml.records import dataclass
from polyml.schedule.schedule import Note
from polyml.sets.affine import Affine, affine

__all__ = ["find_long_lags"]

_LANES = 4
"""Fewer gain little."""


def find_long_lags(function: Function, *, vector_bytes: int, window: int = 0) -> tuple[Function, tuple[Note, ...]]:
    """The function with such innermost loops as vector loops.

    Args:
        vector_bytes: of one vector register. window: Target's; 0: vectors are never taken in turn.
    """
    notes: list[Note] = []

    def lanes_for(loop: For, ranges: Ranges, lanes: For | None) -> Node | None:
        if loop.kind in ("vector", "jam") or lanes is not None:
            return loop
        found = _accesses(loop) if loop.kind == "sequential" and loop.step == 1 else None
        if found is None:
            return None
        turns = IN_TURN if is_long(loop, window) else 1
        width = turns * vector_bytes // min(access.itemsize for access in found)
        trips = ranges.highest(loop.upper - loop.lower)
        if vector_bytes // max(access.itemsize for access in found) < _LANES or (
            trips is not None and trips < 2 * width
        ):
            return loop
        asked = _questions(found, loop.variable, width, ranges.enter(loop))
        if asked is None:
            return loop
        notes.append(Note("vector", loop.variable, "iterations wait for ones further back than a vector is long"))
        made = replace(loop, kind="vector", factor=1)
        if not asked:
            return made
        return If(condition=asked[0], then=(made,), otherwise=(loop,))

    return map_loops(function, lanes_for), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Access:
    """One access in the loop. statement: its number in the order of execution."""

    array: str
    subscripts: tuple[Affine, ...]
    write: bool
    statement: int
    itemsize: int


def _accesses(loop: For) -> list[_Access] | None:
    """All accesses to memory of the loop, which all go along it by no elements or one, or stay; None where it is no such loop."""
    found: list[_Access] = []
    private = set[str]()
    for number, node in enumerate(_nodes(loop.body)):
        match node:
            case Assign(reduction=None, scan=None, across=False, atomic=False):
                target = node.target
                accesses = [(target.variable, target.subscripts, True, node.value.dtype)]
            case If(otherwise=()):
                accesses = []
            case Allocate(variable=variable) if not variable.shape:
                private.add(variable.name)
                continue
            case _:
                return None
        reads = (read for expr in expressions(node) for read in reads_of(expr))
        accesses += [(read.tensor, read.subscripts, False, read.dtype) for read in reads]
        for array, subscripts, write, dtype in accesses:
            places = _along(subscripts, loop.variable, write=write)
            if places is None and array not in private:
                return None
            part = dtype.part if dtype.is_complex else dtype  # lanes are those of parts
            found.append(_Access(array, places or (), write, number, part.itemsize))
    return [access for access in found if access.array not in private] or None


def _nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """The statements in order, conditions and storage before what is inside."""
    for node in nodes:
        yield node
        match node:
            case If():
                yield from _nodes((*node.then, *node.otherwise))
            case Allocate():
                yield from _nodes(node.body)
            case _:
                pass


def _along(subscripts: tuple[Subscript, ...], variable: str, *, write: bool) -> tuple[Affine, ...] | None:
    """The subscripts, of which only the last one moves with the variable, by one; what is written moves. None for others."""
    places = tuple(s for s in subscripts if isinstance(s, Affine))
    moving = [k for k, place in enumerate(places) if variable in place.variables()]
    if len(places) < len(subscripts) or (write and not moving):
        return None
    plain = moving in ([], [len(places) - 1]) and all(places[k].stride(variable) == 1 for k in moving)
    return places if plain else None


def _questions(accesses: list[_Access], variable: str, width: int, ranges: Ranges) -> list[Expr] | None:
    """What must hold for vectors of so many iterations, one condition at most; None where that is never so, or no iteration waits for another one, which the schedule knows better."""
    waits = False
    asked: list[Expr] = []
    for write, other in product(accesses, accesses):
        if not write.write or write.array != other.array or write is other:
            continue
        if any(_differ(a, b) for a, b in zip(write.subscripts[:-1], other.subscripts[:-1], strict=True)):
            continue
        if write.subscripts[:-1] != other.subscripts[:-1] or variable not in other.subscripts[-1].variables():
            return None
        lag = write.subscripts[-1] - other.subscripts[-1]  # so many iterations later the other access meets the element
        if variable in lag.variables():
            return None
        waits = waits or lag != Affine()
        # Lags of which the first statement to execute is another one than without lanes.
        short = lag if write.statement >= other.statement else -1 * lag
        low, high = ranges.lowest(short), ranges.highest(short)
        if (high is not None and high <= 0) or (low is not None and low >= width):
            continue
        if low is not None and high is not None:
            return None
        question = Apply("or", (_at_least(affine(0), short), _at_least(short, affine(width))), boolean)
        if question not in asked:
            asked.append(question)
    return asked if waits and len(asked) <= 1 else None


def _differ(one: Affine, other: Affine) -> bool:
    """Whether the two are never the same."""
    difference = one - other
    return difference.is_constant and difference.constant != 0


def _at_least(value: Affine, bound: Affine) -> Expr:
    return Apply("ge", (IndexValue(value, i64), IndexValue(bound, i64)), boolean)
