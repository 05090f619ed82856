"""Elements that are moved to places between each other, `y[c, 2*p + a] = t[a, c, p]` for a < 2, are fetched from where they are: `y[c, i] = t[i % 2, c, i // 2]`.

Lanes along p would write every other element, and those along i write whole vectors, whose elements come from rows in turn (codegen/llvm/memory/zipped.py). Such are the phases of transposed convolutions (rules/windows/phases.py)
and the shuffles of sub-pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyml.expressions import reads_of, substitute, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.edit import with_ops
from polyml.graph.ir import Equation, Graph, Op
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.rules.windows.parts import meets_all
from polyml.sets.affine import Affine, affine
from polyml.sets.turns import MOST_ROWS

__all__ = ["fetch_interleaved"]


def fetch_interleaved(graph: Graph) -> Graph:
    """The graph whose elements that are moved so, within rows, are fetched; those of loops stay."""
    ops: list[Op] = [_fetched(op, graph) if isinstance(op, Equation) else op for op in graph.ops]
    changed = with_ops(graph, ops)
    # What was to be overwritten altogether is no base any more.
    return graph if changed is graph else remove_dead(changed)


def _fetched(equation: Equation, graph: Graph) -> Equation:
    if equation.reduce is not None or equation.only_if is not None or not equation.target:
        return equation
    last = equation.target[-1]
    if not isinstance(last, Affine) or len(last.variables()) != 2:
        return equation
    inner, outer = sorted(last.variables(), key=lambda index: last.stride(index) or 0)
    # Lanes along a row would read the same few elements again and again, or each of them three times: every lane a load of its own.
    step = last.stride(outer) or 0
    reads = [variables_in(read.subscripts) & {inner, outer} for read in reads_of(equation.body)]
    if {inner} in reads or (step & (step - 1) and {inner, outer} not in reads):
        return equation
    values: dict[str, Affine] = {}
    for dimension, place in enumerate(equation.target):
        found = _inverse(place, affine(f"i{dimension}"), equation) if isinstance(place, Affine) else None
        if found is None or found.keys() & values.keys():
            return equation
        values |= found
    if values.keys() != set(equation.indices) or not meets_all(equation, graph):
        return equation
    made = fill(equation.result, substitute(equation.body, values), equation.span)
    return replace(made, apart=equation.apart)


def _inverse(place: Affine, at: Affine, equation: Equation) -> Mapping[str, Affine] | None:
    """The indices, by the element of one dimension that they meet; None where that is not one value of each."""
    variables = sorted(place.variables())
    strides = {index: place.stride(index) for index in variables}
    if set(variables) - set(equation.indices):
        return None
    if len(variables) == 1:
        (index,) = variables
        return {index: at - place.constant} if strides[index] == 1 else None
    if len(variables) != 2:
        return None
    inner, outer = sorted(variables, key=lambda index: strides[index] or 0)
    step = strides[outer]
    if strides[inner] != 1 or step is None or not 1 < step <= MOST_ROWS:
        return None
    position = equation.indices.index(inner)
    low, high = equation.domain.dim_min_val(position), equation.domain.dim_max_val(position)
    if not (low.is_zero() and high.is_int() and high.to_python() == step - 1):
        return None
    counted = at - place.constant
    return {outer: counted // step, inner: counted % step}
