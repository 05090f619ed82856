"""Sums whose terms differ by the remainder of an index, beside what its quotient reads, are a sum for each remainder: two codes of four bits in a byte,

    y[m, n] = sum[k](x[m, k] * where(k % 2 == 0, q[n, k // 2] % 16, q[n, k // 2] // 16))   becomes   y_0[m, n] = sum[j](x[m, 2*j] * (q[n, j] % 16))
                                                                                                    y_1[m, n] = sum[j](x[m, 2*j + 1] * (q[n, j] // 16))
                                                                                                    y[m, n] = y_0[m, n] + y_1[m, n]

Which case a term is one of is known then, so that each computes its own, and q is read as it lies instead of one element for each lane. The sums are contractions of plain reads that the other rules see.

Likewise where the quotient says which case it is and what is read goes by the remainder (codes in halves: `where(k < H, q[n, k % H] % 16, q[n, k % H] // 16)`): a sum for each block of H terms (few_blocks.py).

The order of the terms changes, which the language allows; results that are stored shorter than they are computed stay, as parts would be rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from polyml.expressions import Apply, Expr, IndexValue, Read, reads_of, walk
from polyml.graph.builder.parts import fill
from polyml.graph.edit import replace_equations, with_ops
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.sums.few_blocks import sums_of_blocks
from polyml.graph.rules.sums.part_of_index import of_part
from polyml.graph.traverse import tensors_of
from polyml.sets.affine import Affine, FloorDiv, affine

__all__ = ["cases_of", "of_remainder", "sum_remainders"]

MOST = 8
"""Remainders, at most: each is a loop nest of its own. Numbers of one bit are eight in a byte."""


def sum_remainders(graph: Graph) -> Graph:
    """The graph with such sums taken apart."""
    tensors = tensors_of(graph)
    return with_ops(graph, replace_equations(graph.ops, lambda equation: _parts(equation, tensors)))


def _parts(equation: Equation, tensors: dict[str, Tensor]) -> Sequence[Op]:
    """The equation, or what it becomes."""
    if equation.reduce != "sum" or not equation.is_plain or equation.result.dtype.is_half:
        return [equation]
    if equation.base is not None or equation.instances is not None or equation.only_if is not None:
        return [equation]
    found = next(cases_of(equation, equation.reduced, MOST), None)
    if found is not None:
        index, count = found
        parts = [of_remainder(equation, index, count, remainder, tensors) for remainder in range(count)]
    else:
        parts = sums_of_blocks(equation, MOST, tensors)
    if not parts:
        return [equation]
    total: Expr | None = None
    for part in parts:
        read = Read(part.result.name, tuple(affine(f"i{d}") for d in range(len(part.target))), part.result.dtype)
        total = read if total is None else Apply("add", (total, read), read.dtype)
    assert total is not None, "internal: no parts"
    return [*parts, fill(equation.result, total, equation.span)]


def cases_of(equation: Equation, indices: Iterable[str], most: int) -> Iterator[tuple[str, int]]:
    """Which of the indices have cases, and how many: a read goes by the quotient, and a number, such as a condition's, is one for each remainder."""
    places = [s for read in reads_of(equation.body) for s in read.subscripts if isinstance(s, Affine)]
    numbers = list(dict.fromkeys(node.affine for node in walk(equation.body) if isinstance(node, IndexValue)))
    for index in indices:
        if not any(index in number.variables() for number in numbers):
            continue
        atoms = (atom for place in places for atom, _ in place.terms if isinstance(atom, FloorDiv))
        sizes = {atom.denominator for atom in atoms if atom.numerator.name == index}
        for size in sorted(size for size in sizes if size <= most):
            if any(index in number.variables() and _is_case(number, index, size) for number in numbers):
                yield index, size


def _is_case(number: Affine, index: str, size: int) -> bool:
    """Whether the number depends on the index's remainder alone."""
    block = size * affine(index)
    return all(index not in number.substitute({index: block + r}).variables() for r in range(size))


def of_remainder(equation: Equation, index: str, size: int, remainder: int, tensors: dict[str, Tensor]) -> Equation:
    """The equation, with a result of its own, over the points with that remainder; the index is their quotient."""
    return of_part(equation, index, size, remainder, f"{equation.result.name}_{remainder}", tensors)
