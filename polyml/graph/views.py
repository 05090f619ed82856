"""Regions that touch a box of an array as regions of a tensor that is no larger: `t[1, 0, c, p, q + 1] = sum_k x[k, p, q + 3] * w[k, c]` becomes

    t'[c, p, q] = sum_k x'[k, p, q] * w[k, c]

Where the boxes lie is the launch's business then (Argument.offset), and how far apart their rows are is one of strides, as for a caller's array. So the phases of a transposed convolution, say, are one region (graph/equal_regions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from polyml.expressions import Expr, Read, map_reads, reads_of
from polyml.graph.edit import with_name
from polyml.graph.ir import Equation, Tensor
from polyml.graph.region import Region
from polyml.graph.rules.boxes import hull, reach
from polyml.new_names import underscored
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.shapes import row_major_strides

__all__ = ["View", "viewed"]

_Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in the place of a box of an array.

    source: the tensor that the box is of. offset: elements of the array before it. strides: in elements, for each of its dimensions; None: it is contiguous. lows: per dimension of the array where the box begins; kept: those that the tensor has.
    """

    tensor: Tensor
    source: str
    array: str
    offset: int
    strides: tuple[int, ...] | None
    lows: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the array that the tensor is in, for who knows nothing of the larger one."""
        return self.array if self.tensor.name == self.source else self.tensor.name

    def subscripts(self, places: Sequence[object]) -> tuple[Affine, ...]:
        """Those of the same element."""
        moved = [place - self.lows[d] for d, place in enumerate(places) if isinstance(place, Affine)]
        return tuple(moved[d] for d in self.kept)


def viewed(
    region: Region, storage: Mapping[str, str], strides: Mapping[str, tuple[int, ...]]
) -> tuple[Region, tuple[View, ...]] | None:
    """The region with a tensor for the box of each array that it exchanges with others, the smallest that holds all elements touched; what stays in an array beside elements that are made is no input then.
    None where an array is told apart by more than boxes of known places.

    Args:
        storage: per tensor its array. strides: of arrays that are not contiguous, in elements.
    """
    ops = [op for op in region.ops if isinstance(op, Equation)]
    if len(ops) < len(region.ops) or any(op.only_if is not None or op.accumulate for op in ops):
        return None
    if not all(op.base is None or (op.base in region.inputs and _in_place(op, storage)) for op in ops):
        return None
    outside = {tensor.name: tensor for tensor in (*region.inputs, *region.outputs)}
    touched = _touched(ops, outside)
    if touched is None or len({storage[name] for name in touched}) < len(touched):
        return None
    views = {
        name: _view(outside[name], storage, ranges, strides.get(storage[name])) for name, ranges in touched.items()
    }
    changed = tuple(_changed(op, views) for op in ops)
    if None in changed:
        return None
    inputs = tuple(views[t.name].tensor for t in region.inputs if t.name in views)
    outputs = tuple(views[t.name].tensor for t in region.outputs)
    equations = tuple(op for op in changed if op is not None)
    return replace(region, ops=equations, inputs=inputs, outputs=outputs), tuple(views.values())


def _in_place(op: Equation, storage: Mapping[str, str]) -> bool:
    return op.base is not None and storage[op.base.name] == storage[op.result.name]


def _reads(op: Equation) -> list[Read]:
    return [read for e in (op.body, *(s for s in op.target if not isinstance(s, Affine))) for read in reads_of(e)]


def _touched(ops: Sequence[Equation], outside: Mapping[str, Tensor]) -> dict[str, list[_Range]] | None:
    """Per tensor the first and the last element along each dimension; None where that is not known."""
    found: dict[str, list[_Range]] = {}
    for op in ops:
        extents = hull(op)
        if extents is None:
            return None
        accesses = [(op.result.name, op.target), *((read.tensor, read.subscripts) for read in _reads(op))]
        for name, subscripts in accesses:
            if name not in outside:
                continue
            ranges: list[_Range] = []
            for place, extent in zip(subscripts, outside[name].shape, strict=True):
                if not isinstance(place, Affine) or not extent.is_constant or not _is_linear(place, extents):
                    return None
                low, high = reach(place, extents)
                # Elements beside the tensor are none that an access has: some condition is between.
                ranges.append((max(low, 0), min(high, extent.constant - 1)))
            if any(low > high for low, high in ranges):
                return None
            before = found.get(name, ranges)
            found[name] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(before, ranges, strict=True)]
    return found


def _is_linear(place: Affine, extents: Mapping[str, int]) -> bool:
    return all(name in extents and place.stride(name) is not None for name in place.variables())


def _view(
    tensor: Tensor, storage: Mapping[str, str], ranges: Sequence[_Range], strides: tuple[int, ...] | None
) -> View:
    shape = [extent.constant for extent in tensor.shape]
    whole = strides if strides is not None else tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
    lows = tuple(low for low, _ in ranges)
    # Dimensions of one element are none: a result's subscripts are its indices then.
    kept = tuple(d for d, (low, high) in enumerate(ranges) if high > low)
    extents = tuple(affine(ranges[d][1] - ranges[d][0] + 1) for d in kept)
    if len(kept) == len(shape) and all(extent == n for extent, n in zip(extents, tensor.shape, strict=True)):
        return View(tensor, tensor.name, storage[tensor.name], 0, strides, lows, kept)
    apart = tuple(whole[d] for d in kept)
    own = None if apart == row_major_strides(extents) else apart
    made = replace(tensor, name=underscored(f"{tensor.name}_part", storage), shape=extents)
    offset = sum(low * step for low, step in zip(lows, whole, strict=True))
    return View(made, tensor.name, storage[tensor.name], offset, own, lows, kept)


def _changed(op: Equation, views: Mapping[str, View]) -> Equation | None:
    """The equation of the views; None where its result has elements that it does not make."""

    def seen(read: Read) -> Expr:
        view = views.get(read.tensor)
        return read if view is None else Read(view.tensor.name, view.subscripts(read.subscripts), read.dtype)

    body = map_reads(op.body, seen)
    view = views.get(op.result.name)
    if view is None:
        return replace(op, body=body) if op.base is None else None
    extents = hull(op)
    assert extents is not None, "internal: a box without an end"
    target = view.subscripts(op.target)
    names = [place.name for place in target]
    if None in names or sorted(map(str, names)) != sorted(op.left):
        return None
    left = box(op.result.name, op.left, extents)
    if op.instances is not None and not op.instances.is_equal(left):
        return None
    if tuple(affine(extents[name]) for name in names if name is not None) != view.tensor.shape:
        return None
    if not op.domain.is_equal(box(op.result.name, op.indices, extents)):
        return None
    return with_name(replace(op, body=body, target=target, base=None, instances=None), view.tensor)
