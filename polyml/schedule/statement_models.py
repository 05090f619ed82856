"""From a statement to its model (cost.py): strides of its accesses in memory, windows, neighbours, and the instructions of its expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from polyml.expressions import Apply, Const, Expr, Read, Subscript, apart, neighbours, reads_of, variables_in, walk
from polyml.operation_weights import operations_of
from polyml.schedule.cost import AccessModel, StatementModel
from polyml.scop.scop import Array, Scop, Statement
from polyml.sets.affine import Affine, FloorDiv
from polyml.sets.turns import MOST_ROWS, rows_in_turn

__all__ = ["UNKNOWN_EXTENT", "Elements", "model_statement"]

UNKNOWN_EXTENT = 1_024
"""What a loop whose length depends on sizes is taken for."""

UNKNOWN_WINDOW = 8
"""The same for a sum over the places of a window: an index that moves what is read together with one of the result's (`x[i + r]`). Windows are short, and lanes along a long one are no better than lanes along the result."""


def model_statement(
    statement: Statement, scop: Scop, extents: Mapping[str, int | None], elements: Elements | None = None
) -> StatementModel:
    """The model of one statement. extents: width of its box per index, None where it depends on sizes. elements: of the scop, where several statements ask."""
    accesses = [_model_read(scop, expr, statement.indices) for expr in dict.fromkeys(_elements(statement.value))]
    accesses.append(
        _model_access(scop.arrays[statement.target.array], statement.target.subscripts, statement.indices, write=True)
    )
    accesses = _with_neighbours(statement, accesses, elements or Elements(scop))
    sizes = [scop.arrays[a.array].dtype.part.itemsize for a in accesses]
    combine = 1.0 if statement.kind == "update" else 0.0
    taps, overlapping = _windows(statement)
    if unknown := [tap for tap in taps if not extents[tap]]:
        # Windows of symbolic size are not written out, so that their rows share nothing.
        accesses = [replace(a, places={i: p for i, p in a.places.items() if i not in unknown}) for a in accesses]
    return StatementModel(
        name=statement.name,
        extents={i: extents[i] or (UNKNOWN_WINDOW if i in taps else UNKNOWN_EXTENT) for i in statement.indices},
        accesses=tuple(accesses),
        operations=_fused(operations_of(_without_masks(statement.value) if taps else statement.value), combine),
        itemsize=max(sizes),
        is_update=statement.kind == "update",
        overlapping=overlapping,
        taps=taps,
        copies=isinstance(statement.value, Read),
        elementwise=_is_elementwise(scop, statement, accesses),
        registers=1 if statement.argument is None else 2,
    )


_Key = tuple[str, bool, Affine]


class Elements:
    """What the elementwise statements of a scop access, found once for all of them, when the first one asks."""

    def __init__(self, scop: Scop) -> None:
        self._scop = scop
        self._own: dict[str, list[tuple[_Key | None, int]]] = {}
        self._places: dict[_Key, set[int]] = {}

    def of(self, statement: Statement) -> list[tuple[_Key | None, int]]:
        """Of each access of an elementwise statement what it has in common with those near it, None where that is not known, and its own place among them."""
        if not self._own:
            for other in self._scop.statements.values():
                if other.kind == "assign":
                    self._own[other.name] = found = [self._place(*access) for access in _accesses(other)]
                    for key, place in found:
                        if key is not None:
                            self._places.setdefault(key, set()).add(place)
        return self._own[statement.name]

    def near(self, key: _Key) -> set[int]:
        """The places of all accesses with that in common."""
        return self._places[key]

    def _place(self, name: str, subscripts: tuple[Subscript, ...], write: bool) -> tuple[_Key | None, int]:
        place = _flat(self._scop.arrays[name], subscripts) if name else None
        return (None, 0) if place is None else ((name, write, place - place.constant), place.constant)


def _accesses(statement: Statement) -> Iterator[tuple[str, tuple[Subscript, ...], bool]]:
    """The arrays, subscripts, and whether it is written; no name where several elements are read at once."""
    for expr in dict.fromkeys(_elements(statement.value)):
        yield (expr.tensor, expr.subscripts, False) if isinstance(expr, Read) else ("", (), False)
    yield statement.target.array, statement.target.subscripts, True


def _with_neighbours(statement: Statement, accesses: list[AccessModel], elements: Elements) -> list[AccessModel]:
    """The accesses of an elementwise statement with what is accessed near them."""
    if statement.kind != "assign" or not any(
        step is not None and step > 1 for access in accesses for step in access.strides.values()
    ):
        return accesses
    return [
        access if key is None else replace(access, near=frozenset(at - here for at in elements.near(key)))
        for access, (key, here) in zip(accesses, elements.of(statement), strict=True)
    ]


def _flat(array: Array, subscripts: tuple[Subscript, ...]) -> Affine | None:
    """The element in memory, counted from the array's start; None where that is not known."""
    place = Affine()
    for subscript, step in zip(subscripts, array.memory_strides, strict=True):
        if not isinstance(subscript, Affine) or step is None:
            return None
        place = place + subscript * step
    return place


def _is_elementwise(scop: Scop, statement: Statement, accesses: list[AccessModel]) -> bool:
    """Whether it is no sum, and its elements are numbers of one part each and of one size."""
    types = [scop.arrays[access.array].dtype for access in accesses]
    same = len({dtype.itemsize for dtype in types}) == 1 and all(dtype.kind not in "bc" for dtype in types)
    return same and statement.kind == "assign"


