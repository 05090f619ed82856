"""Register tiles over windows: the taps of a small window written out, in the order of the places that they read, so that rows which share a place load it once.

Three rows of a filter over four rows of results read six rows, each as often as it is part of a window. Tap by tap, each of these is a load:

    for (r = 0; r < 3; r++) { y0 += x[p + r, q] * w[r]; y1 += x[p + 1 + r, q] * w[r]; .. }
    -> y0 += x[p, q] * w[0]; y0 += x[p + 1, q] * w[1]; y1 += x[p + 1, q] * w[0]; y0 += x[p + 2, q] * w[2]; y1 += x[p + 2, q] * w[1]; ..

Where a vector is as long as a line such loads cross lines, at the price of two, and take longer than the sums. Each sum keeps the order of its terms, unless a window has more coefficients than
registers hold beside the sums: then the taps along the rows are written out inside of a loop over the others, whose coefficients are loaded once for all rows (a 7x7 window 0.55 of the time, 5x5 0.86).

Coefficients may be vectors themselves, one for each lane, that all rows have in common: windows over images whose channels come last (5x5 0.5 of the time, since most arrays do not begin at a line).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from polyml.codegen.loops import Assign, For, Function, Node, Place
from polyml.codegen.map_loops import map_loops
from polyml.codegen.ranges import Ranges
from polyml.codegen.rewrite import subscript_variables
from polyml.expressions import Read, reads_of, substitute
from polyml.operation_weights import COSTLY, operations_of
from polyml.records import dataclass, replace
from polyml.schedule.cost import SHUFFLED
from polyml.schedule.register_tiles import MOST_TERMS, again
from polyml.sets.affine import Affine, affine

__all__ = ["write_taps"]

SHARED = 0.75
"""Loads that are left of those that there were, at most."""


def write_taps(function: Function, *, vector_registers: int, precise: bool = False) -> Function:
    """The function with loops over the taps of windows written out where sums in lanes, which stay put, read common vectors in different iterations. precise: each sum keeps its order."""

    def written(loop: For, ranges: Ranges, lanes: For | None) -> tuple[Node, ...] | None:
        if lanes is None or loop.kind != "sequential":
            return None
        return _written(loop, lanes.variable, 0 if precise else vector_registers)

    return map_loops(function, written)


@dataclass(frozen=True, slots=True)
class _Term:
    """A sum's term in one iteration, and the vector that it reads: what its subscripts have in common with those of other terms, and the place beside that."""

    node: Assign
    values: Mapping[str, Affine]
    base: tuple[str, tuple[object, ...]]
    place: tuple[int, ...]

    def written(self) -> Assign:
        return replace(self.node, value=substitute(self.node.value, self.values))


def _element(vector: Read, values: Mapping[str, Affine]) -> tuple[tuple[str, tuple[object, ...]], tuple[int, ...]]:
    """What it has in common with others, and the place beside that."""
    subscripts = [s.substitute(values) for s in vector.subscripts if isinstance(s, Affine)]
    return (vector.tensor, tuple(s.terms for s in subscripts)), tuple(s.constant for s in subscripts)


def _written(loop: For, lane: str, registers: int) -> tuple[Node, ...] | None:
    """All iterations, vector by vector, or those in one direction inside of the loops over the others; None where that is nothing to gain from, or not known.

    registers: beyond which sums may take another order; 0: never.
    """
    taps, sums = _taps_of_sums(loop, lane)
    found = [(taps, written) for written in (_shared(taps, sums, lane),) if written is not None]
    if registers and len(taps) > 1 and all(node.reduction == "sum" for node in sums):
        inside = [tap for tap in taps if all(tap.variable not in _bounds(other) for other in taps)]
        found += [([tap], written) for tap in inside if (written := _shared([tap], sums, lane)) is not None]
    if not found:
        return None
    inner, written = min(found, key=lambda one: (one[1].again(registers), one[1].left) if registers else (0.0, 0.0))
    nodes: tuple[Node, ...] = written.nodes
    for tap in reversed(taps):
        nodes = nodes if any(tap is own for own in inner) else (replace(tap, body=nodes),)
    return nodes


def _bounds(loop: For) -> frozenset[str]:
    """The variables that its bounds depend on."""
    return loop.lower.variables() | loop.upper.variables()


def _taps_of_sums(loop: For, lane: str) -> tuple[list[For], list[Assign]]:
    """The loops over the taps, and the sums inside of them, if there is nothing else."""
    taps, sums = _taps(loop)
    # Most loops are longer, which takes no look at their terms to see.
    if not sums or all(_rounds([tap], {}, MOST_TERMS) is None for tap in taps) or not _only_sums(loop.body, lane):
        return [], []
    # Sums that are scattered, each tap to a place of its own, share no register.
    scattered = {tap.variable for tap in taps} & {v for n in sums for v in subscript_variables(n.target.subscripts)}
    costly = any(operations_of(node.value) >= COSTLY for node in sums)
    return ([], []) if scattered or costly else (taps, sums)


@dataclass(frozen=True, slots=True)
class _Taps:
    """Taps written out. left: part of the loads; coefficients: what rows multiply by."""

    nodes: tuple[Assign, ...]
    left: float
    sums: int
    coefficients: int

    def again(self, registers: int) -> float:
        return again(self.coefficients, self.sums, registers) if self.coefficients else 0.0


