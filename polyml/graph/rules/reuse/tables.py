"""Functions of index values become tables, where each value is used many times: `sum_n x[b, n] * exp(-2j * pi * f * n / N)` has an exponential per f and n, not per b, f and n.

The sum is a product of matrices then (a discrete Fourier or cosine transform, a Vandermonde system, positions that are encoded for each row of a batch).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, IndexValue, Read, substitute, walk
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import symbolic_box
from polyml.graph.rules.reuse.places import places_of
from polyml.graph.rules.sums.decays import decay_of
from polyml.graph.rules.sums.growth import growth_along
from polyml.graph.traverse import LARGEST_TABLE, UNKNOWN_EXTENT, is_cheap, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.shapes import is_known

__all__ = ["make_tables"]

_USES = 16
"""How often a value must be used for a table to pay."""

_OPERATIONS = 100_000
"""isl's operations for the question whether a sum's terms grow."""

_Made = dict[tuple[Expr, tuple[Affine, ...]], Tensor]
"""Tables by function and extents."""


def make_tables(graph: Graph) -> Graph:
    """The graph with such functions computed ahead of the equations that use them, each once per block of ops."""
    if not any(_candidates(op) for op in graph.ops if isinstance(op, Equation)):
        return graph
    taken = set(tensors_of(graph))
    made: _Made = {}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Equation):
            tables = _Tables(op, graph, taken, made)
            body = tables.replaced(op.body)
            ops += [*tables.ahead, op if body is op.body else replace(op, body=body)]
        else:
            ops.append(op)
    return graph if not made else replace(graph, ops=tuple(ops))


def _fades(equation: Equation, names: Set[str], known: isl.Set) -> bool:
    """Whether the function is a weight that a running sum multiplies with a factor for each element instead (rules/sums/running.py)."""
    along = [(d, i) for d, i in enumerate(equation.left) if i in names]
    if not names & {*equation.reduced} or equation.reduce != "sum":
        return False
    fading = [d for d, i in along if decay_of(equation.body, i, equation.reduced, 1) is not None]
    try:
        with operation_budget(_OPERATIONS, phase="tables"):
            return any(growth_along(equation, d, known) is not None for d in fading)
    except BudgetExhausted:
        return False


def _candidates(equation: Equation) -> bool:
    return any(isinstance(node, IndexValue) for node in walk(equation.body)) and not is_cheap(equation.body)


class _Tables:
    """The tables that one equation reads. made: those that there are."""

    def __init__(self, equation: Equation, graph: Graph, taken: set[str], made: _Made) -> None:
        self.equation, self.taken, self.made = equation, taken, made
        self.ahead: list[Equation] = []
        self.sizes = {*graph.sizes}
        self.known = graph.context
        self.ranges = _ranges(equation, graph) if _candidates(equation) else {}
        self.counts = {size: graph.examples.get(size, UNKNOWN_EXTENT) for size in graph.sizes}

    def replaced(self, expr: Expr) -> Expr:
        """The expression with functions of index values read from tables."""
        if not self.ranges or not isinstance(expr, Apply):
            return expr
        table = self.table(expr)
        if table is not None:
            return table
        return expr.with_args(map(self.replaced, expr.args))

    def table(self, expr: Apply) -> Read | None:
        nodes = list(walk(expr))
        # An integer division is not evaluated where nobody asked for it: what it divides by may be zero there.
        divides = any(isinstance(n, Apply) and n.op in ("floordiv", "mod") for n in nodes)
        if divides or is_cheap(expr) or not any(isinstance(n, IndexValue) for n in nodes):
            return None
        # Conditions on index values stay what they are: elements may be there for their sake alone (codegen/llvm/expression.py).
        places = None if expr.dtype == boolean else places_of(nodes, self.ranges, self.sizes)
        if not places:
            return None
        lows, shape = zip(*map(self.range_of, places), strict=True)
        names = frozenset[str]().union(*(place.variables() for place in places))
        # Where nobody knows how large a table will be it has to be a part of the result.
        if not is_known(shape) and not names <= {*self.equation.left}:
            return None
        # A sum over what a factor does not know leaves it out.
        reads = any(isinstance(n, Read) for n in nodes) or len(places) < len(names)
        around = [e for i, (_, e) in self.ranges.items() if not reads or i in names or i in self.equation.left]
        count, uses = (prod(e.evaluate(self.counts) for e in extents) for extents in (shape, around))
        if count * _USES > uses or count * expr.dtype.itemsize > LARGEST_TABLE:
            return None
        if len(places) < len(names) and _fades(self.equation, names, self.known):
            return None
        values: dict[str, Affine | int] = dict.fromkeys(names, 0)
        for d, (place, low) in enumerate(zip(places, lows, strict=True)):
            name, step = next((name, c) for name, c in place.terms if c in (1, -1) and isinstance(name, str))
            values[name] = (affine(f"i{d}") + low) * step
        function = substitute(expr, values)
        tensor = self.made.get((function, shape))
        if tensor is None:
            result = self.equation.result
            name = fresh_name(f"{result.name}_{expr.op}", self.taken)
            self.taken.add(name)
            tensor = Tensor(name, expr.dtype, shape, result.label)
            self.made[function, shape] = tensor
            self.ahead.append(fill(tensor, function, self.equation.span))
        return Read(tensor.name, tuple(p - low for p, low in zip(places, lows, strict=True)), expr.dtype)

    def range_of(self, place: Affine) -> tuple[int, Affine]:
        """The least value of an index or a sum of several, and how many there are up to the largest one."""
        if place.name is not None:
            return self.ranges[place.name]
        low, high = 0, 0
        for name, step in place.terms:
            assert isinstance(name, str), "internal: a sum of indices"
            first, extent = self.ranges[name]
            ends = step * first, step * (first + extent.constant - 1)
            low, high = low + min(ends), high + max(ends)
        return low, affine(high - low + 1)


def _ranges(equation: Equation, graph: Graph) -> dict[str, tuple[int, Affine]]:
    """The least value of each index, and how many there are to the largest one; empty where one of them is neither a number nor from 0 to below an expression in the sizes."""
    found: dict[str, tuple[int, Affine]] = {}
    for d, name in enumerate(equation.indices):
        low, high = equation.domain.dim_min_val(d), equation.domain.dim_max_val(d)
        if not (low.is_int() and high.is_int()):
            extents = symbolic_box(equation, graph, tensors_of(graph)) if graph.sizes else None
            return {} if extents is None else {i: (0, extent) for i, extent in extents.items()}
        found[name] = (low.to_python(), affine(high.to_python() - low.to_python() + 1))
    return found
