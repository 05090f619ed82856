"""Terms that are added by quotients or remainders of an index: `y[i // 4] += x[i]` becomes `y[b] += sum[r](x[4*b + r])`, and `y[i % 4] += x[i]` the sum over b.

Which terms an element has is a sum then, which has registers, lanes and threads of its own; added one by one, each term waits until the one before it is stored.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import variables_in
from polyml.graph.edit import map_equations
from polyml.graph.ir import Equation, Graph
from polyml.graph.rules.layouts.index_blocks import in_blocks, quotients_of
from polyml.sets.affine import Affine, FloorDiv

__all__ = ["sum_blocks"]

MOST = 3
"""Indices that are taken apart in one equation, at most."""


def sum_blocks(graph: Graph) -> Graph:
    """The graph whose terms that go to quotients are sums."""
    ops = map_equations(graph.ops, _summed)
    return graph if ops is graph.ops else replace(graph, ops=ops)


def _summed(equation: Equation) -> Equation:
    if equation.reduce is None or not equation.accumulate or equation.instances is not None:
        return equation
    if equation.only_if is not None or not all(isinstance(place, Affine) for place in equation.target):
        return equation
    atoms = [atom for place in equation.target if isinstance(place, Affine) for atom, _ in place.terms]
    divided = {name for atom in atoms if isinstance(atom, FloorDiv) for name in atom.variables()}
    if not divided:
        return equation
    quotients = quotients_of(equation)
    if not divided <= quotients.keys() & set(equation.left) or len(divided) > MOST:
        return equation
    for index in equation.left:
        if index in divided:
            equation = in_blocks(equation, index, quotients[index])
    return _with_sums(equation)


def _with_sums(equation: Equation) -> Equation:
    """The equation, whose indices that do not say where a term goes are summed over."""
    met = variables_in(equation.target)
    left = tuple(index for index in equation.left if index in met)
    reduced = (*(index for index in equation.left if index not in met), *equation.reduced)
    indices, name = (*left, *reduced), equation.result.name
    order = isl.Map(f"{{ {name}[{', '.join(equation.indices)}] -> {name}[{', '.join(indices)}] }}")
    return replace(equation, indices=indices, reduced=reduced, domain=equation.domain.apply(order))