def _shared(taps: list[For], sums: list[Assign], lane: str) -> _Taps | None:
    """The iterations of these loops, vector by vector; None where there are too many, or too little is shared."""
    rounds = _rounds(taps, {}, MOST_TERMS // len(sums)) if sums else None
    if rounds is None:
        return None
    vectors = _windows_of(sums, lane)
    if vectors is None or _are_apart(taps, vectors):
        return None
    # Rows of a register tile read the same ones.
    loaded = [{vector: _element(vector, values) for vector in dict.fromkeys(vectors)} for values in rounds]
    elements = [set(found.values()) for found in loaded]
    left = len(set().union(*elements)) / sum(map(len, elements))
    if left > SHARED:
        return None
    pairs = list(zip(sums, vectors, strict=True))
    terms = [_Term(n, values, *found[v]) for values, found in zip(rounds, loaded, strict=True) for n, v in pairs]
    nodes = _in_order(terms)
    if nodes is None:
        return None
    moving = {vector.tensor for vector in vectors}
    reads = {read for node in nodes for read in reads_of(node.value)}
    still = {r for r in reads if r.tensor not in moving or lane not in subscript_variables(r.subscripts)}
    return _Taps(nodes, left, len(sums), len(still))


def _are_apart(taps: list[For], vectors: list[Read]) -> bool:
    """Whether each tap moves a subscript by itself that all vectors have in common, so that no two iterations read one element: those of a product."""
    names = {tap.variable for tap in taps}
    common = [s for s, *others in zip(*(v.subscripts for v in vectors), strict=False) if all(s == o for o in others)]
    moved = [(s, s.variables() & names) for s in common if isinstance(s, Affine)]
    return all(any(own == {tap.variable} and s.stride(tap.variable) for s, own in moved) for tap in taps)


def _windows_of(sums: list[Assign], lane: str) -> list[Read] | None:
    """The vector of each sum's term that moves from row to row; where there are two, the other one is a coefficient for each lane (depthwise windows, channels last)."""
    found = [_vectors(node, lane) for node in sums]
    if all(len(reads) == 1 for reads in found):
        return [reads[0] for reads in found]
    by_tensor = [{read.tensor: read for read in reads} for reads in found]
    if any(len(own) != 2 or own.keys() != by_tensor[0].keys() for own in by_tensor):
        return None
    one, other = ([own[tensor] for own in by_tensor] for tensor in by_tensor[0])
    moved, kept = (len(set(reads)) for reads in (one, other))
    return None if moved == kept else one if moved > kept else other


def _taps(loop: For) -> tuple[list[For], list[Assign]]:
    """The loops over the taps, and the sums inside of them."""
    match loop.body:
        case (For() as inner,):
            loops, sums = _taps(inner)
            return [loop, *loops], sums
        case _:
            return [loop], [node for node in loop.body if isinstance(node, Assign)]


def _only_sums(nodes: tuple[Node, ...], lane: str) -> bool:
    """Whether there is one loop, or sums only, of terms with one vector each."""
    match nodes:
        case (For(kind="sequential", body=inner),):
            return _only_sums(inner, lane)
        case _:
            sums = [
                node for node in nodes if isinstance(node, Assign) and node.reduction is not None and not node.across
            ]
            return 0 < len(sums) == len(nodes) and all(0 < len(_vectors(node, lane)) < 3 for node in sums)


def _vectors(node: Assign, lane: str) -> list[Read]:
    """What the lanes read; nothing where some of it does not lie side by side."""
    reads = [read for read in dict.fromkeys(reads_of(node.value)) if lane in subscript_variables(read.subscripts)]
    return reads if all(_is_row(read, lane) for read in reads) else []


def _is_row(read: Read, lane: str) -> bool:
    *around, last = read.subscripts
    still = all(isinstance(s, Affine) and lane not in s.variables() for s in around)
    return still and isinstance(last, Affine) and 0 < (last.stride(lane) or 0) <= SHUFFLED


def _rounds(loops: list[For], around: dict[str, Affine], most: int) -> list[dict[str, Affine]] | None:
    """The variables' values in each innermost iteration; None where bounds are not known, or it is more than `most` iterations."""
    if not loops:
        return [around]
    loop, *inner = loops
    lower, upper = loop.lower.substitute(around), loop.upper.substitute(around)
    if not (lower.is_constant and upper.is_constant) or upper.constant - lower.constant > most * loop.step:
        return None
    found: list[dict[str, Affine]] = []
    for value in range(lower.constant, upper.constant, loop.step):
        rounds = _rounds(inner, {**around, loop.variable: affine(value)}, most - len(found))
        if rounds is None:
            return None
        found += rounds
    return found if len(found) <= most else None


def _in_order(terms: list[_Term]) -> tuple[Assign, ...] | None:
    """The terms place by place, from the one that the first sum begins with on; None where a sum would have another order."""
    own: dict[Place, list[_Term]] = {}
    for term in terms:
        own.setdefault(term.node.target, []).append(term)
    first = next(iter(own.values()))
    signs = [1 if last >= start else -1 for start, last in zip(first[0].place, first[-1].place, strict=True)]
    bases = {base: k for k, base in enumerate(dict.fromkeys(term.base for term in terms))}

    def key(term: _Term) -> tuple[int, ...]:
        return (*(sign * at for sign, at in zip(signs, term.place, strict=True)), bases[term.base])

    if any(len(term.place) != len(signs) for term in terms):
        return None
    if any(key(one) > key(other) for sums in own.values() for one, other in pairwise(sums)):
        return None
    return tuple(term.written() for term in sorted(terms, key=key))
