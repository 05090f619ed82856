"""Results that stay the same when two indices are exchanged, computed by half and mirrored: Gram matrices, covariances, kernels and distances of points to each other.

`y[a, b] = sum[n](x[n, a] * x[n, b])` adds up the same products for y[b, a]. Half of them are enough, over a domain that is no box (schedule/pivots/slanted.py); the other half is a copy, as long as the sum is short
against it. What is made of such a result element by element, and is symmetric itself, is made by half, too, and only the last one of a chain is mirrored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads, reads_of, substitute
from polyml.graph.diagonal_tiles import WholeTiles, whole_tiles
from polyml.graph.edit import protected_names
from polyml.graph.ir import Equation, Graph, Op, Tensor
from polyml.graph.rules.boxes import box_extents
from polyml.graph.traverse import equation_reads, read_names, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["mirror_symmetric"]

_Tiles = Mapping[int, WholeTiles | None]
"""Those along the diagonal, by the size of an element."""

LEAST_TERMS = 64
"""Of a sum: a copy of an element, one of each pair to another row, takes as long as so many products."""

LEAST_ROWS = 96
"""Where tiles along the diagonal are narrower ones: fewer rows are hardly more than these. And where threads share panels, of which fewer rows make few, each shorter than the one before."""

MOST_LEFT = 0.8
"""Where they are whole ones: of all tiles, those that are computed, at most."""

COPIED = 20
"""Products saved for each element of the result, at least, for its copy to pay where all is near."""

COMMUTATIVE = frozenset(("add", "mul", "min", "max", "eq", "ne", "and", "or"))


def mirror_symmetric(graph: Graph, registers: int = 0, vector_bytes: int = 0, *, shared: bool = False) -> Graph:
    """The graph with such results in two equations. registers, vector_bytes: vectors that the machine has, and the length of one; 0: not known. shared: whether threads share loops.

    Rewrite:
        y[a, b] = sum[n](x[n, a] * x[n, b])
        -> h[a, b] = sum[n](x[n, a] * x[n, b])   for b <= a;  y[a, b] = h[b, a]   for b > a, and h elsewhere

    Where register tiles along the diagonal cost less as a whole, h has all of their elements; y's are the copies.
    """
    tiles = {
        size: whole_tiles(registers, vector_bytes // size) if registers and vector_bytes >= size else None
        for size in (4, 8)
    }
    halves = _halves(graph, tiles, shared=shared)
    if not halves:
        return graph
    protected, readers = protected_names(graph), _readers(graph)
    while True:
        # A chain ends where somebody reads all of it: what another half reads stays a half only if nobody else reads it.
        kept = {n for n in halves if n not in protected and all(reader in halves for reader in readers.get(n, ("",)))}
        wrong = {n for n, op in halves.items() if op.reduce is None and not set(read_names(op)) & halves.keys() <= kept}
        if not wrong:
            break
        halves = {name: op for name, op in halves.items() if name not in wrong}
    tensors = dict(tensors_of(graph))
    ops: list[Op] = []
    for op in graph.ops:
        if not isinstance(op, Equation) or op.result.name not in halves:
            ops.append(op)
        elif op.result.name in kept:
            ops.append(_half(op, op.result, kept, tiles))
        else:
            name = fresh_name(f"{op.result.name}_half", tensors)
            tensors[name] = replace(op.result, name=name)
            ops += _half(op, tensors[name], kept, tiles), _mirrored(op, tensors[name])
    return replace(graph, ops=tuple(ops))


def _halves(graph: Graph, tiles: _Tiles, *, shared: bool) -> dict[str, Equation]:
    """The symmetric results: sums that are long enough, and what is made of them element by element."""
    found: dict[str, Equation] = {}
    for op in graph.ops:
        if not isinstance(op, Equation) or len(op.left) != 2 or not op.is_plain or op.padded or op.apart:
            continue
        if op.base is not None or op.instances is not None or op.only_if is not None:
            continue
        if op.reduce is None:
            follows = any(name in found for name in read_names(op))
        else:
            follows = op.reduce == "sum" and len(op.reduced) == 1 and not set(read_names(op)) & found.keys()
        dtype = op.result.dtype
        if not follows or not dtype.is_float or dtype.is_half or dtype is not op.body.dtype:
            continue
        extents = box_extents(op)
        if extents is None or extents[op.left[0]] != extents[op.left[1]]:
            continue
        rows = extents[op.left[0]]
        if op.reduce is not None and not _pays(rows, extents[op.reduced[0]], tiles[dtype.itemsize], shared=shared):
            continue
        # What follows a sum has the tiles of its elements.
        if any(found[name].result.dtype.itemsize != dtype.itemsize for name in read_names(op) if name in found):
            continue
        if _is_symmetric(op, found):
            found[op.result.name] = op
    return found


def _pays(rows: int, terms: int, tiles: WholeTiles | None, *, shared: bool) -> bool:
    """Whether what is not computed takes longer than its copy."""
    if terms < LEAST_TERMS:
        return False
    if tiles is None or shared:
        return rows >= LEAST_ROWS
    left = tiles.share(rows)
    return left <= MOST_LEFT and (1 - left) * terms >= COPIED


def _readers(graph: Graph) -> dict[str, set[str]]:
    """Who reads a tensor: the results of equations; "" for any other op."""
    found: dict[str, set[str]] = {}
    for op in graph.ops:
        reader = op.result.name if isinstance(op, Equation) else ""
        for name in read_names(op):
            found.setdefault(name, set()).add(reader)
    return found


def _half(op: Equation, result: Tensor, halves: set[str], tiles: _Tiles) -> Equation:
    """The equation for one half of its result, which reads the same half of others."""
    a, b = op.left
    place, whole = (affine(a), affine(b)), tiles[op.result.dtype.itemsize]
    within = f"{b} <= {a}" if whole is None else f"{b} < {whole.last_column(a)}"
    limit = isl.Set(f"{{ {op.result.name}[{', '.join(op.indices)}] : {within} }}")
    body = map_reads(op.body, lambda r: Read(r.tensor, place, r.dtype) if r.tensor in halves else r)
    return replace(op, result=result, body=body, domain=op.domain.intersect(limit).set_tuple_name(result.name))


def _mirrored(op: Equation, half: Tensor) -> Equation:
    """The result whose other half is that one, across the diagonal."""
    a, b = op.left
    rows = half.shape[0]
    domain = isl.Set(f"{{ {op.result.name}[{a}, {b}] : 0 <= {a} < {b} < {rows} }}")
    return Equation(
        result=op.result, indices=op.left, domain=domain, target=op.target, base=half, span=op.span,
        body=Read(half.name, (affine(b), affine(a)), half.dtype),
    )  # fmt: skip


# -- what is symmetric ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """An expression but for the order of what may change places: `text` of it or of its negative."""

    text: str
    negative: bool = False

    def __str__(self) -> str:
        return f"-{self.text}" if self.negative else self.text


def _is_symmetric(op: Equation, halves: Mapping[str, Equation]) -> bool:
    """Whether the body is the same for both orders of the left side's indices, arguments that may change places aside."""
    if not all(isinstance(s, Affine) for read in equation_reads(op) for s in read.subscripts):
        return False
    a, b = op.left
    exchanged = substitute(op.body, {a: affine(b), b: affine(a)})
    own = {(affine(a), affine(b)), (affine(b), affine(a))}
    if any(r.tensor in halves and r.subscripts not in own for r in reads_of(op.body)):
        return False
    return _form(op.body, halves) == _form(exchanged, halves)


