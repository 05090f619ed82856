"""By what the values of a function are told apart: `a[h] ** (i - j)` by h and the difference of i and j, of which there are few."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import gcd

from polyml.expressions import Expr, IndexValue, reads_of, walk
from polyml.sets.affine import Affine, affine

__all__ = ["places_of"]


def places_of(expr: Expr, ranges: Mapping[str, tuple[Affine, Affine]], sizes: Set[str]) -> list[Affine] | None:
    """Indices, and at most one sum of several of them, that say what the expression is; in the order of the indices. None where it reads elements that plain indices do not say.

    ranges: the least value of each index, and how many there are. A sum has one of its indices once, or once less, so that all of its values come about by that index alone.
    """
    subscripts = [s for read in reads_of(expr) for s in read.subscripts]
    if any(not isinstance(s, Affine) or not (s.is_constant or s.name in ranges) for s in subscripts):
        return None
    affines = {node.affine for node in walk(expr) if isinstance(node, IndexValue)}
    values = [_moving(value, sizes) for value in affines]
    alone = {s.name for s in subscripts if isinstance(s, Affine) and s.name is not None}
    alone |= {v.name for v in values if v is not None and v.name is not None}
    used = alone.union(*(value.variables() - sizes for value in affines))
    if not used <= ranges.keys():
        return None
    sums = {v for v in values if v is None or len(v.terms) > 1}
    order = [i for i in ranges if i in used]
    if len(sums) != 1 or (total := sums.pop()) is None:
        return [affine(i) for i in order]
    inside = total.variables()
    if inside & alone or not any(c in (1, -1) for _, c in total.terms):
        return [affine(i) for i in order]
    last = [i for i in order if i in inside][-1]
    upwards = total if (total.stride(last) or 0) > 0 else -total
    return [upwards if i == last else affine(i) for i in order if i == last or i not in inside]


def _moving(value: Affine, sizes: Set[str]) -> Affine | None:
    """The value without its constant, what sizes add and a common factor; upwards along its first index. None where it has quotients."""
    terms = [(name, c) for name, c in value.terms if name not in sizes]
    if any(not isinstance(name, str) for name, _ in terms):
        return None
    common = gcd(*(c for _, c in terms))
    if not common:
        return Affine()
    common = -common if terms[0][1] < 0 else common
    return Affine(tuple((name, c // common) for name, c in terms))
