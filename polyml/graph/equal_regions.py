"""Regions that are the same but for names are one, which the plan launches several times: the layers of a network are compiled once. So are those that differ in where they read and write (graph/views.py): layers whose weights are
slices of one tensor, the phases of a transposed convolution.

Regions are compared as texts in which tensors, arrays and indices have numbers, in the order in which they are met. Sizes keep their names, since they may differ in what is known of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads, reads_of, substitute
from polyml.graph.host_steps import Argument, Launch, Plan
from polyml.graph.ir import Carried, Equation, Loop, Op, Tensor
from polyml.graph.region import Region
from polyml.graph.views import View, viewed
from polyml.graph.zeros import Places
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["Shared", "share_equal_regions"]

_SET, _PARAM = isl.dim_type.set, isl.dim_type.param

_NOWHERE: Mapping[str, Places] = {}


@dataclass(frozen=True, slots=True)
class Shared:
    """Regions that differ, and the plan that launches these. results: per region the arrays that nothing reads after it but the caller. strides, constants: as given, with those of new tensors."""

    regions: tuple[Region, ...]
    plan: Plan
    results: tuple[Set[str], ...]
    strides: Mapping[str, tuple[int, ...]]
    constants: Set[str]


def share_equal_regions(
    regions: Sequence[Region],
    plan: Plan,
    strides: Mapping[str, tuple[int, ...]],
    results: Sequence[Set[str]],
    constants: Set[str] = frozenset(),
    values: Mapping[str, Places] = _NOWHERE,
) -> Shared:
    """Regions that are the same but for names, or for where in their arrays they read and write, as one.

    Args:
        strides: of inputs that are not contiguous, in elements, by the tensor's name. results: per region the arrays that nothing reads after it but the caller.
        constants: names of inputs that never change. values: of tensors with zeros around their values, by name, where these are.
    """
    known = _Known(plan.storage, strides, constants, values)
    whole = [_Placed(region, ended) for region, ended in zip(regions, results, strict=True)]
    placed = dict(enumerate(whole))
    same = known.first_equal(placed, [_outside(region) for region in regions])
    kinds = {number: _inside(regions[number]) for number in same if same[number] == number}
    alike = [number for number, kind in kinds.items() if list(kinds.values()).count(kind) > 1]
    # Of those that are left, some may differ in places alone.
    parts = {number: part for number in alike if (part := known.part(whole[number])) is not None}
    equal = known.first_equal(parts, [_outside(part.region) for part in parts.values()])
    shared = {number for number, first in equal.items() if list(equal.values()).count(first) > 1}
    for number, first in same.items():
        if first in shared:
            part = parts.get(number) or known.part(whole[number])
            assert part is not None, "internal: of two equal regions one has no parts"
            placed[number], same[number] = part, equal[first]
    kept = [number for number, first in same.items() if number == first]
    if len(kept) == len(regions):
        return Shared(tuple(regions), plan, tuple(results), strides, constants)
    for number in kept:
        if placed[number].views:  # once more, for names that no other region has
            part = known.part(whole[number])
            assert part is not None, "internal: a region without the parts that it had"
            placed[number], known = part, known.beside(part.views)
    arrays = {step.region: [a.array for a in step.arguments] for step in plan.steps if isinstance(step, Launch)}

    def launched(step: Launch) -> Launch:
        first = same[step.region]
        one, own = placed[first].views, placed[step.region].views
        if own:
            buffers = {a.array: a.buffer for a in step.arguments}
            arguments = [Argument(v.name, buffers[w.array], w.offset) for v, w in zip(one, own, strict=True)]
        else:
            arguments = [Argument(n, a.buffer) for n, a in zip(arrays[first], step.arguments, strict=True)]
        return replace(step, region=kept.index(first), arguments=tuple(arguments))

    steps = tuple(launched(s) if isinstance(s, Launch) else s for s in plan.steps)
    return Shared(
        tuple(placed[number].region for number in kept),
        replace(plan, steps=steps, storage=known.storage),
        tuple(placed[number].results for number in kept),
        known.strides,
        known.constants,
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A region. results: of its arrays. views: what its tensors are of those of the program; none: its tensors are those."""

    region: Region
    results: Set[str]
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of tensors, by their names: their arrays, strides, whether they never change, and where they have values (of parts of arrays nothing)."""

    storage: Mapping[str, str]
    strides: Mapping[str, tuple[int, ...]]
    constants: Set[str]
    values: Mapping[str, Places]

    def beside(self, views: Sequence[View]) -> _Known:
        """With the tensors of views."""
        new = [view for view in views if view.tensor.name not in self.storage]
        return _Known(
            {**self.storage, **{view.tensor.name: view.name for view in new}},
            {**self.strides, **{view.tensor.name: view.strides for view in new if view.strides is not None}},
            self.constants | {view.tensor.name for view in new if view.source in self.constants},
            self.values,
        )

    def part(self, placed: _Placed) -> _Placed | None:
        """The region of the parts of arrays that it touches."""
        found = viewed(placed.region, self.storage, self.strides)
        if found is None:
            return None
        region, views = found
        return _Placed(region, {view.name for view in views if view.array in placed.results}, views)

    def first_equal(self, placed: Mapping[int, _Placed], outsides: Sequence[object]) -> dict[int, int]:
        """For each region the number of the first one that is the same."""
        first: dict[str, int] = {}
        same: dict[int, int] = {}
        for (number, one), outside in zip(placed.items(), outsides, strict=True):
            alone = outsides.count(outside) == 1
            text = "" if alone else _Text(self.beside(one.views)).of(one.region, one.results)
            same[number] = number if alone else first.setdefault(text, number)
        return same


def _outside(region: Region) -> object:
    """What is quick to see: regions that differ in it are not the same."""
    tensors = (region.inputs, region.outputs)
    return len(region.ops), [[(tensor.dtype, tensor.shape) for tensor in some] for some in tensors]


def _inside(region: Region) -> object:
    """The same for regions of parts of their tensors."""
    return [
        (len(op.indices), len(op.reduced), op.result.dtype, op.reduce, len(reads_of(op.body)))
        if isinstance(op, Equation)
        else None
        for op in region.ops
    ]


class _Text:
    """Writes one region down."""

    def __init__(self, known: _Known) -> None:
        self.storage, self.strides, self.constants = known.storage, known.strides, known.constants
        self.values = known.values
        self.tensors: dict[str, int] = {}
        self.arrays: dict[str, int] = {}
        self.loops: dict[str, Affine] = {}

    def of(self, region: Region, results: Set[str]) -> str:
        outside = [
            (self.tensor(t), self.strides.get(self.storage[t.name]), t.name in self.constants, self.values.get(t.name))
            for t in (*region.inputs, *region.outputs)
        ]
        ended = sorted(self.array(name) for name in results)
        return repr((outside, len(region.inputs), ended, [self.op(op) for op in region.ops]))

    def number(self, tensor: str) -> int:
        return self.tensors.setdefault(tensor, len(self.tensors))

    def array(self, name: str) -> int:
        return self.arrays.setdefault(name, len(self.arrays))

    def tensor(self, tensor: Tensor) -> object:
        array = self.array(self.storage[tensor.name])
        return "tensor", self.number(tensor.name), array, str(tensor.dtype), tensor.shape

    def op(self, op: Op) -> object:
        names = dict(self.loops)
        if isinstance(op, Equation):
            names |= {name: affine(f"#{k}") for k, name in enumerate(op.indices)}
        elif isinstance(op, Loop):
            self.loops[op.variable] = affine(f"@{len(self.loops)}")
            names = self.loops
        kind = type(op).__name__
        return kind, [self.value(f.name, getattr(op, f.name), names) for f in fields(op) if f.name != "span"]

    def value(self, field: str, value: object, names: Mapping[str, Affine]) -> object:
        """What a field has, with numbers for names; no program has names such as these."""
        match value:
            case Tensor():
                return self.tensor(value)
            case Carried():
                return [self.tensor(tensor) for tensor in (value.initial, value.inner, value.next, value.result)]
            case Equation() | Loop():
                return self.op(value)
            case isl.Set():
                return self.points(value, names)
            case Affine():
                return value.substitute(names)
            case Const() | IndexValue() | Read() | Apply():
                return map_reads(substitute(value, names), self.read)
            case tuple():
                return [self.value(field, item, names) for item in value]
            case str() if field in ("indices", "reduced", "variable"):
                return names[value]
            case _:
                return value

    def read(self, read: Read) -> Expr:
        return Read(f"%{self.number(read.tensor)}", read.subscripts, read.dtype)

    def points(self, points: isl.Set, names: Mapping[str, Affine]) -> str:
        points = points.reset_tuple_id()
        for k in range(points.dim(_SET)):
            points = points.set_dim_name(_SET, k, f"#{k}")
        for k in range(points.dim(_PARAM)):
            name = points.get_dim_name(_PARAM, k) or ""
            points = points.set_dim_name(_PARAM, k, str(names.get(name, name)))
        return str(points)