def _windows(statement: Statement) -> tuple[frozenset[str], frozenset[str]]:
    """Indices of an update's sum that share a subscript with indices of its result, so that neighbouring results read what they read; and those of the result."""
    if statement.kind != "update":
        return frozenset(), frozenset()
    kept = frozenset(variables_in(statement.target.subscripts))
    own = frozenset(statement.indices)
    shared: frozenset[str] = frozenset()
    for read in reads_of(statement.value):
        for subscript in read.subscripts:
            together = subscript.variables() & own if isinstance(subscript, Affine) else frozenset()
            if together & kept and together - kept:
                shared |= together
    return shared - kept, shared & kept


def _elements(expr: Expr) -> list[Read | Apply]:
    """What is read, gathered subscripts included: elements, and neighbours that are read at once (an Apply)."""
    found: list[Read | Apply] = []
    stack = [expr]
    while stack:
        node = stack.pop()
        match node:
            case Apply(op="pair_bf16" | "pair_i16" | "quad_i8") if neighbours(node) is not None:
                found.append(node)
            case Apply():
                stack.extend(reversed(node.args))
            case Read():
                found.append(node)
                stack.extend(s for s in reversed(node.subscripts) if not isinstance(s, Affine))
            case _:
                pass
    return found


def _model_read(scop: Scop, expr: Read | Apply, indices: tuple[str, ...]) -> AccessModel:
    read = expr if isinstance(expr, Read) else neighbours(expr)
    assert read is not None, "internal: a pair of elements that are no neighbours"
    model = _model_access(scop.arrays[read.tensor], read.subscripts, indices, write=False)
    if isinstance(expr, Read):
        return model
    count = len(expr.args)
    strides = {i: step if step is None or step % count else step // count for i, step in model.strides.items()}
    return replace(model, strides=strides)


def _fused(operations: float, combine: float) -> float:
    """A product that is added up is one instruction."""
    return max(operations, combine) if operations <= 1 else operations - 1 + combine


def _without_masks(value: Expr) -> Expr:
    """The expression without the conditions on places under which windows read zeros: masks of loads, which take no instructions of their own."""
    match value:
        case Apply(op="select", args=(condition, inside, Const(value=0))) if not list(reads_of(condition)):
            return _without_masks(inside)
        case Apply(args=args):
            return replace(value, args=tuple(map(_without_masks, args)))
        case _:
            return value


def _model_access(
    array: Array, subscripts: tuple[Subscript, ...], indices: tuple[str, ...], *, write: bool
) -> AccessModel:
    steps = array.memory_strides
    strides: dict[str, int | None] = {}
    for index in indices:
        total: int | None = 0
        for subscript, step in zip(subscripts, steps, strict=True):
            along = subscript.stride(index) if isinstance(subscript, Affine) else _indirect(subscript, index)
            total = None if along is None or total is None or (along and step is None) else total + along * (step or 0)
        if total != 0:
            strides[index] = total
    turns = {
        index: rows for index in indices if strides.get(index, 0) is None and (rows := _turns(subscripts, steps, index))
    }
    steady = {
        index: block for index in indices if strides.get(index, 0) is None and (block := _steady(subscripts, index))
    }
    places = {
        index: place for index in indices if strides.get(index, 0) is None and (place := _place(subscripts, index))
    }
    return AccessModel(array.name, strides, write, turns, steady, places=places)


def _place(subscripts: tuple[Subscript, ...], index: str) -> tuple[int, int] | None:
    """The one dimension along which the index moves the access, and by how many of its places."""
    found: tuple[int, int] | None = None
    for dimension, subscript in enumerate(subscripts):
        step = subscript.stride(index) if isinstance(subscript, Affine) else None
        if step is None or (step and found is not None):
            return None
        found = (dimension, step) if step else found
    return found


def _steady(subscripts: tuple[Subscript, ...], index: str) -> int | None:
    """By what the index is divided where its quotient is all that moves the access, and all divisors have that one in common."""
    found: list[int] = []
    for subscript in subscripts:
        if not isinstance(subscript, Affine):
            return None
        for atom, _ in subscript.terms:
            match atom:
                case FloorDiv(numerator=Affine(name=name), denominator=block) if name == index:
                    found.append(block)
                case str() if atom != index:
                    pass
                case FloorDiv() if index not in atom.variables():
                    pass
                case _:
                    return None
    return gcd(*found) if found else None


def _turns(subscripts: tuple[Subscript, ...], steps: Sequence[int | None], index: str) -> int | None:
    """The number of rows that the index goes through in turn, if that is few."""
    place = Affine()
    for subscript, step in zip(subscripts, steps, strict=True):
        if not isinstance(subscript, Affine) or (step is None and index in subscript.variables()):
            return None
        place = place + subscript * (step or 0)
    found = rows_in_turn(place, index)
    return found[0] if found is not None and found[0] <= MOST_ROWS else None


def _indirect(subscript: Expr, index: str) -> int | None:
    """Elements by which the index moves a gathered subscript; None where what tensors say of it depends on the index, too."""
    known, rest = apart(subscript)
    for node in () if rest is None else walk(rest):
        for read in reads_of(node):
            if any(isinstance(s, Affine) and index in s.variables() for s in read.subscripts):
                return None
        affine = getattr(node, "affine", None)
        if isinstance(affine, Affine) and index in affine.variables():
            return None
    return known.stride(index)
