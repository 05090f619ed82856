"""How many of a row's numbers are below another one is found by bisection where the row ascends: `i[n] = sum[k](where(c[k] < u[n], 1, 0))`.

Whether it does is one pass over the row, at each call; those for which the comparison holds are its first ones then (or its last ones, for `>`), and some log2 K comparisons find how many they are, in place of K. Where the row does not ascend, or has a NaN, they are counted as written.

    ascends = all[k](c[k] <= c[k + 1])
    p0[n] = where(c[K/2 - 1] < u[n], K/2, 0);  p1[n] = p0[n] + where(c[p0[n] + K/4 - 1] < u[n], K/4, 0);  ..
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.dtypes import DType, boolean, i32, i64
from polyml.expressions import Apply, Const, Expr, Read, Subscript, reads_of, substitute
from polyml.graph.builder.parts import fill, variables_of
from polyml.graph.edit import new_tensor, with_name, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.reuse.inline import substituted
from polyml.graph.traverse import index_extents, is_cheap, tensors_of
from polyml.records import dataclass
from polyml.sets.affine import affine
from polyml.sets.boxes import box

__all__ = ["bisect_sorted"]

USES = 16
"""How often each number must be compared for the pass over them to pay."""

STEP = 5
"""Vectors of comparisons that take as long as one step of a bisection does for a lane: it reads its element by itself, and each step waits for the one before."""

_EXACT = {"f32": 1 << 24, "f64": 1 << 53}
"""Up to which number floats count."""


def bisect_sorted(graph: Graph, vector_bytes: int) -> Graph:
    """The graph with such counts bisected. vector_bytes: of a register, whose lanes count otherwise."""
    tensors: dict[str, Tensor] = {}
    made: list[Op] = []
    for op in graph.ops:
        count = _count(op, graph, vector_bytes) if isinstance(op, Equation) else None
        if count is not None:
            tensors = tensors or tensors_of(graph)
            made += _Bisection(count, graph, tensors).equations()
        else:
            made.append(op)
    return with_ops(graph, made)


@dataclass(frozen=True, slots=True)
class _Count:
    """An equation that counts for how many of `length` values of its reduced index a comparison holds. row: the side that knows the index. first: it holds for the first ones of an ascending row."""

    equation: Equation
    comparison: Apply
    row: Expr
    length: int
    first: bool

    def at(self, place: Subscript) -> Expr | None:
        """The comparison with the element at a place."""
        return substituted(self.comparison, {self.equation.reduced[0]: place})


def _count(equation: Equation, graph: Graph, vector_bytes: int) -> _Count | None:
    """What the equation counts, if that is worth it."""
    comparison = _comparison(equation)
    if comparison is None:
        return None
    (index,) = equation.reduced
    knows = [index in variables_of(side) for side in comparison.args]
    row = comparison.args[knows.index(True)] if sum(knows) == 1 else None
    if row is None or not is_cheap(row) or not any(index in variables_of(read) for read in reads_of(row)):
        return None
    extents = index_extents(equation)
    length = extents[index]
    every = {**dict(zip(equation.left, equation.result.shape, strict=True)), index: affine(length)}
    whole = box(equation.result.name, equation.indices, every, graph.sizes)
    if not equation.domain.intersect_params(graph.context).is_equal(whole.intersect_params(graph.context)):
        return None
    uses = prod(n for i, n in extents.items() if i != index and i not in variables_of(row))
    vectors = length * row.dtype.bits // (8 * vector_bytes)
    # Shorter numbers are counted in as short ones.
    exact = row.dtype.bits >= i32.bits and length <= _EXACT.get(equation.result.dtype.name, 1 << 31)
    if uses < USES or vectors < STEP * len(_halves(length)) or not exact:
        return None
    count = _Count(equation, comparison, row, length, (comparison.op in ("lt", "le")) == knows[0])
    return None if count.at(Const(0, i64)) is None else count


def _comparison(equation: Equation) -> Apply | None:
    """The comparison that holds for the terms which the equation counts."""
    plain = equation.reduce == "sum" and len(equation.reduced) == 1 and equation.is_plain and not equation.accumulate
    if not plain or equation.base is not None or equation.instances is not None or equation.padded or equation.apart:
        return None
    if not (equation.result.dtype.is_integer or equation.result.dtype.name in _EXACT):
        return None
    match equation.body:
        case Apply(op="select", args=(Apply() as found, Const(value=1), Const(value=0))):
            pass
        case Apply(op="cast", args=(Apply() as found,)) if found.dtype == boolean:
            pass
        case _:
            return None
    return found if found.op in ("lt", "le", "gt", "ge") else None


def _halves(length: int) -> list[int]:
    """By how much each step may go on: half of the places that are left, at last one."""
    found: list[int] = []
    while length > 1:
        found.append(length // 2)
        length -= length // 2
    return [*found, 1]


@dataclass(frozen=True, slots=True)
class _Bisection:
    count: _Count
    graph: Graph
    tensors: dict[str, Tensor]

    def equations(self) -> list[Equation]:
        """What makes the count: by steps, and as it is written where a flag says that the row does not ascend."""
        equation = self.count.equation
        wide = self.count.row.dtype.bits > i32.bits
        dtype, before = i64 if wide else i32, None
        ascends = self.ascends()
        flag = new_tensor(replace(ascends.result, label="unsorted"), self.tensors)
        found = list[Equation]()
        for half in _halves(self.count.length):
            found.append(self.step(dtype, half, before))
            before = self.element(found[-1].result)
        # Where the row does not ascend there is nothing to bisect.
        nothing = fill(new_tensor(found[-1].result, self.tensors), Const(0, dtype), equation.span)
        found[-1] = replace(found[-1], base=nothing.result, only_if=ascends.result, likely=True)
        bisected = found[-1].result
        every = dict(zip(equation.left, bisected.shape, strict=True))
        summed = equation.result if dtype == equation.result.dtype else new_tensor(bisected, self.tensors)
        again = replace(
            with_name(equation, summed),
            body=Apply("select", (self.count.comparison, Const(1, dtype), Const(0, dtype)), dtype),
            base=bisected,
            only_if=flag,
            likely=True,
            instances=box(summed.name, equation.left, every, self.graph.sizes),
            apart=True,
        )
        unsorted = Apply("not", (Read(ascends.result.name, (), boolean),), boolean)
        ahead = [ascends, fill(flag, unsorted, equation.span), replace(nothing, apart=True)]
        if summed is equation.result:
            return [*ahead, *found, again]
        body = Apply("cast", (self.element(summed),), equation.result.dtype)
        return [*ahead, *found, again, self.elementwise(equation.result, body)]

    def step(self, dtype: DType, half: int, before: Read | None) -> Equation:
        """How many are known to be counted after one step. before: after the one before."""
        first, last = self.count.first, self.count.length - half
        zero, more = Const(0, dtype), Const(half, dtype)
        if before is None:
            place: Subscript = affine(half - 1 if first else last)
        else:
            ends = (before, Const(half - 1, dtype)) if first else (Const(last, dtype), before)
            place = Apply("add" if first else "sub", ends, dtype)
        holds = self.count.at(place)
        assert holds is not None, "internal: an element that cannot be read"
        body: Expr = Apply("select", (holds, more, zero), dtype)
        if before is not None:
            body = Apply("add", (before, body), dtype)
        result = replace(self.count.equation.result, dtype=dtype)
        return self.elementwise(new_tensor(result, self.tensors), body)

    def elementwise(self, result: Tensor, body: Expr) -> Equation:
        left = self.count.equation.left
        every = dict(zip(left, result.shape, strict=True))
        domain = box(result.name, left, every, self.graph.sizes)
        return Equation(
            result=result,
            indices=left,
            domain=domain,
            target=tuple(map(affine, left)),
            body=body,
            span=self.count.equation.span,
        )

    def element(self, made: Tensor) -> Read:
        return Read(made.name, tuple(map(affine, self.count.equation.left)), made.dtype)

    def ascends(self) -> Equation:
        """Whether the row, or each of several, ascends."""
        equation, row = self.count.equation, self.count.row
        (index,) = equation.reduced
        known = variables_of(row)
        names = (*(i for i in equation.left if i in known), index)
        every = dict(zip(equation.left, equation.result.shape, strict=True))
        flag = new_tensor(Tensor("ascends", boolean, (), "ascends"), self.tensors)
        return Equation(
            result=flag,
            indices=names,
            domain=box(flag.name, names, {**every, index: affine(self.count.length - 1)}, self.graph.sizes),
            target=(),
            body=Apply("le", (row, substitute(row, {index: affine(index) + 1})), boolean),
            reduce="all",
            reduced=names,
            span=equation.span,
            apart=True,
        )
