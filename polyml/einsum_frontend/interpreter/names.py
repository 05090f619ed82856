"""The interpreter's own reading of names: which bare name is an index, what a reducer binds.

Works on one statement of a parsed Program and gives it back with every `Name` told apart. Independent of resolve.py on purpose: the
interpreter is an oracle for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import assert_never

from polyml.einsum_frontend.scope import number_at
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
from polyml.errors import EinsumSyntaxError, ShapeError
from polyml.records import dataclass

__all__ = ["Names", "children", "free_indices", "index_names", "resolve"]

_CONSTANTS = {"inf": math.inf, "nan": math.nan, "pi": math.pi}


@dataclass(frozen=True)
class Names:
    """What bare names mean where a statement stands.

    ranks: rank of each tensor and scalar that exists. parameters: names of all parameters. sizes: symbolic sizes and `int` parameters.
    loops: variables of the enclosing loops. dead: tensors whose loop has ended. captured: numbers of the enclosing scope.
    """

    ranks: Mapping[str, int]
    parameters: frozenset[str]
    sizes: frozenset[str]
    loops: tuple[str, ...] = ()
    dead: frozenset[str] = frozenset()
    captured: Mapping[str, int | float | bool | complex] = field(default_factory=dict)

    def may_be_index(self, name: str) -> bool:
        """Whether `name` in a subscript is an index: lower case, and no parameter, size, loop variable or 0-d tensor."""
        known = name in self.parameters or name in self.sizes or name in self.loops or self.ranks.get(name) == 0
        return name.islower() and not known


def children(expr: Expression) -> tuple[Expression, ...]:
    """The expressions directly below `expr`; of a reducer its items, then its body."""
    match expr:
        case Number() | Name() | IndexRef() | LoopRef() | SizeRef():
            return ()
        case Subscript():
            widths = () if isinstance(expr.tensor, str) else tuple(e for pair in expr.tensor.widths for e in pair)
            return (*expr.subscripts, *widths)
        case Unary():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case Compare() | Boolean():
            return expr.operands
        case Call():
            return expr.args
        case Reducer():
            return (*expr.items, expr.body)
        case _:
            assert_never(expr)


def index_names(exprs: tuple[Expression, ...], left: frozenset[str], names: Names) -> frozenset[str]:
    """The names that `exprs` use as indices: those in some subscript, outside the reducers that bind them."""
    return frozenset(name for e in exprs for name in _names_in_subscripts(e, left, names, frozenset(), inside=False))


def _names_in_subscripts(
    expr: Expression, left: frozenset[str], names: Names, bound: frozenset[str], *, inside: bool
) -> Iterator[str]:
    match expr:
        case Name():
            if inside and expr.identifier not in bound and names.may_be_index(expr.identifier):
                yield expr.identifier
        case Subscript():
            for s in expr.subscripts:
                yield from _names_in_subscripts(s, left, names, bound, inside=True)
        case Reducer():
            below = bound | _bound_by(expr, left | bound, names)
            for e in children(expr):
                yield from _names_in_subscripts(e, left, names, below, inside=inside)
        case _:
            for e in children(expr):
                yield from _names_in_subscripts(e, left, names, bound, inside=inside)


def _bound_by(reducer: Reducer, taken: frozenset[str], names: Names) -> frozenset[str]:
    """The names that a reducer binds: its plain items, and r of `r < e`, `r <= e`, `0 <= r < e` unless r is `taken`."""
    bound = set()
    for item in reducer.items:
        match item:
            case Name():
                if item.identifier in names.sizes or item.identifier in names.parameters:
                    raise EinsumSyntaxError(
                        f"{item.identifier} is a parameter or size and cannot be an index", span=item.span
                    )
                bound.add(item.identifier)
            case (
                Compare(operands=(Name(identifier=r), _), ops=("<" | "<=",))
                | Compare(operands=(Number(value=0), Name(identifier=r), _), ops=("<=", "<" | "<="))
            ):
                if r not in taken and names.may_be_index(r):
                    bound.add(r)
            case _:
                pass
    return frozenset(bound)


def resolve(expr: Expression, indices: frozenset[str], left: frozenset[str], names: Names) -> Expression:
    """`expr` without `Name`s: free ones in `indices` become IndexRef of their own name, bound ones get a unique name `k@1`.

    A reducer's items become its bound IndexRefs, then its conditions.
    """
    return _Resolver(indices, left, names).expression(expr, {})


class _Resolver:
    def __init__(self, indices: frozenset[str], left: frozenset[str], names: Names) -> None:
        self.indices, self.left, self.names = indices, left, names

    def expression(self, expr: Expression, bound: Mapping[str, str]) -> Expression:
        match expr:
            case Number() | IndexRef() | LoopRef() | SizeRef():
                return expr
            case Name():
                return self.name(expr, bound)
            case Subscript():
                return self.subscript(expr, bound)
            case Unary():
                return replace(expr, operand=self.expression(expr.operand, bound))
            case Binary():
                return replace(expr, left=self.expression(expr.left, bound), right=self.expression(expr.right, bound))
            case Compare():
                return replace(expr, operands=self.all(expr.operands, bound))
            case Boolean():
                return replace(expr, operands=self.all(expr.operands, bound))
            case Call():
                return replace(expr, args=self.all(expr.args, bound))
            case Reducer():
                return self.reducer(expr, bound)
            case _:
                assert_never(expr)

    def all(self, exprs: tuple[Expression, ...], bound: Mapping[str, str]) -> tuple[Expression, ...]:
        return tuple(self.expression(e, bound) for e in exprs)

    def name(self, expr: Name, bound: Mapping[str, str]) -> Expression:
        name, names = expr.identifier, self.names
        if name in bound:
            return IndexRef(bound[name], expr.span)
        if name in self.indices:
            return IndexRef(name, expr.span)
        if name in names.loops:
            return LoopRef(name, expr.span)
        if name in names.sizes:
            return SizeRef(name, expr.span)
        if names.ranks.get(name) == 0:
            return Subscript(name, (), expr.span)
        if name in names.ranks:
            raise EinsumSyntaxError(f"the tensor {name} is used without subscripts", span=expr.span)
        for numbers in (_CONSTANTS, names.captured):
            if name in numbers:
                return number_at(numbers[name], expr.span)
        raise _undefined(expr, name, names)

    def subscript(self, expr: Subscript, bound: Mapping[str, str]) -> Expression:
        tensor = expr.tensor
        name = tensor if isinstance(tensor, str) else tensor.tensor
        if name not in self.names.ranks:
            raise _undefined(expr, name, self.names)
        if self.names.ranks[name] != len(expr.subscripts):
            rank = self.names.ranks[name]
            raise ShapeError(f"{name} has {rank} dimensions, but {len(expr.subscripts)} subscripts", span=expr.span)
        if isinstance(tensor, Pad):
            pairs = tuple((self.expression(a, bound), self.expression(b, bound)) for a, b in tensor.widths)
            if len(pairs) != len(expr.subscripts):
                raise ShapeError(f"pad of {name} needs one pair of widths per dimension", span=tensor.span)
            tensor = replace(tensor, widths=pairs)
        return replace(expr, tensor=tensor, subscripts=self.all(expr.subscripts, bound))

    def reducer(self, expr: Reducer, bound: Mapping[str, str]) -> Expression:
        own = sorted(_bound_by(expr, self.left | set(bound), self.names))
        if not own:
            raise EinsumSyntaxError(f"{expr.kind} binds no index", span=expr.span)
        if expr.kind in ("argmax", "argmin") and len(own) != 1:
            raise EinsumSyntaxError(f"{expr.kind} is over one index, not {len(own)}", span=expr.span)
        below = {**bound, **{r: f"{r}@{expr.span.line}.{expr.span.column}" for r in own}}
        refs = tuple(IndexRef(below[r], expr.span) for r in own)
        conditions = tuple(self.expression(e, below) for e in expr.items if not isinstance(e, Name))
        return replace(expr, items=(*refs, *conditions), body=self.expression(expr.body, below))


def _undefined(expr: Name | Subscript, name: str, names: Names) -> EinsumSyntaxError:
    if name in names.dead:
        message = f"{name} was made inside a loop and lives for one iteration"
        return EinsumSyntaxError(message, span=expr.span, hint=f"declare {name} before the loop")
    return EinsumSyntaxError(f"{name} is neither a tensor, a size, an index nor a number", span=expr.span)


def free_indices(expr: Expression) -> frozenset[str]:
    """The indices that occur in a resolved expression and that none of its reducers binds."""
    if isinstance(expr, IndexRef):
        return frozenset((expr.name,))
    below = frozenset[str]().union(*(free_indices(e) for e in children(expr)))
    if isinstance(expr, Reducer):
        return below - {e.name for e in expr.items if isinstance(e, IndexRef)}
    return below
