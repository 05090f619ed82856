"""Dimensions of a result that are put together afterwards are made together: `t[g, e] = ..; y[k] = t[k // 8, k % 8]` becomes `y[8*g + e] = ..`, and what reads t reads y.

Behind all rules that want results with plain indices (layouts/index_blocks.py): a place in memory is as good as another, and the copy would be a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyml.expressions import Expr, Read, Subscript, map_reads
from polyml.graph.edit import map_expressions, protected_names, replace_equations, with_name, with_ops
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.reuse.inline import is_elementwise
from polyml.graph.traverse import all_ops, equation_reads
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.digits import digits

__all__ = ["merge_dimensions"]


@dataclass(frozen=True, slots=True)
class _Merged:
    """What a tensor is copied into. radices: per dimension of the copy, the extents of the tensor's dimensions that are its digits, the outermost first."""

    copy: Tensor
    radices: tuple[tuple[int, ...], ...]

    def places(self, subscripts: Sequence[Affine]) -> tuple[Affine, ...]:
        """Where an element of the tensor is in the copy."""
        digits = iter(subscripts)
        found: list[Affine] = []
        for radices in self.radices:
            place = affine(0)
            for radix in radices:
                place = place * radix + next(digits)
            found.append(place)
        return tuple(found)


def merge_dimensions(graph: Graph) -> Graph:
    """The graph without such copies of what equations beside them make."""
    merged = {source: found for block in _blocks(graph.ops) for source, found in _copies(block).items()}
    if not merged:
        return graph
    fixed = _fixed(graph)
    # Making these earlier than written could overwrite what is still read.
    late = {item.final.name for item in graph.inputs if item.final is not None}
    late |= {c.next.name for op in all_ops(graph.ops) if isinstance(op, Loop) for c in op.carried}
    merged = {source: m for source, m in merged.items() if source not in fixed and m.copy.name not in late}
    copies = {m.copy.name for m in merged.values()}

    def made(equation: Equation) -> Sequence[Op]:
        if equation.result.name in copies:
            return ()
        changed = map_expressions(equation, lambda expr: map_reads(expr, read))
        if equation.result.name not in merged:
            return (changed,)
        copy, target = moved(equation.result.name, changed.target)
        return (replace(with_name(changed, copy), target=target),)

    def read(element: Read) -> Expr:
        if element.tensor not in merged:
            return element
        copy, places = moved(element.tensor, element.subscripts)
        return Read(copy.name, places, element.dtype)

    def moved(name: str, subscripts: Sequence[Subscript]) -> tuple[Tensor, tuple[Affine, ...]]:
        """Where an element of a tensor is in the end: its copy may be copied in turn."""
        into = merged[name]
        places = into.places([place for place in subscripts if isinstance(place, Affine)])
        return moved(into.copy.name, places) if into.copy.name in merged else (into.copy, places)

    return with_ops(graph, replace_equations(graph.ops, made))


def _blocks(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """The ops and those of each loop's body."""
    yield ops
    for op in ops:
        if isinstance(op, Loop):
            yield from _blocks(op.body)


def _copies(block: Sequence[Op]) -> dict[str, _Merged]:
    """By name, what tensors of the block are copied into that it makes, by targets of index arithmetic."""
    made: dict[str, Tensor] = {}
    found: dict[str, _Merged] = {}
    for op in block:
        if not isinstance(op, Equation):
            continue
        if isinstance(op.body, Read) and op.body.tensor in made and op.body.tensor not in found:
            merged = _merged(op, op.body, made[op.body.tensor])
            if merged is not None:
                found[op.body.tensor] = merged
        if op.base is None and op.only_if is None and all(isinstance(place, Affine) for place in op.target):
            made[op.result.name] = op.result
    return found


def _merged(copy: Equation, read: Read, source: Tensor) -> _Merged | None:
    """What the equation makes of the source; None where it is not all of it, with neighbouring dimensions put together."""
    if not is_elementwise(copy) or copy.only_if is not None:
        return None
    extents = [extent.constant if extent.is_constant else 0 for extent in source.shape]
    radices: list[tuple[int, ...]] = []
    at = 0
    for place, whole in zip(copy.target, copy.result.shape, strict=True):
        assert isinstance(place, Affine), "internal: the copy is not elementwise"
        first, size = at, 1
        while at < len(extents) and (at == first or size < whole.constant):
            size *= extents[at]
            at += 1
        parts = tuple(extents[first:at])
        if not size or affine(size) != whole or read.subscripts[first:at] != digits(place, parts):
            return None
        radices.append(parts)
    return _Merged(copy.result, tuple(radices)) if at == len(extents) and len(radices) < at else None


def _fixed(graph: Graph) -> set[str]:
    """Tensors that must stay as they are: by what loops and outputs take, by what is written upon, and by places that are computed."""
    found = protected_names(graph)
    for op in all_ops(graph.ops):
        match op:
            case Equation():
                found |= {tensor.name for tensor in (op.base, op.only_if) if tensor is not None}
                reads = equation_reads(op)
                found |= {read.tensor for read in reads if not all(isinstance(s, Affine) for s in read.subscripts)}
            case Loop():
                found |= {carried.initial.name for carried in op.carried}
            case _:
                found.add(op.flag.name)
    return found
