"""Sums that are added to zeros, one sum to each element, are the elements: `y[h - 1] += sum[r](x[h - r] * w[r])` on zeros becomes `y[h] = sum[r](x[h + 1 - r] * w[r])`; and so are maxima over minus infinities, and minima over infinities.

What is known of sums over windows (rules/windows/filters.py: padding, lanes along filters) is then known of a convolution whose terms a condition restricts, `if 0 <= h + r - 1 < H: y[h] += x[h + r - 1] * w[r]`, and of a gathered one (rules/windows/gathered.py).
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import substitute
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.windows.parts import is_filled, is_zero
from polyml.ops import REDUCTIONS
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_of, parameters_text

__all__ = ["sum_alone"]


def sum_alone(graph: Graph) -> Graph:
    """The graph whose sums need no zeros ahead of them."""
    ops = map_equations(graph.ops, lambda equation: _alone(equation, graph))
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _alone(equation: Equation, graph: Graph) -> Equation:
    if (
        equation.reduce not in ("sum", "max", "min")
        or not equation.reduced
        or not equation.accumulate
        or equation.base is None
    ):
        return equation
    if equation.instances is not None or equation.only_if is not None:
        return equation
    moves = _moves(equation)
    if moves is None or not _has_no_effect(equation, equation.base, graph):
        return equation
    values = {index: affine(index) - move for index, move in moves.items()}
    indices, domain = (*moves, *equation.reduced), equation.domain
    head, name = parameters_text(parameters_of(domain)), equation.result.name
    old = ", ".join(values.get(index, affine(index)).isl_text() for index in equation.indices)
    moved = domain.preimage_multi_aff(isl.MultiAff(f"{head}{{ {name}[{', '.join(indices)}] -> {name}[{old}] }}"))
    return replace(
        equation,
        indices=indices,
        domain=moved,
        target=tuple(map(affine, moves)),
        body=substitute(equation.body, values),
        accumulate=False,
        base=None,
    )


def _has_no_effect(equation: Equation, base: Tensor, graph: Graph) -> bool:
    """Whether the base is made of the reduction's identity."""
    if equation.reduce == "sum":
        return is_zero(base, graph)
    assert equation.reduce is not None
    identity = REDUCTIONS[equation.reduce].identity(base.dtype)
    return identity is not None and is_filled(base, identity, graph)


def _moves(equation: Equation) -> dict[str, int] | None:
    """How far each dimension of the target is from an index of the left side, by index and in the order of dimensions; None where it is anything else."""
    found: dict[str, int] = {}
    for place in equation.target:
        names = place.variables() if isinstance(place, Affine) else set()
        if len(names) != 1 or not isinstance(place, Affine):
            return None
        (name,) = names
        move = place - affine(name)
        if name in found or name not in equation.left or not move.is_constant:
            return None
        found[name] = move.constant
    return found if len(found) == len(equation.left) else None
