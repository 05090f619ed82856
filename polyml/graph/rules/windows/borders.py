"""Windows that meet a border (held inside by `min` and `max`, reflected, cyclic), or whose places are divided: the operand is stored once with its border around it, and windows are read from there.

`max[r, s](x[(i + r - 1) % N, min(max(j + s - 1, 0), M - 1)])` asks at each of nine uses which element its place stands for, and no vector of such reads is contiguous. But all nine follow `i + r` and `j + s`
alone: over these as indices it is a tensor that is little larger than x, and the reduction is one of plain windows. A copy of an operand is paid for by a few uses of each element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, prod

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, walk
from polyml.graph.builder.parts import fill
from polyml.graph.edit import replace_equations, with_ops
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.boxes import hull
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, FloorDiv, affine
from polyml.sets.shapes import is_known

__all__ = ["store_borders"]

_USES = 4
"""How often an element of the copy must be read for it to pay: a load, its case and a store each, and the reads that are left."""

_MOST, _OFTEN = 4, 64
"""A copy has at most so many times the elements, unless each of them is read so often."""

_INDEX_OPS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"})


def store_borders(graph: Graph) -> Graph:
    """The graph with such operands of reductions stored ahead of them."""
    tensors = tensors_of(graph)

    def change(equation: Equation) -> list[Equation]:
        if equation.reduce is None or not equation.reduced or not _bordered(equation.body):
            return [equation]
        extents = hull(equation)
        if extents is None:
            return [equation]
        copies: dict[Expr, tuple[Equation, Read]] = {}
        body = _stored(equation.body, equation, extents, tensors, copies)
        made = [copy for copy, _ in copies.values()]
        return [*made, replace(equation, body=body)] if made else [equation]

    return with_ops(graph, replace_equations(graph.ops, change))


def _bordered(body: Expr) -> bool:
    """Whether some read is chosen by places, or goes round: most bodies are none of these, and are not looked at any more."""
    return any(
        (isinstance(node, Apply) and node.op == "select") or (isinstance(node, Read) and _goes_round(node))
        for node in walk(body)
    )


def _goes_round(read: Read) -> bool:
    """Whether a place is a remainder or a quotient."""
    return any(isinstance(atom, FloorDiv) for s in read.subscripts if isinstance(s, Affine) for atom, _ in s.terms)


def _stored(
    node: Expr,
    equation: Equation,
    extents: Mapping[str, int],
    tensors: dict[str, Tensor],
    copies: dict[Expr, tuple[Equation, Read]],
) -> Expr:
    """The expression with reads of copies in the place of the largest parts that can be stored."""
    if isinstance(node, Read | Apply) and _is_choice(node):
        if node not in copies and (found := _copy(node, equation, extents, tensors)) is not None:
            copies[node] = found
        return copies[node][1] if node in copies else node
    if isinstance(node, Apply):
        return node.with_args(_stored(arg, equation, extents, tensors, copies) for arg in node.args)
    return node


def _is_choice(node: Expr) -> bool:
    """A read that goes round, or a select between reads (or numbers) by conditions on indices."""
    if isinstance(node, Read):
        return _goes_round(node) and all(isinstance(s, Affine) for s in node.subscripts)
    if not isinstance(node, Apply) or node.op != "select":
        return False
    condition, *branches = node.args
    return _is_about_places(condition) and all(
        _is_choice(branch)
        or isinstance(branch, Const)
        or (isinstance(branch, Read) and all(isinstance(s, Affine) for s in branch.subscripts))
        for branch in branches
    )


def _is_about_places(condition: Expr) -> bool:
    return all(
        isinstance(part, IndexValue | Const) or (isinstance(part, Apply) and part.op in _INDEX_OPS)
        for part in walk(condition)
    )


@dataclass(frozen=True, slots=True)
class _Direction:
    """`form`: what places follow, a sum of multiples of indices, and the values that it takes over the box."""

    form: Affine
    low: int
    high: int


def _copy(
    node: Read | Apply, equation: Equation, extents: Mapping[str, int], tensors: dict[str, Tensor]
) -> tuple[Equation, Read] | None:
    """The tensor over the directions that the node's places follow, and the read of it; None where it does not pay, or is no box of them."""
    forms = list(dict.fromkeys(_direction(part) for place in _places(node) for part in _linear_parts(place)))
    names = [name for form in forms for name in form.variables()]
    reads = [part for part in walk(node) if isinstance(part, Read)]
    if not reads or not set(names) <= extents.keys() or len(set(names)) < len(names):
        return None
    windows = [form for form in forms if len(form.terms) > 1 and form.variables() & set(equation.reduced)]
    sources = {read.tensor for read in reads}
    if not windows or not all(is_known(tensors[source].shape) for source in sources):
        return None
    directions = [_reached(form, equation) for form in forms]
    elements = prod(d.high - d.low + 1 for d in directions)
    largest = max(prod(extent.constant for extent in tensors[source].shape) for source in sources)
    uses = prod(extents.values()) // max(1, elements)
    if uses < (_USES if elements <= _MOST * largest else _OFTEN) or not _meets_all(equation, directions):
        return None
    name = fresh_name(f"{reads[0].tensor}_with_border", tensors)
    shape = tuple(affine(d.high - d.low + 1) for d in directions)
    tensor = tensors[name] = Tensor(name, node.dtype, shape, tensors[reads[0].tensor].label)
    value = _renamed(node, {d.form: affine(f"i{number}") + d.low for number, d in enumerate(directions)})
    return fill(tensor, value, None), Read(name, tuple(d.form - d.low for d in directions), node.dtype)


