"""Numbers per channel, where channels come last and are few: `y[h, w, c] = (x[h, w, c] - m[c]) / s[c]` becomes

    m_rows[w, c] = m[c];  s_rows[w, c] = s[c]
    y[h, w, c] = (x[h, w, c] - m_rows[w, c]) / s_rows[w, c]

Everything then lies side by side along a row of the image, whose indices become one (scop/joined_indices.py): lanes run along whole vectors, instead of along pixels, each of which reads and writes with gaps, or along three channels. The rows stay in cache, and are
read again for each row of the image. So are numbers per pixel, `y[d, w, c] = x[w, c, d] + v[w]`, but where two or three channels lie innermost: lanes along pixels shuffle as fast then as they load v_rows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyml.expressions import IndexValue, Read, map_reads, reads_of, variables_in, walk
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.traverse import tensors_of
from polyml.new_names import fresh_name
from polyml.sets.affine import Affine, affine

__all__ = ["repeat_rows"]

FEW = 4
"""Channels, at most: rows of more are lanes by themselves, or nearly so."""

LEAST_ROWS = 8
"""Rows of the result that read a repeated one, at least."""

LEAST_WORK = 1 << 15
"""Elements below which indices do not become one."""

SHARE = 4
"""The part of L2 that repeated rows may take is one in so many."""


def repeat_rows(graph: Graph, *, l2_bytes: int) -> Graph:
    """The graph with such equations on rows of numbers; those in loops stay as they are."""
    tensors = tensors_of(graph)
    made: list[Op] = []
    for op in graph.ops:
        made += _repeated(op, tensors, l2_bytes) if isinstance(op, Equation) else [op]
    return graph if len(made) == len(graph.ops) else replace(graph, ops=tuple(made))


def _repeated(equation: Equation, tensors: dict[str, Tensor], l2_bytes: int) -> list[Op]:
    short = _short_reads(equation, tensors)
    if short is None:
        return [equation]
    extents, reads = short
    along, inner = equation.indices[-2:]
    shape = (affine(extents[along]), affine(extents[inner]))
    if sum(read.dtype.itemsize for read in reads) * extents[along] * extents[inner] * SHARE > l2_bytes:
        return [equation]
    rows: list[Op] = []
    moved: dict[Read, Read] = {}
    for read in reads:
        name = fresh_name(f"{read.tensor}_rows", tensors)
        tensor = tensors[name] = Tensor(name, read.dtype, shape, name)
        names = {along: affine("i0"), inner: affine("i1")}
        places = tuple(s.substitute(names) for s in read.subscripts if isinstance(s, Affine))
        rows.append(replace(fill(tensor, Read(read.tensor, places, read.dtype), equation.span), apart=True))
        moved[read] = Read(name, (affine(along), affine(inner)), read.dtype)
    return [*rows, replace(equation, body=map_reads(equation.body, lambda read: moved.get(read, read)))]


def _short_reads(equation: Equation, tensors: dict[str, Tensor]) -> tuple[dict[str, int], list[Read]] | None:
    """The extents of an elementwise equation over pixels, and what it reads per channel or per column; None where it is another, or something does not lie along its rows."""
    if equation.reduce is not None or equation.base is not None or len(equation.indices) < 3:
        return None
    if equation.target != tuple(map(affine, equation.indices)):
        return None
    extents = box_extents(equation)
    along, inner = equation.indices[-2:]
    if extents is None or not 1 < extents[inner] <= FEW:
        return None
    outside = prod(extents[i] for i in equation.indices[:-2])
    if outside < LEAST_ROWS or outside * extents[along] * extents[inner] < LEAST_WORK:
        return None
    values = (node.affine for node in walk(equation.body) if isinstance(node, IndexValue))
    if any(value.variables() & {along, inner} for value in values):
        return None
    short: list[Read] = []
    long: list[Read] = []
    for read in dict.fromkeys(reads_of(equation.body)):
        if not all(isinstance(s, Affine) for s in read.subscripts):
            return None
        names = variables_in(read.subscripts) & {along, inner}
        if len(names) == 1 and names == variables_in(read.subscripts):
            short.append(read)
        elif names and not _lies_along(read, along, inner, tensors[read.tensor], extents[inner]):
            return None
        elif names:
            long.append(read)
    at_end = all(read.subscripts[-1] == affine(inner) for read in long)
    if at_end and extents[inner] < FEW and any(along in variables_in(read.subscripts) for read in short):
        return None
    return (extents, short) if short else None


def _lies_along(read: Read, along: str, inner: str, tensor: Tensor, count: int) -> bool:
    """Whether two neighbouring dimensions go along the pixels and the channels of a row, all of these."""
    used = [k for k, s in enumerate(read.subscripts) if isinstance(s, Affine) and s.variables() & {along, inner}]
    if len(used) != 2 or used[1] != used[0] + 1:
        return False
    first, last = (read.subscripts[k] for k in used)
    if not isinstance(first, Affine) or last != affine(inner) or tensor.shape[used[1]] != affine(count):
        return False
    return first.stride(along) == 1 and inner not in first.variables()
