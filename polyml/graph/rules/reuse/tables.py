"""Functions of index values become tables, where each value is used many times: `sum_n x[b, n] * exp(-2j * pi * f * n / N)` has an exponential per f and n, not per b, f and n.

The sum is a product of matrices then (a discrete Fourier or cosine transform, a Vandermonde system, positions that are encoded for each row of a batch). A function of a sum of an index and a loop's variable,
`u[b] ** (2*j - t)` in the steps of a binomial tree, has as many values as the sum: its table is made ahead of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

import islpy as isl

from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, Read, has_index_values, ops_in, reads_of, substitute
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.boxes import holds, symbolic_box
from polyml.graph.rules.reuse.places import places_of
from polyml.graph.rules.sums.decays import decay_of
from polyml.graph.rules.sums.growth import growth_along
from polyml.graph.traverse import LARGEST_TABLE, UNKNOWN_EXTENT, all_ops, is_cheap, results_of, tensors_of
from polyml.new_names import fresh_name
from polyml.operation_weights import operations_of
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.budget import BudgetExhausted, operation_budget
from polyml.sets.shapes import is_known

__all__ = ["make_tables"]

_USES = 16
"""How often a value must be used for a table to pay, whatever the function is, and in loops, where elements stay in cache and a table may not."""

_FETCHED = 4.0
"""What an element of a table costs whenever it goes to or from a cache, in the units of weight_of."""

_WORTH = 1 << 16
"""What a table of values that are used less often must save, for the sake of the time that it takes to compile, in the same units for an element."""

_ROW = 1024
"""Elements that a table of unknown length may have for each element of the result's rows."""

_OPERATIONS = 100_000
"""isl's operations for the question whether a sum's terms grow."""

_DIVISIONS = frozenset({"floordiv", "mod"})

_Made = dict[tuple[Expr, tuple[Affine, ...]], Tensor]
"""Tables by function and extents."""

_Ranges = Mapping[str, tuple[Affine, Affine]]
"""The least value of each index and of each variable of the loops around, and how many there are to the largest one."""


def make_tables(graph: Graph) -> Graph:
    """The graph with such functions computed ahead of the equations that use them, each once per block of ops."""
    if not any(_candidates(op) for op in all_ops(graph.ops) if isinstance(op, Equation)):
        return graph
    tensors = tensors_of(graph)
    made: _Made = {}
    ops: list[Op] = []
    for op in graph.ops:
        ahead: list[Equation] = []
        changed = _reading_tables(op, (), graph, tensors, made, ahead)
        ops += [*ahead, changed]
    return graph if not made else replace(graph, ops=tuple(ops))


def _reading_tables(
    op: Op, loops: tuple[Loop, ...], graph: Graph, tensors: dict[str, Tensor], made: _Made, ahead: list[Equation]
) -> Op:
    """The op, which stands in these loops, reading tables; those that are new go ahead of the outermost loop."""
    if isinstance(op, Equation) and _candidates(op):
        tables = _Tables(op, loops, graph, tensors, made)
        body = tables.replaced(op.body)
        ahead += tables.ahead
        return op if body is op.body else replace(op, body=body)
    if isinstance(op, Loop):
        inside = (*loops, op)
        block = renewed(op.body, (_reading_tables(o, inside, graph, tensors, made, ahead) for o in op.body))
        return op if block is op.body else replace(op, body=block)
    return op


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
    return has_index_values(equation.body) and not is_cheap(equation.body)