def _form(expr: Expr, halves: Mapping[str, Equation]) -> _Form:
    match expr:
        case Const() | IndexValue():
            return _Form(f"{expr}:{expr.dtype}")
        case Read():
            places = sorted(map(str, expr.subscripts)) if expr.tensor in halves else map(str, expr.subscripts)
            return _Form(f"{expr.tensor}[{', '.join(places)}]")
        case Apply():
            return _applied(expr, halves)


def _applied(expr: Apply, halves: Mapping[str, Equation]) -> _Form:
    """Terms and factors in any order: that changes rounding, as sums in another order do."""
    args = [_form(arg, halves) for arg in _joined(expr)]
    negative = False
    match expr.op:
        case "neg":
            return replace(args[0], negative=not args[0].negative)
        case "mul" | "div":
            negative = sum(arg.negative for arg in args) % 2 == 1
            args = [replace(arg, negative=False) for arg in args]
        case "abs":
            args = [replace(args[0], negative=False)]
        case "sub":
            # x - y is -(y - x).
            negative = str(args[0]) > str(args[1])
    texts = [str(arg) for arg in args]
    if expr.op in COMMUTATIVE or expr.op == "sub":
        texts = sorted(texts)
    return _Form(f"{expr.op}:{expr.dtype}({', '.join(texts)})", negative)


def _joined(expr: Apply) -> list[Expr]:
    """The arguments; of sums and products of several all of them."""
    if expr.op not in ("add", "mul"):
        return list(expr.args)
    found: list[Expr] = []
    for arg in expr.args:
        found += _joined(arg) if isinstance(arg, Apply) and arg.op == expr.op else [arg]
    return found
