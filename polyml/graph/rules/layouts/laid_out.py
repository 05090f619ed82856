"""Products whose indices lie so that lanes would be few, or a large operand would be read in pieces: operands and the result are laid out so that those of rows, of lanes and of the sum are neighbours.

    z[d, c, a, g, b] = sum[f, e](x[b, g, f, a, e] * y[g, e, c, f, d])   becomes   x_laid[g, f, e, a, b] = x[b, g, f, a, e]
                                                                                  z_laid[g, c, d, a, b] = sum[f, e](x_laid[g, f, e, a, b] * y[g, e, c, f, d])
                                                                                  z[d, c, a, g, b] = z_laid[g, c, d, a, b]

With five values of b three lanes of eight are idle; a and b side by side are one row of 70 (scop/joined_indices.py). What changes places does so once, in blocks that are transposed in registers. Which of the tensors do is
what costs least (rules/layouts/costs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod

from polyml.expressions import Apply, Read
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.rules.layouts.costs import (
    PLACED,
    Layout,
    Machine,
    Roles,
    block_copy_cost,
    copy_cost,
    is_laid_in_blocks,
    product_cost,
    roles_of,
    side_by_side_cost,
)
from polyml.graph.rules.layouts.operand_order import layout_in_order, layout_of_result
from polyml.graph.rules.layouts.turned_results import turned_order
from polyml.graph.traverse import indices_of, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["lay_out"]

GAIN = 0.87
"""Cost of a product with what lays its tensors out, relative to one with tensors as they lie, at most."""

FEW = 4
"""Rows, columns and terms, at least: with fewer, memory is what the product waits for."""

MOST_BYTES = 256 << 20
"""Most memory that what is laid out may take."""

LEAST_WORK = 1 << 15
"""Products below which it does not matter."""


def lay_out(
    graph: Graph, *, machine: Machine, strided: frozenset[str] = frozenset(), constants: frozenset[str] = frozenset()
) -> Graph:
    """The graph with such products in the layouts that suit them; those in loops stay as they are.

    Args:
        strided: inputs whose last dimension is not contiguous.
        constants: inputs that never change, whose panels are made once.
    """
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        made += (isinstance(op, Equation) and _changed(op, tensors, machine, strided, constants)) or (op,)
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _changed(
    equation: Equation,
    tensors: dict[str, Tensor],
    machine: Machine,
    strided: frozenset[str],
    constants: frozenset[str],
) -> tuple[Op, ...]:
    """The product in the layout that suits it, with the copies that this takes; nothing where the equation is to stay."""
    reads = _operands(equation)
    if reads is None or any(read.tensor in strided for read in reads):
        return ()
    extents = box_extents(equation)
    if extents is None or prod(extents.values()) < LEAST_WORK:
        return ()
    packed_once = reads[0].tensor in constants, reads[1].tensor in constants
    given = Layout(indices_of(reads[0]), indices_of(reads[1]), equation.left, packed_once)
    roles = roles_of(given)
    # A sum over an index that no operand has adds the same again.
    if roles is None or set(roles.reduced) != set(equation.reduced):
        return ()
    itemsize = equation.result.dtype.itemsize
    best = layout_in_order(given, roles, extents)
    turned = None
    if best is None and all(prod(extents[i] for i in part) >= FEW for part in (roles.left, roles.right, roles.reduced)):
        assert isinstance(equation.body, Apply), "internal: no product"
        turned = turned_order(
            equation, equation.body, extents, tensors, machine.cache, machine.vector_bytes, whole=True
        )
        best = _best(given, roles, turned, extents, itemsize, machine)
    if best is None and turned is None:
        best = layout_of_result(given, roles, extents, itemsize, machine)
    if best is None:
        return ()
    blocks = is_laid_in_blocks(best, given.result, roles, extents, itemsize, machine)
    return tuple(_ops(equation, reads, given, best, extents, tensors, blocks=blocks))


def _operands(equation: Equation) -> tuple[Read, Read] | None:
    """The two operands of a plain product."""
    plain = equation.is_plain and equation.base is None and equation.instances is None
    body = equation.body
    if equation.reduce != "sum" or not equation.reduced or not equation.left or not plain or equation.padded:
        return None
    if not isinstance(body, Apply) or body.op != "mul" or not body.dtype.is_float or body.dtype.itemsize < 4:
        return None
    reads = [arg for arg in body.args if isinstance(arg, Read) and indices_of(arg) and arg.dtype == body.dtype]
    return (reads[0], reads[1]) if len(reads) == 2 and reads[0].tensor != reads[1].tensor else None


def _best(
    given: Layout,
    roles: Roles,
    turned: tuple[str, ...] | None,
    extents: Mapping[str, int],
    itemsize: int,
    machine: Machine,
) -> Layout | None:
    """The layout that costs least; None where that is the given one, or it costs little more. turned: what the result is turned from by other means (rules/layouts/turned_results.py)."""
    cost = product_cost(given, extents, itemsize, machine)
    other = side_by_side_cost(given, extents, itemsize, machine)
    limit = GAIN * (cost if other is None else min(cost, other))
    if turned is not None:
        other = product_cost(replace(given, result=turned), extents, itemsize, machine)
        limit = min(limit, GAIN * (other + PLACED * prod(extents[i] for i in turned)))
    best: Layout | None = None
    for layout in _layouts(given, roles):
        moves = ((given.left, layout.left), (given.right, layout.right), (layout.result, given.result))
        in_blocks = is_laid_in_blocks(layout, given.result, roles, extents, itemsize, machine)
        cost = sum(copy_cost(old, new, extents, itemsize, machine) for old, new in (moves[:2] if in_blocks else moves))
        cost += block_copy_cost(given.result, extents, itemsize, machine) if in_blocks else 0.0
        moved = sum(prod(extents[i] for i in new) for old, new in moves if old != new)
        if moved * itemsize > MOST_BYTES:
            continue
        if cost < limit and (cost := cost + product_cost(layout, extents, itemsize, machine)) < limit:
            best, limit = layout, cost
    return best


def _layouts(given: Layout, roles: Roles) -> Iterator[Layout]:
    """Results whose rows and lanes are all of one operand's indices, in its order or that of the given result, and the given result; each operand as it lies, or laid out like the result. Of those that cost the same
    the first one is taken: in an operand's own order, so that it is read from end to end."""
    results = [given.result]
    for order in (True, False):
        ours, others = (
            tuple(i for i in (own if order else given.result) if i in part)
            for own, part in ((given.left, roles.left), (given.right, roles.right))
        )
        results += [(*roles.batch, *others, *ours), (*roles.batch, *ours, *others)]
    for result in dict.fromkeys(results):
        if result[-1] in roles.batch:
            continue
        left, right = (tuple(i for i in result if i in part) for part in (roles.left, roles.right))
        if result[-1] in roles.left:
            left, right = (*roles.batch, *roles.reduced, *left), (*roles.batch, *right, *roles.reduced)
        else:
            left, right = (*roles.batch, *left, *roles.reduced), (*roles.batch, *roles.reduced, *right)
        for own, other in product((given.left, left), (given.right, right)):
            yield replace(given, left=own, right=other, result=result)


