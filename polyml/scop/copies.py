"""Simultaneity with the smallest copy: which old elements an in-place statement must save before it overwrites them.

One statement of the language is simultaneous: its right side sees the values from before it. In place, an instance may overwrite an element that
another one still has to read. Exactly those reads are redirected to a copy; it spans only the dimensions in which the read moves (row and column k in
Floyd-Warshall, not the matrix), and reads of one shape share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Apply, Expr, Read, Subscript
from polyml.records import dataclass
from polyml.scop.accesses import access_map, guarded_reads
from polyml.sets.affine import Affine, affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import parameters_text

__all__ = ["InPlace", "Save", "save_overwritten"]


EXTRA = 1.25
"""How many times as many elements a simpler copy may have."""

MARGIN = 8
"""By how many rows a simpler copy may be larger than what it is to hold, where the number of rows is symbolic."""


@dataclass(frozen=True, slots=True)
class Save:
    """A copy statement: `array[subscripts] = value` for `instances` (unnamed tuple: loop variables, then `elements`)."""

    array: str
    elements: tuple[str, ...]
    instances: isl.Set
    subscripts: tuple[Affine, ...]
    value: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """A statement that overwrites elements of an array of which its right side reads some, too: `array[target] = ..` for the points of `domain`.

    domain: instances, `{ [loops, indices] : ... }` with an unnamed tuple.
    reducing: the element is written many times (init, then updates), so even an instance's own old value is lost.
    """

    array: str
    shape: tuple[Affine, ...]
    target: tuple[Subscript, ...]
    domain: isl.Set
    loops: tuple[str, ...]
    indices: tuple[str, ...]
    sizes: tuple[str, ...]
    reducing: bool

    def conflict(self, read: Read, guard: tuple[str, ...]) -> tuple[isl.Set, bool]:
        """The instances at which the read happens, and whether some element that it reads is overwritten by (another) one."""
        reads, writes = self._access(read.subscripts, guard), self._access(self.target)
        pairs = reads.apply_range(writes.reverse()).intersect(self._same_iteration())
        if not self.reducing:
            pairs = pairs.subtract(isl.Map.identity(pairs.get_space()))
        return reads.domain(), not pairs.is_empty()

    def _access(self, subscripts: tuple[Subscript, ...], guard: tuple[str, ...] = ()) -> isl.Map:
        dims = (*self.loops, *self.indices)
        accesses = access_map("S", dims, self.array, subscripts, self.shape, sizes=self.sizes, guard=guard)
        return accesses.intersect_domain(self.domain.set_tuple_name("S"))

    def _same_iteration(self) -> isl.Map:
        first = ", ".join((*self.loops, *(f"{i}'" for i in self.indices)))
        second = ", ".join((*self.loops, *(f"{i}''" for i in self.indices)))
        return isl.Map(f"{parameters_text(self.sizes)}{{ S[{first}] -> S[{second}] }}")

    def moving(self, read: Read) -> tuple[list[int], tuple[Subscript | None, ...]]:
        """The dimensions in which the read moves, and what reads of one shape have in common: the subscripts in the others."""
        own = set(self.indices)
        found = [d for d, s in enumerate(read.subscripts) if not isinstance(s, Affine) or s.variables() & own]
        return found, tuple(None if d in found else s for d, s in enumerate(read.subscripts))

    def image(self, read: Read, moving: Sequence[int], instances: isl.Set) -> isl.Set:
        """`{ [loops, elements] }`: the moving coordinates of what the read touches (indirect ones: the whole dimension)."""
        outputs: tuple[Subscript, ...] = (*(affine(v) for v in self.loops), *(read.subscripts[d] for d in moving))
        extents = (*(affine(0) for _ in self.loops), *(self.shape[d] for d in moving))
        relation = access_map("S", (*self.loops, *self.indices), "E", outputs, extents, sizes=self.sizes)
        return instances.apply(relation).reset_tuple_id()


def save_overwritten(
    exprs: Sequence[Expr], place: InPlace, name: Callable[[int, tuple[Affine, ...]], str]
) -> tuple[list[Save], list[Expr]]:
    """The copies that the statement which evaluates these expressions needs when it is done in place, and the expressions that read them.

    Args:
        name: makes the k-th copy's array, given its shape.
    """
    saves: dict[tuple[Subscript | None, ...], Save] = {}
    sources: dict[Read, str] = {}
    for read, touched in _conflicts(exprs, place).items():
        moving, key = place.moving(read)
        image = place.image(read, moving, touched)
        known = saves.get(key)
        if known is None:
            elements = tuple(f"e{d}" for d in moving)
            at = tuple(affine(f"e{d}") if d in moving else s for d, s in enumerate(read.subscripts))
            copy = name(len(saves), tuple(place.shape[d] for d in moving))
            value = Read(place.array, at, read.dtype)
            saves[key] = known = Save(copy, elements, image, tuple(affine(e) for e in elements), value)
        else:
            saves[key] = replace(known, instances=known.instances.union(image))
        sources[read] = known.array
    if not saves:
        return [], list(exprs)
    made = {key: replace(save, instances=_rounded(save.instances)) for key, save in saves.items()}
    for read, _ in (one for expr in exprs for one in guarded_reads(expr)):
        # What is saved anyway is read with its neighbours: of a stencil, the element itself.
        if read.tensor == place.array and read not in sources:
            moving, key = place.moving(read)
            save = made.get(key)
            every = place.domain.set_tuple_name("S")
            if save is not None and place.image(read, moving, every).is_subset(save.instances):
                sources[read] = save.array
    return list(made.values()), [_redirected(expr, place, sources) for expr in exprs]


def _conflicts(exprs: Sequence[Expr], place: InPlace) -> dict[Read, isl.Set]:
    """The reads of elements that are overwritten, each with all instances at which it happens."""
    found: dict[Read, isl.Set] = {}
    overwritten = set[Read]()
    for read, guard in (one for expr in exprs for one in guarded_reads(expr)):
        if read.tensor == place.array:
            touched, conflict = place.conflict(read, guard)
            found[read] = touched.union(found[read]) if read in found else touched
            overwritten |= {read} if conflict else set()
    return {read: touched for read, touched in found.items() if read in overwritten}


def _redirected(expr: Expr, place: InPlace, sources: Mapping[Read, str]) -> Expr:
    """The expression with reads from these copies, those in computed subscripts of others as well."""
    match expr:
        case Read():
            subscripts = [s if isinstance(s, Affine) else _redirected(s, place, sources) for s in expr.subscripts]
            copy = sources.get(expr)
            if copy is None:
                return expr.at(subscripts)
            return Read(copy, tuple(subscripts[d] for d in place.moving(expr)[0]), expr.dtype)
        case Apply():
            return expr.with_args(_redirected(arg, place, sources) for arg in expr.args)
        case _:
            return expr


def _rounded(elements: isl.Set) -> isl.Set:
    """The elements, and a few more where that makes one convex piece of a union, a box if it may be (a stencil's neighbours are a square without its corners).

    All are elements of the array: coordinates stay between the smallest and the largest of the given ones.
    """
    if elements.n_basic_set() == 1:
        return elements
    given, elements = elements.get_basic_sets(), elements.coalesce()
    if elements.n_basic_set() == 1:
        return elements
    box = _box(elements)
    if box is not None and any(_is_nearly(piece.to_set(), box) for piece in given):
        return box
    hull = elements.simple_hull().to_set()
    whole = _box_size(hull)
    pieces = [_box_size(piece.to_set()) for piece in elements.get_basic_sets()]
    if whole is None or any(size is None for size in pieces):
        return elements
    largest = max(size for size in pieces if size is not None)
    return hull if whole <= EXTRA * largest and _box_size(elements) == whole else elements


def _box(elements: isl.Set) -> isl.Set | None:
    """The smallest box around the set; None where it has a gap."""
    count = elements.dim(isl.dim_type.set)
    found: isl.Set | None = None
    for d in range(count):
        only = elements.project_out(isl.dim_type.set, d + 1, count - d - 1).project_out(isl.dim_type.set, 0, d)
        only = only.coalesce()
        if only.n_basic_set() != 1:
            return None
        found = only if found is None else found.flat_product(only)
    return found


def _is_nearly(piece: isl.Set, box: isl.Set) -> bool:
    """Whether the piece is a box itself, and little smaller than the other: by numbers in symbolic dimensions."""
    if not piece.is_box():
        return False
    larger = 1.0
    for d in range(box.dim(isl.dim_type.set)):
        widths = [_width(one, d) for one in (piece, box)]
        if widths[0] is None or widths[1] is None:
            return False
        gap = widths[1] - widths[0]
        if not gap.is_constant:
            return False
        if widths[0].is_constant:
            larger *= widths[1].constant / widths[0].constant
        elif gap.constant > MARGIN:
            return False
    return larger <= EXTRA


def _width(elements: isl.Set, d: int) -> Affine | None:
    """How many values a dimension has; None where that is no one affine expression."""
    some = elements.params()
    ends = [pieces_of(end(d).coalesce().gist_params(some)) for end in (elements.dim_max, elements.dim_min)]
    if any(len(pieces) != 1 for pieces in ends):
        return None
    last, first = (affine_of(pieces[0][1], ()) for pieces in ends)
    return last - first + 1


def _box_size(elements: isl.Set) -> int | None:
    """Points of the smallest box around the set; None where that depends on sizes."""
    total = 1
    for d in range(elements.dim(isl.dim_type.set)):
        low, high = elements.dim_min_val(d), elements.dim_max_val(d)
        if not (low.is_int() and high.is_int()):
            return None
        total *= high.to_python() - low.to_python() + 1
    return total
