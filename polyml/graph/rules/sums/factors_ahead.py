"""Factors of a sum that go with the indices of one operand are multiplied into that once, ahead of the sum.

`y[n, m] = sum[k](x[n, k] * r[n] * g[k] * w[k, m])` multiplies with r and g for every m: each step of the sum has an instruction or two besides those that add products up, and elements of a plain product of matrices are packed, or
broadcast from memory, by one. With `t[n, k] = x[n, k] * r[n] * g[k]` it is one, for a pass over x: normalized rows, weights with a diagonal between them, gates, channels of images that are scaled, short numbers with their scales in any order of the factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.expressions import Expr, IndexValue, Read, factors_of, map_reads, plain_index, product_of, reads_of, walk
from polyml.graph.builder.parts import fill
from polyml.graph.edit import replace_equations, with_ops
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.reuse.ahead import has_all
from polyml.graph.traverse import estimated_bytes, index_extents, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["left_to_multiply", "multiply_ahead"]

USES, USES_SHORT, USES_FAR = 16, 64, 256
"""How often an element must be used for a pass over all of them to pay: one that stays in caches; of a short number, which is read in a quarter of the time; one that goes to memory and comes back."""

USES_BESIDE = 4
"""How often the elements of other operands must be used: a sum that reads them once waits for memory, and multiplies meanwhile."""

LAST_LEVEL = 8
"""The last level of caches holds so many times what a core keeps close, at least."""


def multiply_ahead(graph: Graph, cache: int) -> Graph:
    """The graph with such factors multiplied ahead. cache: bytes that a core keeps close."""
    rule = _Rule(tensors_of(graph), LAST_LEVEL * cache)
    return with_ops(graph, replace_equations(graph.ops, rule.ahead))


def left_to_multiply(equation: Equation, tensors: Mapping[str, Tensor], cache: int) -> int:
    """How many factors the equation's sum has when others are multiplied into them ahead of it."""
    return len(factors_of(_Rule(dict(tensors), LAST_LEVEL * cache).ahead(equation)[-1].body))


@dataclass(frozen=True, slots=True)
class _Group:
    """Factors by their places, and the read of the operand whose elements they go with, of which there are so many."""

    members: tuple[int, ...]
    read: Read
    elements: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rule at work. near: bytes that the last level of caches holds."""

    tensors: dict[str, Tensor]
    near: int

    def ahead(self, equation: Equation) -> list[Equation]:
        """The equation, or what it becomes: what goes with one operand after the other."""
        dtype = equation.body.dtype
        if equation.reduce != "sum" or not equation.reduced or equation.only_if is not None or dtype.is_half:
            return [equation]
        factors = factors_of(equation.body)
        if len(factors) < 3 or not (dtype.is_float or dtype.is_integer):
            return [equation]
        instances = prod(index_extents(equation).values())
        made: list[Equation] = []
        while len(factors) > 2:
            groups = self._groups(equation, factors, instances)
            group = min(groups, key=lambda g: (-len(g.members), g.elements), default=None)
            if group is None:
                break
            product, multiplied = self._multiplied([factors[f] for f in group.members], group.read, equation)
            made.append(multiplied)
            factors = [product, *(factor for f, factor in enumerate(factors) if f not in group.members)]
        return [*made, replace(equation, body=product_of(factors))] if made else [equation]

    def _groups(self, equation: Equation, factors: Sequence[Expr], instances: int) -> Iterator[_Group]:
        """What may be multiplied ahead of the equation, and is used often enough."""
        for host, factor in enumerate(factors):
            reads = list(reads_of(factor))
            if len(reads) != 1 or not all(isinstance(s, Affine) for s in reads[0].subscripts) or _has_index(factor):
                continue
            tensor = self.tensors[reads[0].tensor]
            places = _places(reads[0], equation)
            members = tuple(
                f for f, other in enumerate(factors) if f == host or self._goes_with(other, places, tensor.shape)
            )
            elements = self._elements(reads[0])
            uses = USES
            if tensor.dtype.itemsize < factor.dtype.itemsize and plain_index(reads[0].subscripts[-1]) in equation.left:
                uses = USES_SHORT
            if elements * factor.dtype.itemsize > self.near:
                uses = USES_FAR
            others = [r for f, other in enumerate(factors) if f not in members for r in reads_of(other)]
            streamed = max((self._elements(r) for r in others), default=0)
            if len(members) > 1 and elements * uses <= instances and streamed * USES_BESIDE <= instances and others:
                yield _Group(members, reads[0], elements)

    def _elements(self, read: Read) -> int:
        tensor = self.tensors[read.tensor]
        return estimated_bytes(tensor) // tensor.dtype.itemsize

    def _goes_with(self, factor: Expr, places: Mapping[str, int], shape: Sequence[Affine]) -> bool:
        """Whether all that a factor is made of is known where an element of a tensor of that shape is."""
        if _has_index(factor):
            return False
        subscripts = (
            (s, extent)
            for read in reads_of(factor)
            for s, extent in zip(read.subscripts, self.tensors[read.tensor].shape, strict=True)
        )
        return all(isinstance(s, Affine) and has_all(s, extent, places, shape) for s, extent in subscripts)

    def _multiplied(self, factors: Sequence[Expr], host: Read, equation: Equation) -> tuple[Read, Equation]:
        """The product for each element of the host, and how the equation reads it."""
        source = self.tensors[host.tensor]
        elements = tuple(affine(f"i{d}") for d in range(len(source.shape)))
        moved = {name: elements[d] for name, d in _places(host, equation).items()}

        def at_element(read: Read) -> Read:
            if read == host:
                return read.at(elements)
            return read.at(s.substitute(moved) if isinstance(s, Affine) else s for s in read.subscripts)

        dtype = equation.body.dtype
        name = fresh_name(f"{source.name}_scaled", self.tensors)
        tensor = self.tensors[name] = Tensor(name, dtype, source.shape, source.label)
        product = map_reads(product_of(factors), at_element)
        return Read(name, host.subscripts, dtype), fill(tensor, product, equation.span)


def _has_index(factor: Expr) -> bool:
    """Whether the factor has the value of an index, which no element of an operand says."""
    return any(isinstance(node, IndexValue) for node in walk(factor))


def _places(read: Read, equation: Equation) -> dict[str, int]:
    """The dimensions that indices of the equation go through by themselves."""
    names = [plain_index(subscript) for subscript in read.subscripts]
    return {name: d for d, name in enumerate(names) if name in equation.indices and names.count(name) == 1}
