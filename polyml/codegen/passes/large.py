"""Two versions of a function with symbolic sizes: one for results that are too large for the caches, which goes past them, and one for all others.

Which one runs is decided at each call: results must be larger than L2 (many times as large where a later region reads them) and rows long. The second version needs nothing of this. A schedule with packed operands has a version without them, too, for operands that are small or read a few times only. So has one with blocks of rows that several statements share (schedule/sweeps/row_sums.py), and on a GPU one with parts of long reductions (schedule/gpu/any_parts.py). (With numbers for sizes the same is decided when the program is compiled: schedule/streams.py.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Lead, Node
from polyml.codegen.passes.shared_versions import shared
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.rewrite import rename_variables, substitute_nodes, walk_nodes, with_body
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.schedule.schedule import Product
from polyml.sets.affine import Affine, affine
from polyml.sets.shapes import is_known

__all__ = ["Apart", "either", "streaming", "where_worth"]


SMALL = 200
"""Nodes of a function of which a second version is soon compiled: sweeps along rows, say. Register tiles have several hundreds."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Arguments of which two must begin at different places of a cache line; none: nothing is asked. bytes: of a line."""

    arrays: tuple[str, ...]
    bytes: int


def streaming(function: Function, arrays: Set[str]) -> Function:
    """The function with stores into these arrays, as generated loops have them, meant for memory beyond the caches."""

    def change(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        made = tuple(with_body(node, change) for node in nodes)
        return tuple(
            replace(node, streaming=True)
            if isinstance(node, Assign) and node.reduction is None and node.target.variable in arrays
            else node
            for node in made
        )

    return replace(function, body=change(function.body))


def either(large: Function, plain: Function, *, least: Mapping[str, int]) -> Function:
    """`large` where its results have more than `least` bytes, and what it needs holds; else `plain`. Just `plain` when `large` has no store that bypasses the caches."""
    streamed = {node.target.variable for node in walk_nodes(large.body) if isinstance(node, Assign) and node.streaming}
    arrays = [v for v in large.arguments if v.name in streamed and not is_known(v.shape)]
    if not large.leads or not arrays or not _leads_are_known(large):
        return plain
    conditions = [_at_least(IndexValue(need, i64), 0) for need in large.needs]
    for array in arrays:
        conditions.append(_at_least(_product(array.shape), least[array.name] // array.dtype.itemsize + 1))
    leads = tuple(dict.fromkeys((*plain.leads, *large.leads)))
    condition = _all(conditions)
    small = sum(1 for _ in walk_nodes(plain.body)) <= SMALL
    body = None if small else shared(condition, large.body, plain.body)
    if body is None:
        body = (If(condition=condition, then=_apart(large, plain), otherwise=plain.body),)
    return replace(plain, body=body, leads=leads)


def where_worth(
    products: Sequence[Product],
    packed: Function,
    plain: Function,
    *,
    apart: Apart | None = None,
    unless: Sequence[Product] = (),
) -> Function:
    """`packed` where all of the products are within their limits, those of `unless` are not, and arrays lie `apart`, else `plain`."""
    packed = _leads_apart(packed, plain)
    limits = _hold(products)
    if unless:
        limits.append(_not(_all(_hold(unless))))
    first = [] if apart is None else _leads_at_start(apart, packed, plain)
    if first:
        limits.append(_differ(first, {v.name: v.dtype.itemsize for v in plain.arguments}))
    leads = tuple(dict.fromkeys((*plain.leads, *packed.leads, *first)))
    packed, plain = replace(packed, leads=leads), replace(plain, leads=leads)
    body = If(condition=_all(limits), then=_apart(packed, plain), otherwise=plain.body)
    return replace(plain, body=(body,))


def _hold(products: Sequence[Product]) -> list[Expr]:
    """What is asked of the products."""
    limits = [_at_least(_product(p.extents), p.least) for p in products if p.most is None or p.least]
    limits += [_at_most(_product(p.extents), p.most) for p in products if p.most is not None]
    limits += [_is_multiple(_product(p.extents), p.multiple) for p in products if p.multiple > 1]
    return limits + [_not(_is_multiple(_product(p.extents), p.no_multiple)) for p in products if p.no_multiple]


def _leads_at_start(apart: Apart, *functions: Function) -> list[Lead]:
    """Of each array how far its first line is, under the name that one of the functions has for it."""
    known = {(l.array, l.bytes): l for f in functions for l in f.leads if not l.row}
    taken = set[str]().union(*map(names_in, functions))
    return [
        known.get((array, apart.bytes)) or Lead(fresh(f"{array}_lead", taken), array, apart.bytes)
        for array in apart.arrays
    ]


def _differ(leads: Sequence[Lead], itemsizes: Mapping[str, int]) -> Expr:
    """Whether two of these are not as many bytes."""
    first, *others = (affine(lead.name) * itemsizes[lead.array] for lead in leads)
    unlike = [Apply("ne", (IndexValue(other - first, i64), Const(0, i64)), boolean) for other in others]
    return reduce(lambda a, b: Apply("or", (a, b), boolean), unlike)


def _apart(one: Function, other: Function) -> tuple[Node, ...]:
    """The body of `one` with names of its own for its local storage: emitters keep addresses by name for a whole function."""
    taken = names_in(one) | names_in(other)
    made = dict.fromkeys(node.variable.name for node in walk_nodes(one.body) if isinstance(node, Allocate))
    return rename_variables(one.body, {name: fresh(name, taken) for name in made})


def _leads_apart(one: Function, other: Function) -> Function:
    """`one` with names of its own for the leads of rows that `other` has under the same names for other loops."""
    taken = {lead.name for lead in (*one.leads, *other.leads)} | set(one.sizes)
    theirs = {lead.name: lead for lead in other.leads}
    names = {lead.name: fresh(lead.name, taken) for lead in one.leads if theirs.get(lead.name, lead) != lead}
    if not names:
        return one
    leads = tuple(replace(lead, name=names.get(lead.name, lead.name)) for lead in one.leads)
    return replace(one, body=substitute_nodes(one.body, {old: affine(new) for old, new in names.items()}), leads=leads)


def _all(conditions: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: Apply("and", (a, b), boolean), conditions)


def _not(condition: Expr) -> Expr:
    return Apply("not", (condition,), boolean)


def _at_least(value: Expr, limit: int) -> Expr:
    return Apply("ge", (value, Const(limit, i64)), boolean)


def _at_most(value: Expr, limit: int) -> Expr:
    return Apply("le", (value, Const(limit, i64)), boolean)


def _is_multiple(value: Expr, number: int) -> Expr:
    return Apply("eq", (Apply("mod", (value, Const(number, i64)), i64), Const(0, i64)), boolean)


def _product(extents: Sequence[Affine]) -> Expr:
    one: Expr = Const(1, i64)
    factors: list[Expr] = [IndexValue(extent, i64) for extent in extents] or [one]
    return reduce(lambda a, b: Apply("mul", (a, b), i64), factors)


def _leads_are_known(function: Function) -> bool:
    """Whether the loops that use a row's lead are still inside the loop that it belongs to, and that among those which its row names."""

    def visit(nodes: Sequence[Node], known: frozenset[str]) -> bool:
        for node in nodes:
            inner = known
            if isinstance(node, For):
                if not (node.lower.variables() | node.upper.variables()) & leads <= known:
                    return False
                inner = known | {node.variable}
                inner |= {
                    l.name
                    for l in function.leads
                    if l.inside == node.variable and all(s.variables() <= inner for s in l.row)
                }
            match node:
                case If():
                    bodies = [node.then, node.otherwise]
                case For() | Allocate() | Block():
                    bodies = [node.body]
                case _:
                    bodies = []
            if not all(visit(body, inner) for body in bodies):
                return False
        return True

    leads = {lead.name for lead in function.leads}
    at_start = {lead.name for lead in function.leads if not lead.inside}
    return visit(function.body, frozenset({*function.sizes, *at_start}))