def _reached(form: Affine, equation: Equation) -> _Direction:
    """The direction as far as the equation's points go: padding beside a repeated tensor is none of them."""
    indices = ", ".join(equation.indices)
    values = equation.domain.apply(isl.Map(f"{{ {equation.result.name}[{indices}] -> [{form.isl_text()}] }}"))
    return _Direction(form, values.dim_min_val(0).to_python(), values.dim_max_val(0).to_python())


def _places(node: Expr) -> Iterator[Affine]:
    for part in walk(node):
        if isinstance(part, Read):
            yield from (s for s in part.subscripts if isinstance(s, Affine))
        elif isinstance(part, IndexValue):
            yield part.affine


def _linear_parts(place: Affine) -> Iterator[Affine]:
    """The sums of multiples of variables in it: its own, and those that are divided."""
    own = Affine(tuple((atom, c) for atom, c in place.terms if isinstance(atom, str)))
    if own.terms:
        yield own
    for atom, _ in place.terms:
        if isinstance(atom, FloorDiv):
            yield from _linear_parts(atom.numerator)


def _direction(form: Affine) -> Affine:
    """The form divided by what divides it, the first variable counted upwards."""
    return Affine(tuple((atom, c // _factor(form)) for atom, c in form.terms))


def _factor(form: Affine) -> int:
    common = gcd(*(c for _, c in form.terms))
    return common if form.terms[0][1] > 0 else -common


def _meets_all(equation: Equation, directions: list[_Direction]) -> bool:
    """Whether the equation's points come to each place of the box: a read is in bounds where the program reads."""
    places = ", ".join(d.form.isl_text() for d in directions)
    moved = equation.domain.apply(isl.Map(f"{{ {equation.result.name}[{', '.join(equation.indices)}] -> [{places}] }}"))
    inside = " and ".join(f"{d.low} <= d{n} <= {d.high}" for n, d in enumerate(directions))
    box = isl.Set(f"{{ [{', '.join(f'd{n}' for n in range(len(directions)))}] : {inside} }}")
    return bool(box.is_subset(moved))


def _renamed(node: Expr, values: Mapping[Affine, Affine]) -> Expr:
    """The expression over the copy's indices."""
    match node:
        case Read():
            return replace(
                node, subscripts=tuple(_moved(s, values) if isinstance(s, Affine) else s for s in node.subscripts)
            )
        case IndexValue():
            return replace(node, affine=_moved(node.affine, values))
        case Apply():
            return node.with_args(_renamed(arg, values) for arg in node.args)
        case _:
            return node


def _moved(place: Affine, values: Mapping[Affine, Affine]) -> Affine:
    own = Affine(tuple((atom, c) for atom, c in place.terms if isinstance(atom, str)))
    found = affine(place.constant)
    if own.terms:
        found += values[_direction(own)] * _factor(own)
    for atom, c in place.terms:
        if isinstance(atom, FloorDiv):
            found += (_moved(atom.numerator, values) // atom.denominator) * c
    return found
