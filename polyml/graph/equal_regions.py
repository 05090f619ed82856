"""Regions that are the same but for names are one, which the plan launches several times: the layers of a network are compiled once.

Regions are compared as texts in which tensors, arrays and indices have numbers, in the order in which they are met. Sizes keep their names, since they may differ in what is known of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace

import islpy as isl

from polyml.expressions import Apply, Const, Expr, IndexValue, Read, map_reads, substitute
from polyml.graph.host_steps import Argument, Launch, Plan
from polyml.graph.ir import Carried, Equation, Loop, Op, Tensor
from polyml.graph.region import Region
from polyml.sets.affine import Affine, affine

__all__ = ["share_equal_regions"]

_SET, _PARAM = isl.dim_type.set, isl.dim_type.param


def share_equal_regions(
    regions: Sequence[Region],
    plan: Plan,
    strides: Mapping[str, tuple[int, ...]],
    results: Sequence[Set[str]],
    constants: Set[str] = frozenset(),
) -> tuple[list[int], Plan]:
    """The numbers of the regions that differ, and the plan that launches these, by their places among them.

    Args:
        strides: of inputs that are not contiguous, in elements, by the tensor's name. results: per region the arrays that nothing reads after it but the caller.
        constants: names of inputs that never change.
    """
    outsides = [_outside(region) for region in regions]
    first: dict[str, int] = {}
    same: list[int] = []
    for number, region in enumerate(regions):
        alone = outsides.count(outsides[number]) == 1
        text = "" if alone else _Text(plan.storage, strides, constants).of(region, results[number])
        same.append(number if alone else first.setdefault(text, number))
    kept = [number for number, other in enumerate(same) if other == number]
    if len(kept) == len(regions):
        return kept, plan
    arrays = {step.region: [a.array for a in step.arguments] for step in plan.steps if isinstance(step, Launch)}

    def launched(step: Launch) -> Launch:
        other = same[step.region]
        arguments = zip(arrays[other], step.arguments, strict=True)
        return replace(
            step, region=kept.index(other), arguments=tuple(Argument(name, a.buffer) for name, a in arguments)
        )

    return kept, replace(plan, steps=tuple(launched(s) if isinstance(s, Launch) else s for s in plan.steps))


def _outside(region: Region) -> object:
    """What is quick to see: regions that differ in it are not the same."""
    tensors = (region.inputs, region.outputs)
    return len(region.ops), [[(tensor.dtype, tensor.shape) for tensor in some] for some in tensors]


class _Text:
    """Writes one region down. storage: per tensor its array."""

    def __init__(self, storage: Mapping[str, str], strides: Mapping[str, tuple[int, ...]], constants: Set[str]) -> None:
        self.storage, self.strides, self.constants = storage, strides, constants
        self.tensors: dict[str, int] = {}
        self.arrays: dict[str, int] = {}
        self.loops: dict[str, Affine] = {}

    def of(self, region: Region, results: Set[str]) -> str:
        outside = [
            *((self.tensor(t), self.strides.get(t.name), t.name in self.constants) for t in region.inputs),
            *(self.tensor(t) for t in region.outputs),
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