def _ops(
    equation: Equation,
    reads: tuple[Read, Read],
    given: Layout,
    layout: Layout,
    extents: Mapping[str, int],
    tensors: dict[str, Tensor],
    *,
    blocks: bool,
) -> Iterator[Op]:
    """What computes the product in this layout. blocks: its result is laid out a block at a time, while a cache has it."""
    shown = equation.body
    assert isinstance(shown, Apply), "internal: no product"
    args: list[Read] = []
    for read, old, new in zip(reads, (given.left, given.right), (layout.left, layout.right), strict=True):
        if old == new:
            args.append(read)
            continue
        copied = _tensor(f"{read.tensor}_laid", new, extents, tensors[read.tensor], tensors)
        yield replace(_copy(copied, read.tensor, new, old, equation), apart=True)
        args.append(Read(copied.name, tuple(map(affine, new)), read.dtype))
    body = replace(shown, args=tuple(args))
    large = max((layout.left, layout.right), key=lambda order: prod(extents[i] for i in order))
    reduced = tuple(i for i in large if i in equation.reduced)
    result, apart = equation.result, layout.result != given.result
    if apart:
        result = _tensor(f"{result.name}_laid", layout.result, extents, result, tensors)
    indices = (*layout.result, *reduced)
    domain, target = box(result.name, indices, extents), tuple(map(affine, layout.result))
    made = replace(equation, result=result, indices=indices, domain=domain, target=target, body=body, reduced=reduced)
    yield replace(made, apart=apart and not blocks)
    if apart:
        yield _copy(equation.result, result.name, given.result, layout.result, equation)


def _tensor(
    name: str, order: tuple[str, ...], extents: Mapping[str, int], like: Tensor, tensors: dict[str, Tensor]
) -> Tensor:
    made = Tensor(fresh_name(name, tensors), like.dtype, tuple(affine(extents[i]) for i in order), like.label)
    tensors[made.name] = made
    return made


def _copy(result: Tensor, source: str, new: tuple[str, ...], old: tuple[str, ...], equation: Equation) -> Equation:
    """`result[new] = source[old]`."""
    names = {index: affine(f"i{k}") for k, index in enumerate(new)}
    return fill(result, Read(source, tuple(names[i] for i in old), result.dtype), equation.span)
