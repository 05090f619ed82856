"""Sums weighted by exponentials of scores less their maximum (a softmax and what it weighs), found by the structure of the statements.

    a[i, j] += q[i, d] * k[j, d]                  scores: a contraction, or none
    x[i, j] = ..                                  of each element by itself: scales, masks
    m[i] = max(m[i], g(x[i, j]))
    e[i, j] = exp(f(x[i, j], m[i]))               f moves with m by -c, with g by c > 0
    s[i] += e[i, j];  y[i, c] += e[i, j] * v[j, c]   of degree one in exponentials
    z[i, c] = y[i, c] / s[i]

Such sums may be taken tile by tile of j: what was summed up with another maximum m' is multiplied by exp(c * (m' - m)) (gpu/rescaled_tiles.py). No exponential overflows that would not
with the last maximum, as f is no larger while the maximum of fewer tiles stands in it.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al., "FlashAttention" (NeurIPS 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Expr, IndexValue, Read, plain_indices, reads_of, substitute, walk
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.schedule.boxes import box_of
from polyml.schedule.gpu.rescaled_degrees import Factor, degree_of
from polyml.schedule.written import in_order
from polyml.scop.scop import Access, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["Weighted", "find_weighted"]

Roles = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """A region of that structure. All statements have the same names for the same indices.

    rows: indices of a maximum; key: what it is taken over; depth: of the scores' contraction (None: there is none); column: of the weighted sums. extents: of each.
    product: the scores' contraction. scores, weights: statements of elements before and after the maximum, in order; after: those of results. sums: of weights alone. result: the weighted
    sums, which are multiplied or divided by `scale` (op, value) where weights were by something of their row. slope: c.
    """

    rows: tuple[str, ...]
    key: str
    depth: str | None
    column: str
    extents: Mapping[str, Affine]
    product: Statement | None
    scores: tuple[Statement, ...]
    maximum: Statement
    slope: float
    weights: tuple[Statement, ...]
    sums: tuple[Statement, ...]
    result: Statement
    after: tuple[Statement, ...]
    scale: tuple[str, Expr] | None


def find_weighted(scop: Scop) -> Weighted | None:
    """The structure of a region; None where it has another one."""
    found = [s for s in scop.statements.values() if s.kind == "update" and s.reduction == "max" and s.argument is None]
    if len(found) != 1 or not in_order(scop):
        return None
    return _Search(scop, found[0]).run()


def _names(access: Access) -> tuple[str, ...] | None:
    """The indices that are the subscripts; None where something else is among them."""
    found = plain_indices(access.subscripts)
    names = tuple(name for name in found if name is not None)
    return names if len(names) == len(found) == len(set(names)) else None


class _Search:
    def __init__(self, scop: Scop, maximum: Statement) -> None:
        self.scop, self.maximum = scop, maximum
        self.dims: dict[str, tuple[str, ...]] = {}  # of arrays that the region makes
        self.roles: dict[str, Roles] = {}
        self.made = {s.target.array for s in scop.statements.values()}
        self.taken = {*scop.sizes}
        self.depth: str | None = None
        self.column: str | None = None

    def run(self) -> Weighted | None:
        names, s = _names(self.maximum.target), self.maximum
        reduced = [] if names is None else [i for i in s.indices if i not in names]
        if names is None or len(reduced) != 1 or not names:
            return None
        self.rows, self.key = names, reduced[0]
        self.dims[s.target.array] = names
        self.roles[s.name] = {i: i for i in s.indices}
        self.taken |= {*s.indices}
        if not self._named():
            return None
        extents: dict[str, Affine] = {}
        for name, own in self.roles.items():
            box = self._box(self.scop.statements[name])
            if box is None or any(extents.setdefault(own[i], extent) != extent for i, extent in box.items()):
                return None
        statements = {name: self._renamed(self.scop.statements[name]) for name in self.scop.statements}
        return self._sorted(statements, extents) if self._in_place(statements) else None

    def _box(self, s: Statement) -> dict[str, Affine] | None:
        """The extents of its indices. Scores that nobody needs may be made all the same, where operands have what these read: they are left out of the maximum."""
        box = box_of(self.scop, s)
        if box is not None or s.kind != "update" or self.depth not in self.roles[s.name].values():
            return box
        found: dict[str, Affine] = {}
        for read in reads_of(s.value):
            for subscript, extent in zip(read.subscripts, self.scop.arrays[read.tensor].shape, strict=True):
                name = subscript.name if isinstance(subscript, Affine) else None
                if name is None or found.setdefault(name, extent) != extent:
                    return None
        limits = " and ".join(f"0 <= {i} < {extent.isl_text()}" for i, extent in found.items())
        whole = isl.Set(f"{parameters_text(self.scop.sizes)}{{ {s.name}[{', '.join(s.indices)}] : {limits} }}")
        return found if found.keys() == {*s.indices} and s.domain.is_subset(whole) else None

    def _named(self) -> bool:
        """Gives each statement's indices the maximum's names, by what it shares with others; whether all have some."""
        while True:
            before = (len(self.dims), sum(map(len, self.roles.values())))
            for s in self.scop.statements.values():
                own = self.roles.setdefault(s.name, {})
                accesses = [s.target, *(Access(r.tensor, r.subscripts) for r in reads_of(s.value))]
                for access in accesses:
                    names = _names(access)
                    if names is not None and access.array in self.dims:
                        own |= dict(zip(names, self.dims[access.array], strict=True))
                left, names = [i for i in s.indices if i not in own], _names(s.target)
                if names is None:
                    return False
                if len(left) == 1 and set(self.rows) == set(own.values()) and self._like_maximum(s, left[0]):
                    own[left[0]] = self.key
                elif len(left) == 1 and len(own) == len(self.rows) + 1 and self.key in own.values():
                    own[left[0]] = self._beside(left[0], inside=left[0] not in names)
                elif not left and s.target.array not in self.dims:
                    self.dims[s.target.array] = tuple(own[i] for i in names)
                    for access in accesses:
                        names = _names(access)
                        if names is not None and access.array in self.made:
                            self.dims.setdefault(access.array, tuple(own[i] for i in names))
                elif not left:
                    for access in accesses:
                        names = _names(access)
                        if names is not None and access.array in self.made:
                            self.dims.setdefault(access.array, tuple(own[i] for i in names))
            if before == (len(self.dims), sum(map(len, self.roles.values()))):
                break
        return all(self.roles[s.name].keys() == {*s.indices} for s in self.scop.statements.values())

    def _like_maximum(self, s: Statement, index: str) -> bool:
        """Whether the statement reads an input where the maximum does, if that index is the key."""
        own = {i: affine(role) for i, role in {**self.roles[s.name], index: self.key}.items()}
        reads = {substitute(r, own) for r in reads_of(s.value) if r.tensor not in self.made}
        return any(r in reads and _names(Access(r.tensor, r.subscripts)) for r in reads_of(self.maximum.value))

    def _beside(self, index: str, *, inside: bool) -> str:
        """The name of the index that a contraction has beside the rows and the key."""
        known = self.depth if inside else self.column
        if known is not None:
            return known
        name = underscored(index, self.taken)
        self.taken.add(name)
        if inside:
            self.depth = name
        else:
            self.column = name
        return name

    def _renamed(self, s: Statement) -> Statement:
        own = {i: affine(role) for i, role in self.roles[s.name].items()}
        subscripts = tuple(x.substitute(own) if isinstance(x, Affine) else x for x in s.target.subscripts)
        indices = tuple(self.roles[s.name][i] for i in s.indices)
        return replace(s, indices=indices, target=Access(s.target.array, subscripts), value=substitute(s.value, own))

    def _in_place(self, statements: Mapping[str, Statement]) -> bool:
        """Whether each element that the region makes is used where its indices say, by statements that come later, and written once."""
        done: set[str] = set()
        writers: dict[str, list[str]] = {}
        for s in statements.values():
            for read in reads_of(s.value):
                if read.tensor in self.made:
                    if read.tensor not in done or read.subscripts != tuple(map(affine, self.dims[read.tensor])):
                        return False
                    if read.tensor == s.target.array:
                        return False
            if s.argument is not None or s.target.subscripts != tuple(map(affine, self.dims[s.target.array])):
                return False
            writers.setdefault(s.target.array, []).append(s.kind)
            if s.kind != "init":
                done.add(s.target.array)
        inputs = {a.name for a in self.scop.arrays.values() if a.kind in ("input", "inout")}
        orders = (["assign"], ["copy"], ["init", "update"])
        return not inputs & self.made and all(kinds in orders for kinds in writers.values())

    def _sorted(self, statements: Mapping[str, Statement], extents: Mapping[str, Affine]) -> Weighted | None:
        """The statements by what they are; None where one of them is nothing of that."""
        if self.column is None:
            return None
        sorting = _Sorting(self, self.column)
        for s in statements.values():
            if s.kind != "init" and s.name != self.maximum.name and not sorting.takes(s):
                return None
        maximum, product, result = statements[self.maximum.name], sorting.product, sorting.result
        if result is None or len(sorting.slopes) != 1:
            return None
        early = {s.target.array for s in sorting.scores} | ({product.target.array} if product is not None else set())
        if not {r.tensor for r in reads_of(maximum.value) if r.tensor in self.made} <= early:
            return None
        return Weighted(
            rows=self.rows, key=self.key, depth=self.depth if product is not None else None, column=self.column, extents=extents, product=product,
            scores=tuple(sorting.scores), maximum=maximum, slope=sorting.slopes.pop(), weights=tuple(sorting.weights),
            sums=tuple(sorting.sums), result=result, after=tuple(sorting.after), scale=sorting.scale,
        )  # fmt: skip

    def factor(self, slopes: set[float]) -> Factor:
        maximum = self._renamed(self.maximum)
        read = Read(maximum.target.array, maximum.target.subscripts, self.scop.arrays[maximum.target.array].dtype)
        return Factor(read, maximum.value, slopes)


class _Sorting:
    """Statements one after the other by their places among weighted sums. seen: arrays known when all keys have been seen, beside the maximum; degrees: of what belongs to a row and a key; scales: of weights."""

    def __init__(self, search: _Search, column: str) -> None:
        self.search, self.column = search, column
        self.rows, self.key = {*search.rows}, search.key
        self.maximum = search.maximum.target.array
        self.product: Statement | None = None
        self.result: Statement | None = None
        self.scores: list[Statement] = []
        self.weights: list[Statement] = []
        self.sums: list[Statement] = []
        self.after: list[Statement] = []
        self.seen: set[str] = set()
        self.degrees: dict[str, int] = {}
        self.slopes: set[float] = set()
        self.scales: dict[str, tuple[str, Expr]] = {}
        self.scale: tuple[str, Expr] | None = None

    def takes(self, s: Statement) -> bool:
        """Puts the statement where it belongs; whether there is such a place."""
        indices, depth = {*s.indices}, self.search.depth
        local = self.search.scop.arrays[s.target.array].kind == "local"
        if s.kind == "update" and s.reduction == "sum" and depth in indices and self.column not in indices:
            return local and self._takes_product(s)
        if s.kind == "update" and s.reduction == "sum" and self.key in indices and depth not in indices:
            return self._takes_sum(s)
        if s.kind in ("assign", "copy") and indices == {*self.rows, self.key} and local:
            return self._takes_element(s)
        if s.kind in ("assign", "copy") and indices in (self.rows, {*self.rows, self.column}):
            return self._takes_last(s)
        return False

    def _takes_product(self, s: Statement) -> bool:
        if self.product is not None or _arrays(s) & self.search.made:
            return False
        self.product = s
        return True

    def _takes_sum(self, s: Statement) -> bool:
        """A sum over the keys, of a row or of each of its columns, in which each term has the factor once."""
        scaled, beside = _arrays(s) & self.scales.keys(), self.column in s.indices
        if scaled and (not beside or len(scaled) > 1):
            return False
        if _arrays(s) & self.seen or self._degree(s) != 1:
            return False
        if beside and (self.result is not None or {*s.indices} != {*self.rows, self.key, self.column}):
            return False
        if beside:
            self.result = s
            self.scale = self.scales[next(iter(scaled))] if scaled else None
        else:
            self.sums.append(s)
        self.seen.add(s.target.array)
        return True

    def _takes_element(self, s: Statement) -> bool:
        """Something of a row and a key: a score, or a weight."""
        peeled = _peeled(s, self.seen, self.key)
        if peeled is not None:
            s, self.scales[s.target.array] = peeled
        degree = self._degree(s)
        if degree is None or _arrays(s) & (self.scales.keys() | self.seen):
            return False
        self.degrees[s.target.array] = degree
        (self.weights if degree else self.scores).append(s)
        return True

    def _takes_last(self, s: Statement) -> bool:
        """What follows from a row's maximum and sums."""
        if not _arrays(s) & (self.seen | {self.maximum}) or _arrays(s) & self.degrees.keys():
            return False
        self.seen.add(s.target.array)
        self.after.append(s)
        return True

    def _degree(self, s: Statement) -> int | None:
        return degree_of(s.value, self.degrees, self.search.factor(self.slopes))


def _arrays(s: Statement) -> set[str]:
    return {r.tensor for r in reads_of(s.value)}


def _peeled(s: Statement, late: set[str], key: str) -> tuple[Statement, tuple[str, Expr]] | None:
    """The weights without a factor or divisor that is the same for a row and known late, and that."""
    match s.value:
        case Apply(op="div" | "mul" as op, args=(value, other)):
            reads = reads_of(other)
            same = not any(key in x.variables() for r in reads for x in r.subscripts if isinstance(x, Affine))
            plain = all(isinstance(x, Affine) for r in reads for x in r.subscripts)
            indices = any(isinstance(e, IndexValue) for e in walk(other))
            if {r.tensor for r in reads} & late and same and plain and not indices:
                return replace(s, value=value), (op, other)
            return None
        case _:
            return None
