"""Elements that nobody reads are not summed: a tensor of which a box in the middle is read (`y[h] = z[h + 1]`: the rows of a transposed convolution that its padding takes away) has no more than that box.

What elementwise equations make is inlined where it is read; sums are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import islpy as isl

from polyml.expressions import Const, Expr, Read, map_reads, substitute
from polyml.graph.builder.parts import fill
from polyml.graph.edit import map_expressions, protected_names, with_ops
from polyml.graph.elements import elements_read
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.windows.parts import is_zero
from polyml.graph.traverse import equation_reads, read_names, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["crop_unread"]


@dataclass(frozen=True, slots=True)
class _Box:
    """The elements of a tensor that are read, as a tensor, and where they begin."""

    tensor: Tensor
    starts: tuple[int, ...]

    def at(self, read: Read) -> Read:
        places = (s - start for s, start in zip(read.subscripts, self.starts, strict=True) if isinstance(s, Affine))
        return Read(self.tensor.name, tuple(places), read.dtype)

    def limits(self, places: Iterable[str]) -> str:
        """That places, counted in the old tensor, are in the box."""
        ends = zip(places, self.starts, self.tensor.shape, strict=True)
        return " and ".join(f"{start} <= {place} < {(extent + start).isl_text()}" for place, start, extent in ends)


def crop_unread(graph: Graph) -> Graph:
    """The graph whose sums have the elements that are read, where sizes are known; what loops read or pass on stays."""
    makers = {op.result.name: op for op in graph.ops if isinstance(op, Equation) and _is_sum(op, graph)}
    for name in protected_names(graph):
        makers.pop(name, None)
    reads = _reads(graph, makers)
    tensors = tensors_of(graph) if reads else {}
    boxes = {name: box for name, found in reads.items() if (box := _box(makers[name].result, found, tensors))}
    if not boxes:
        return graph

    def moved(expr: Expr) -> Expr:
        return map_reads(expr, lambda read: boxes[read.tensor].at(read) if read.tensor in boxes else read)

    made: list[Op] = []
    for op in graph.ops:
        changed = map_expressions(op, moved) if isinstance(op, Equation) else op
        box = boxes.get(changed.result.name) if isinstance(changed, Equation) else None
        made += [changed] if box is None or not isinstance(changed, Equation) else _within(changed, box, tensors)
    return with_ops(graph, made)


def _is_sum(equation: Equation, graph: Graph) -> bool:
    """Whether the equation reduces something into elements by themselves, or adds to zeros."""
    if equation.reduce is None or equation.instances is not None or equation.only_if is not None:
        return False
    if not all(extent.is_constant for extent in equation.result.shape) or equation.domain.dim(isl.dim_type.param):
        return False
    if equation.base is None:
        return equation.is_plain and bool(equation.reduced)
    return equation.accumulate and all(isinstance(s, Affine) for s in equation.target) and is_zero(equation.base, graph)


def _reads(graph: Graph, makers: dict[str, Equation]) -> dict[str, list[tuple[Equation, Read]]]:
    """By tensor all of its reads, where each is one of an equation by affine subscripts, and none goes over all of it as it stands."""
    found: defaultdict[str, list[tuple[Equation, Read]]] = defaultdict(list)
    others = set[str]()
    for op in graph.ops:
        if not isinstance(op, Equation):
            others |= read_names(op).keys()
            continue
        reads = [read for read in equation_reads(op) if read.tensor in makers]
        others |= read_names(op).keys() - {read.tensor for read in reads}
        others |= {tensor.name for tensor in (op.base, op.only_if) if tensor is not None}
        for read in reads:
            found[read.tensor].append((op, read))
            if not all(isinstance(s, Affine) for s in read.subscripts) or _is_whole(read, makers[read.tensor], op):
                others.add(read.tensor)
    return {name: reads for name, reads in found.items() if name not in others}


def _is_whole(read: Read, maker: Equation, reader: Equation) -> bool:
    """Whether it is plain that all elements are read, without asking isl."""
    places = [s.name if isinstance(s, Affine) else None for s in read.subscripts]
    return tuple(map(affine, reader.left)) == reader.target == read.subscripts and (
        None not in places and reader.result.shape == maker.result.shape and reader.reduce is None
    )


def _box(tensor: Tensor, reads: list[tuple[Equation, Read]], tensors: dict[str, Tensor]) -> _Box | None:
    """What the reads have in their hull; None where that is the whole tensor, or nothing."""
    elements = [elements_read(equation, read) for equation, read in reads]
    if any(each.dim(isl.dim_type.param) or each.is_empty() for each in elements):
        return None
    starts: list[int] = []
    shape: list[Affine] = []
    for d in range(len(tensor.shape)):
        starts.append(min(each.dim_min_val(d).to_python() for each in elements))
        shape.append(affine(max(each.dim_max_val(d).to_python() for each in elements) + 1 - starts[-1]))
    if tuple(shape) == tensor.shape:
        return None
    return _Box(_tensor(tensor, shape, tensors), tuple(starts))


def _tensor(like: Tensor, shape: Iterable[Affine], tensors: dict[str, Tensor]) -> Tensor:
    tensor = replace(like, name=fresh_name(like.name, tensors), shape=tuple(shape))
    tensors[tensor.name] = tensor
    return tensor


def _within(equation: Equation, box: _Box, tensors: dict[str, Tensor]) -> list[Equation]:
    """The equation for the elements of the box alone, with zeros of their own where it adds to such."""
    old, new = equation.result.name, box.tensor.name
    places = [place for place in equation.target if isinstance(place, Affine)]
    inside = isl.Set(f"{{ {old}[{', '.join(equation.indices)}] : {box.limits(p.isl_text() for p in places)} }}")
    domain = equation.domain.intersect(inside)
    if equation.base is not None:
        zeros = _tensor(equation.base, box.tensor.shape, tensors)
        target = tuple(place - start for place, start in zip(places, box.starts, strict=True))
        domain = domain.set_tuple_name(new)
        made = replace(equation, result=box.tensor, domain=domain, target=target, base=zeros)
        return [fill(zeros, Const(0.0, equation.body.dtype), equation.span), made]
    starts = dict(zip(equation.left, box.starts, strict=True))
    begun = ", ".join(f"{index} - {starts.get(index, 0)}" for index in equation.indices)
    domain = domain.apply(isl.Map(f"{{ {old}[{', '.join(equation.indices)}] -> {new}[{begun}] }}"))
    body = substitute(equation.body, {index: affine(index) + start for index, start in starts.items() if start})
    return [replace(equation, result=box.tensor, domain=domain, body=body)]
