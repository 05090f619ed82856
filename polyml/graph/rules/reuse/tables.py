"""Functions of index values become tables, where each value is used many times: `sum_n x[b, n] * exp(-2j * pi * f * n / N)` has an exponential per f and n, not per b, f and n.

The sum is a product of matrices then (a discrete Fourier or cosine transform, a Vandermonde system, positions that are encoded for each row of a batch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyml.dtypes import boolean
from polyml.expressions import Apply, Expr, IndexValue, Read, substitute, walk
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.traverse import is_cheap, tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine

__all__ = ["make_tables"]

_USES = 16
"""How often a value must be used for a table to pay."""

_LARGEST = 64 << 20
"""Most bytes of a table."""


def make_tables(graph: Graph) -> Graph:
    """The graph with such functions computed ahead of the equations that use them, each once per block of ops."""
    if not any(_candidates(op) for op in graph.ops if isinstance(op, Equation)):
        return graph
    taken = set(tensors_of(graph))
    made: dict[tuple[Expr, tuple[int, ...]], Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Equation):
            tables = _Tables(op, taken, made)
            body = tables.replaced(op.body)
            ops += [*tables.ahead, op if body is op.body else replace(op, body=body)]
        else:
            ops.append(op)
    return graph if not made else replace(graph, ops=tuple(ops))


def _candidates(equation: Equation) -> bool:
    return any(isinstance(node, IndexValue) for node in walk(equation.body)) and not is_cheap(equation.body)


class _Tables:
    """The tables that one equation reads. made: those that there are, by function and extents."""

    def __init__(self, equation: Equation, taken: set[str], made: dict[tuple[Expr, tuple[int, ...]], Tensor]) -> None:
        self.equation, self.taken, self.made = equation, taken, made
        self.ahead: list[Equation] = []
        self.ranges = dict(_ranges(equation)) if _candidates(equation) else {}

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
        names = {name for node in nodes if isinstance(node, IndexValue) for name in node.affine.variables()}
        # An integer division is not evaluated where nobody asked for it: what it divides by may be zero there.
        fixed = not any(isinstance(n, Read) or (isinstance(n, Apply) and n.op in ("floordiv", "mod")) for n in nodes)
        if not fixed or not names or is_cheap(expr) or not names <= self.ranges.keys():
            return None
        # Conditions on index values stay what they are: elements may be there for their sake alone (codegen/llvm/expression.py).
        if expr.dtype == boolean:
            return None
        indices = [i for i in self.equation.indices if i in names]
        shape = tuple(self.ranges[i][1] - self.ranges[i][0] + 1 for i in indices)
        total = prod(high - low + 1 for low, high in self.ranges.values())
        if prod(shape) * _USES > total or prod(shape) * expr.dtype.itemsize > _LARGEST:
            return None
        values: dict[str, Affine | int] = {i: affine(f"i{d}") + self.ranges[i][0] for d, i in enumerate(indices)}
        function = substitute(expr, values)
        tensor = self.made.get((function, shape))
        if tensor is None:
            result = self.equation.result
            name = fresh_name(f"{result.name}_{expr.op}", self.taken)
            self.taken.add(name)
            tensor = Tensor(name, expr.dtype, tuple(map(affine, shape)), result.label)
            self.made[function, shape] = tensor
            self.ahead.append(fill(tensor, function, self.equation.span))
        return Read(tensor.name, tuple(affine(i) - self.ranges[i][0] for i in indices), expr.dtype)


def _ranges(equation: Equation) -> Iterator[tuple[str, tuple[int, int]]]:
    """The least and the largest value of each index; of none where one of them is no number."""
    found = []
    for d, name in enumerate(equation.indices):
        low, high = equation.domain.dim_min_val(d), equation.domain.dim_max_val(d)
        if not (low.is_int() and high.is_int()):
            return
        found.append((name, (int(low.to_python()), int(high.to_python()))))
    yield from found
