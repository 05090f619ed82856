"""Simultaneity with the smallest copy: which old elements an in-place statement must save before it overwrites them.

One statement of the language is simultaneous: its right side sees the values from before it. In place, an instance may overwrite an element that
another one still has to read. Exactly those reads are redirected to a copy; it spans only the dimensions in which the read moves (row and column k in
Floyd-Warshall, not the matrix), and reads of one shape share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import islpy as isl

from polyml.expressions import Expr, Read, Subscript, map_reads
from polyml.records import dataclass
from polyml.scop.accesses import access_map, guarded_reads
from polyml.sets.affine import Affine, affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import parameters_text

__all__ = ["Save", "save_overwritten"]


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


def save_overwritten(
    body: Expr,
    *,
    array: str,
    shape: Sequence[Affine],
    target: Sequence[Subscript],
    domain: isl.Set,
    loops: tuple[str, ...],
    indices: tuple[str, ...],
    sizes: tuple[str, ...],
    reducing: bool,
    name: Callable[[int, tuple[Affine, ...]], str],
) -> tuple[list[Save], Expr]:
    """The copies that `array[target] = body` needs when it is done in place, and the body that reads them.

    Args:
        domain: instances, `{ [loops, indices] : ... }` with an unnamed tuple.
        reducing: the element is written many times (init, then updates), so even an instance's own old value is lost.
        name: makes the k-th copy's array, given its shape.
    """
    conflicts: dict[Read, isl.Set] = {}
    for read, guard in guarded_reads(body):
        if read.tensor != array:
            continue
        touched = _conflict(read, guard, array, shape, target, domain, loops, indices, sizes, reducing)
        if touched is not None:
            conflicts[read] = touched.union(conflicts[read]) if read in conflicts else touched
    saves: dict[tuple[Subscript | None, ...], Save] = {}
    replacement: dict[Read, Read] = {}
    for read, touched in conflicts.items():
        moving, key = _moving(read, indices)
        elements = tuple(f"e{d}" for d in moving)
        image = _image(read, moving, touched, shape, loops, indices, sizes)
        known = saves.get(key)
        if known is None:
            at = tuple(affine(f"e{d}") if d in moving else s for d, s in enumerate(read.subscripts))
            copy = name(len(saves), tuple(shape[d] for d in moving))
            known = Save(copy, elements, image, tuple(affine(e) for e in elements), Read(array, at, read.dtype))
        else:
            known = Save(known.array, known.elements, known.instances.union(image), known.subscripts, known.value)
        saves[key] = known
        replacement[read] = Read(known.array, tuple(read.subscripts[d] for d in moving), read.dtype)
    made = {key: replace(save, instances=_rounded(save.instances)) for key, save in saves.items()}
    for read, _ in guarded_reads(body):
        # What is saved anyway is read with its neighbours: of a stencil, the element itself.
        if read.tensor == array and read not in replacement:
            moving, key = _moving(read, indices)
            save = made.get(key)
            if save is not None and _image(
                read, moving, domain.set_tuple_name("S"), shape, loops, indices, sizes
            ).is_subset(save.instances):
                replacement[read] = Read(save.array, tuple(read.subscripts[d] for d in moving), read.dtype)
    return list(made.values()), map_reads(body, lambda read: replacement.get(read, read))


def _moving(read: Read, indices: tuple[str, ...]) -> tuple[list[int], tuple[Subscript | None, ...]]:
    """The dimensions in which the read moves, and what reads of one shape have in common: the subscripts in the others."""
    moving = [d for d, s in enumerate(read.subscripts) if not isinstance(s, Affine) or s.variables() & set(indices)]
    return moving, tuple(None if d in moving else s for d, s in enumerate(read.subscripts))


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


def _conflict(
    read: Read,
    guard: tuple[str, ...],
    array: str,
    shape: Sequence[Affine],
    target: Sequence[Subscript],
    domain: isl.Set,
    loops: tuple[str, ...],
    indices: tuple[str, ...],
    sizes: tuple[str, ...],
    reducing: bool,
) -> isl.Set | None:
    """The instances at which the read happens, when some element that it reads is overwritten by (another) one; else None."""
    dims = (*loops, *indices)
    instances = domain.set_tuple_name("S")
    reads = access_map("S", dims, array, read.subscripts, shape, sizes=sizes, guard=guard).intersect_domain(instances)
    writes = access_map("S", dims, array, target, shape, sizes=sizes).intersect_domain(instances)
    pairs = reads.apply_range(writes.reverse())
    same_iteration = _same_loops(loops, indices, sizes)
    pairs = pairs.intersect(same_iteration)
    if not reducing:
        pairs = pairs.subtract(isl.Map.identity(pairs.get_space()))
    if pairs.is_empty():
        return None
    return reads.domain()


def _same_loops(loops: tuple[str, ...], indices: tuple[str, ...], sizes: tuple[str, ...]) -> isl.Map:
    first = ", ".join((*loops, *(f"{i}_1" for i in indices)))
    second = ", ".join((*loops, *(f"{i}_2" for i in indices)))
    return isl.Map(f"{parameters_text(sizes)}{{ S[{first}] -> S[{second}] }}")


def _image(
    read: Read,
    moving: Sequence[int],
    instances: isl.Set,
    shape: Sequence[Affine],
    loops: tuple[str, ...],
    indices: tuple[str, ...],
    sizes: tuple[str, ...],
) -> isl.Set:
    """`{ [loops, elements] }`: the moving coordinates of what the read touches (indirect ones: the whole dimension)."""
    outputs: tuple[Subscript, ...] = (*(affine(v) for v in loops), *(read.subscripts[d] for d in moving))
    extents = (*(affine(0) for _ in loops), *(shape[d] for d in moving))
    relation = access_map("S", (*loops, *indices), "E", outputs, extents, sizes=sizes)
    return instances.apply(relation).reset_tuple_id()