class _Tables:
    """The tables that one equation, which stands in these loops, reads. made: those that there are."""

    def __init__(
        self, equation: Equation, loops: tuple[Loop, ...], graph: Graph, tensors: dict[str, Tensor], made: _Made
    ) -> None:
        self.equation, self.graph, self.tensors, self.made = equation, graph, tensors, made
        self.ahead: list[Equation] = []
        self.sizes = {*graph.sizes}
        self.known = graph.context
        self.variables = {loop.variable for loop in loops}
        self.own = _made_in(loops[0]) if loops else set()
        self.ranges = _ranges_in_loops(equation, loops, self.sizes) if loops else _ranges(equation, graph)
        self.counts = {size: graph.examples.get(size, UNKNOWN_EXTENT) for size in graph.sizes}

    def replaced(self, expr: Expr) -> Expr:
        """The expression with functions of index values read from tables."""
        if not self.ranges or not isinstance(expr, Apply) or not has_index_values(expr):
            return expr
        table = self.table(expr)
        if table is not None:
            return table
        return expr.with_args(map(self.replaced, expr.args))

    def table(self, expr: Apply) -> Read | None:
        # An integer division is not evaluated where nobody asked for it: what it divides by may be zero there.
        divides = not _DIVISIONS.isdisjoint(ops_in(expr))
        if divides or is_cheap(expr) or not has_index_values(expr):
            return None
        # Conditions on index values stay what they are: elements may be there for their sake alone (codegen/llvm/expression.py).
        places = None if expr.dtype == boolean else places_of(expr, self.ranges, self.sizes)
        if not places:
            return None
        lows, shape = zip(*map(self.range_of, places), strict=True)
        names = frozenset[str]().union(*(place.variables() for place in places))
        if self.variables and not (
            self.is_of_sums(expr, names, len(places)) and self.grows_along(shape) and self.are_there(reads_of(expr))
        ):
            return None
        # A loop without iterations may be shorter than that.
        unsure = [e for p, e in zip(places, shape, strict=True) if len(p.terms) > 1 or p.variables() & self.variables]
        if not all(holds(extent, self.graph) for extent in unsure):
            return None
        if not is_known(shape) and not self.is_bounded(names - self.variables):
            return None
        # A sum over what a factor does not know leaves it out.
        reads = bool(reads_of(expr)) or len(places) < len(names)
        around = [e for i, (_, e) in self.ranges.items() if not reads or i in names or i in self.equation.left]
        count, uses = (prod(e.evaluate(self.counts) for e in extents) for extents in (shape, around))
        if not self.pays(expr, count, uses) or count * expr.dtype.itemsize > LARGEST_TABLE:
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
            name = fresh_name(f"{result.name}_{expr.op}", self.tensors)
            tensor = self.tensors[name] = Tensor(name, expr.dtype, shape, result.label)
            self.made[function, shape] = tensor
            self.ahead.append(fill(tensor, function, self.equation.span))
        return Read(tensor.name, tuple(p - low for p, low in zip(places, lows, strict=True)), expr.dtype)

    def is_bounded(self, names: frozenset[str]) -> bool:
        """Whether a table of which nobody knows how large it will be is a part of the result, or has a short row, of known length, for each element of one."""
        others = [self.ranges[name][1] for name in names if name not in self.equation.left]
        return is_known(others) and prod(extent.constant for extent in others) <= _ROW

    def pays(self, expr: Expr, values: int, uses: int) -> bool:
        """Whether a table of so many values costs less than the function wherever one is used."""
        if values * _USES <= uses:
            return True
        saved = operations_of(expr) * (uses - values) - _FETCHED * (uses + values)
        return not self.variables and saved >= _WORTH

    def is_of_sums(self, expr: Expr, names: Set[str], count: int) -> bool:
        """In loops: whether the function, of tensors that stay the same in them, has fewer places than names, of which the loops' variables are some and the others are of the result."""
        if any(read.tensor in self.own for read in reads_of(expr)) or count >= len(names):
            return False
        return bool(names & self.variables) and names - self.variables <= {*self.equation.left}

    def are_there(self, reads: Iterable[Read]) -> bool:
        """Whether the elements are there for all values of indices and variables: in loops the ranges are those without the conditions that an equation is under."""
        for read in reads:
            for subscript, extent in zip(read.subscripts, self.tensors[read.tensor].shape, strict=True):
                assert isinstance(subscript, Affine), "internal: a place that is a value"
                low, count = self.range_of(subscript) if subscript.name is not None else (subscript, affine(1))
                if not (holds(low, self.graph) and holds(extent - low - count, self.graph)):
                    return False
        return True

    def grows_along(self, shape: Sequence[Affine]) -> bool:
        """Whether the result grows with each size that the table grows with."""
        result = self.equation.result.shape
        return {s for extent in shape for s in extent.variables()} <= {
            s for extent in result for s in extent.variables()
        }

    def range_of(self, place: Affine) -> tuple[Affine, Affine]:
        """The least value of an index or a sum of several, and how many there are up to the largest one."""
        if place.name is not None:
            return self.ranges[place.name]
        low, high = affine(0), affine(0)
        for name, step in place.terms:
            assert isinstance(name, str), "internal: a sum of indices"
            first, extent = self.ranges[name]
            ends = first * step, (first + extent - 1) * step
            low, high = low + ends[step < 0], high + ends[step > 0]
        return low, high - low + 1


def _made_in(loop: Loop) -> set[str]:
    """The names of the tensors that differ from one of its iterations to the next, or that it makes."""
    ops = list(all_ops((loop,)))
    carried = {c.inner.name for op in ops if isinstance(op, Loop) for c in op.carried}
    return carried | {tensor.name for op in ops for tensor in results_of(op)}


def _ranges_in_loops(equation: Equation, loops: tuple[Loop, ...], sizes: Set[str]) -> _Ranges:
    """Of an equation in loops: an index is from 0 to below the extent of what it writes; empty where a loop's bounds are in other loops' variables."""
    found: dict[str, tuple[Affine, Affine]] = {}
    for loop in loops:
        first, last = (loop.start, loop.stop - 1) if loop.step > 0 else (loop.stop + 1, loop.start)
        if not first.variables() | last.variables() <= sizes:
            return {}
        found[loop.variable] = first, last - first + 1
    for place, extent in zip(equation.target, equation.result.shape, strict=True):
        if isinstance(place, Affine) and place.name in equation.left:
            found[place.name] = affine(0), extent
    return found


def _ranges(equation: Equation, graph: Graph) -> _Ranges:
    """The same of an equation in no loops; empty where one of them is neither a number nor from 0 to below an expression in the sizes."""
    found: dict[str, tuple[Affine, Affine]] = {}
    for d, name in enumerate(equation.indices):
        low, high = equation.domain.dim_min_val(d), equation.domain.dim_max_val(d)
        if not (low.is_int() and high.is_int()):
            extents = symbolic_box(equation, graph, tensors_of(graph)) if graph.sizes else None
            return {} if extents is None else {i: (affine(0), extent) for i, extent in extents.items()}
        found[name] = affine(low.to_python()), affine(high.to_python() - low.to_python() + 1)
    return found
