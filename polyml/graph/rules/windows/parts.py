"""What rules about sums over windows have in common (windows/filters.py, windows/rows.py): their factors and indices, and copies of what they read with the padding around it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, variables_in
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Equation, Graph, Tensor
from polyml.graph.rules.boxes import holds, hull, symbolic_box
from polyml.graph.traverse import UNKNOWN_EXTENT, all_ops
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.spaces import parameters_text

__all__ = [
    "Split",
    "Window",
    "assigned",
    "cropped",
    "extents_and_crop",
    "inside",
    "meets_all",
    "padded",
    "padded_copy",
    "padded_shape",
    "reach",
    "target_of",
]


FEW_POINTS = 12
"""Values of an index of the result up to which as many are likely in other calls."""


@dataclass(frozen=True, slots=True)
class Window:
    """A sum over windows: what reads them, the other factor; the extents of all indices; those of the left side that only the other factor has, and all others; whether some of the terms
    that the box of all indices has are padding; whether these are to be left out (rules/windows/guarded.py), not zeros. at_hand: sizes of the call that the graph is for (Graph.examples)."""

    read: Read
    other: Read
    extents: dict[str, Affine]
    filters: tuple[str, ...]
    points: tuple[str, ...]
    padded: bool
    guarded: bool
    at_hand: Mapping[str, int]

    @property
    def numbers(self) -> dict[str, int]:
        """The extents, with a number for those that are symbolic."""
        return {i: extent.constant if extent.is_constant else UNKNOWN_EXTENT for i, extent in self.extents.items()}

    @property
    def likely(self) -> dict[str, int]:
        """The same, but few points in the call at hand are as few in others."""
        found = self.numbers
        for index in self.points:
            extent = self.extents[index]
            if not extent.is_constant and extent.variables() <= self.at_hand.keys():
                known = extent.evaluate(self.at_hand)
                found[index] = known if 0 < known <= FEW_POINTS else found[index]
        return found

    @property
    def symbolic(self) -> bool:
        return not all(extent.is_constant for extent in self.extents.values())


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension of a copy as two. shape: their extents. weights: by how many places an index of each moves. read: their subscripts in what reads the copy. outermost: whether the first of them goes ahead of all other dimensions."""

    shape: tuple[int, int]
    weights: tuple[int, int]
    read: tuple[Affine, Affine]
    outermost: bool = False


def padded_shape(window: Window, extents: Mapping[str, Affine]) -> tuple[tuple[Affine, Affine], ...]:
    """Per dimension the first place that windows reach, and the one behind the last."""
    return tuple(reach(s, extents) for s in window.read.subscripts if isinstance(s, Affine))


def reach(place: Affine, extents: Mapping[str, Affine]) -> tuple[Affine, Affine]:
    low = high = affine(place.constant)
    for name in place.variables():
        stride = place.stride(name) or 0
        most = (extents[name] - 1) * stride
        low, high = (low + most, high) if stride < 0 else (low, high + most)
    return low, high + 1


def inside(name: str, indices: Sequence[str], read: Read, shape: tuple[Affine, ...], sizes: tuple[str, ...]) -> isl.Set:
    """The points `{ name[indices] }` that read an element of the tensor."""
    limits = [
        f"0 <= {place.isl_text()} < {extent.isl_text()}"
        for place, extent in zip(read.subscripts, shape, strict=True)
        if isinstance(place, Affine)
    ]
    head = parameters_text(sizes)
    return isl.Set(f"{head}{{ {name}[{', '.join(indices)}] : {' and '.join(limits)} }}")


def target_of(equation: Equation, sizes: tuple[str, ...]) -> isl.Map:
    """From points to elements of the result, by a target that is affine in indices and sizes."""
    head = parameters_text(sizes)
    name, indices = equation.result.name, ", ".join(equation.indices)
    places = ", ".join(place.isl_text() for place in equation.target if isinstance(place, Affine))
    return isl.Map(f"{head}{{ {name}[{indices}] -> {name}[{places}] }}")


def extents_and_crop(
    equation: Equation, graph: Graph, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Affine], isl.Set | None] | None:
    """How far each index runs, and the elements of the result that are wanted (None: all that indices give); None where they are restricted by something else."""
    extents = symbolic_box(equation, graph, tensors)
    if extents is not None:
        return extents, None
    numbers = hull(equation)
    if numbers is None:
        return None
    hit = target_of(equation, graph.sizes)
    wanted = equation.domain.apply(hit)
    whole = box(equation.result.name, equation.indices, numbers).intersect(
        hit.reverse().intersect_domain(wanted).range()
    )
    return ({i: affine(n) for i, n in numbers.items()}, wanted) if whole.is_equal(equation.domain) else None


def cropped(equation: Equation, wanted: isl.Set | None, graph: Graph) -> Equation:
    """The equation at the points that go to wanted elements (None: all)."""
    if wanted is None:
        return equation
    points = target_of(equation, graph.sizes).intersect_range(wanted).domain()
    return replace(equation, domain=equation.domain.intersect(points))


def meets_all(equation: Equation, graph: Graph) -> bool:
    """Whether every element of the result is one that such a target hits."""
    names = [f"d{d}'" for d in range(len(equation.target))]
    every = box(equation.result.name, names, dict(zip(names, equation.result.shape, strict=True)), graph.sizes)
    hit = equation.domain.apply(target_of(equation, graph.sizes))
    return every.intersect_params(graph.context).is_subset(hit)


def assigned(equation: Equation, graph: Graph) -> Equation:
    """The equation as an assignment, where it adds one term at most to each element of zeros; else as it is."""
    if equation.reduce != "sum" or equation.reduced or equation.base is None or not is_zero(equation.base, graph):
        return equation
    used = variables_in(equation.target)
    if not used <= {*equation.indices, *graph.sizes}:  # a loop's variable moves the target
        return equation
    if not target_of(equation, graph.sizes).intersect_domain(equation.domain).is_injective():
        return equation
    base = None if meets_all(equation, graph) else equation.base
    return replace(equation, reduce=None, accumulate=False, base=base)


def is_zero(tensor: Tensor, graph: Graph) -> bool:
    """Whether the tensor is made of zeros, and nothing else."""
    return is_filled(tensor, 0.0, graph)


def is_filled(tensor: Tensor, value: float, graph: Graph) -> bool:
    """Whether the tensor is made of one number, and nothing else."""
    makers = [op for op in all_ops(graph.ops) if isinstance(op, Equation) and op.result.name == tensor.name]
    plain = (op.reduce is None and op.base is None and op.body == Const(value, op.body.dtype) for op in makers)
    return bool(makers) and all(plain)


def padded_copy(
    equation: Equation,
    window: Window,
    graph: Graph,
    tensors: dict[str, Tensor],
    splits: Mapping[int, Split] = {},
    *,
    whole: int = 1,
) -> tuple[Read, Equation]:
    """The read from a tensor with the padding around it, and the equation that makes it. splits: by dimensions of what windows read. whole: of so many elements rows of known length are a multiple, with more zeros at their ends."""
    source = tensors[window.read.tensor]
    name = fresh_name(f"{source.name}_padded", tensors)
    places: list[Affine] = []
    reaches: list[tuple[Affine, Affine]] = []
    subscripts: list[Affine] = []
    shape: list[Affine] = []
    ahead: list[int] = []
    for d, (place, extent, (low, high)) in enumerate(
        zip(window.read.subscripts, source.shape, padded_shape(window, window.extents), strict=True)
    ):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        split = splits.get(d)
        if place.name is not None:
            low, high = affine(0), extent
        elif split is None and holds(low, graph):
            low = affine(0)
        at = affine(f"i{len(shape)}")
        if d == len(source.shape) - 1 and place.name is None:
            if split is not None:
                split = replace(split, shape=(split.shape[0], -(-split.shape[1] // whole) * whole))
            elif (high - low).is_constant:
                high = low - (low - high).constant // whole * whole
        if split is None:
            inner = at + low
            subscripts.append(place - low)
            shape.append(high - low)
        else:
            ahead += [len(shape)] if split.outermost else []
            one, other = split.weights
            inner = one * at + other * affine(f"i{len(shape) + 1}") + low
            high = low + (one * (split.shape[0] - 1) + other * (split.shape[1] - 1) + 1)
            subscripts += split.read
            shape += map(affine, split.shape)
        places.append(inner)
        reaches.append((low, high))
    order = sorted(range(len(shape)), key=lambda k: (k not in ahead, k))
    at_last = {f"i{k}": affine(f"i{position}") for position, k in enumerate(order)}
    tensor = tensors[name] = Tensor(name, source.dtype, tuple(shape[k] for k in order), name)
    read = Read(source.name, tuple(place.substitute(at_last) for place in places), source.dtype)
    value = padded(read, source.shape, reaches, graph)
    return Read(name, tuple(subscripts[k] for k in order), source.dtype), fill(tensor, value, equation.span)


def padded(read: Read, shape: Sequence[Affine], reaches: Sequence[tuple[Affine, Affine]], graph: Graph) -> Read | Apply:
    """The element that is read, zero where there is none. reaches: per dimension the first place that is read, and the one behind the last."""
    conditions: list[Expr] = []
    for place, extent, (low, high) in zip(read.subscripts, shape, reaches, strict=True):
        assert isinstance(place, Affine), "internal: a window with a computed subscript"
        if not holds(low, graph):
            conditions.append(Apply("ge", (IndexValue(place, i64), Const(0, i64)), boolean))
        if not holds(extent - high, graph):
            end = Const(extent.constant, i64) if extent.is_constant else IndexValue(extent, i64)
            conditions.append(Apply("lt", (IndexValue(place, i64), end), boolean))
    if not conditions:
        return read
    condition = functools.reduce(lambda a, b: Apply("and", (a, b), boolean), conditions)
    return Apply("select", (condition, read, Const(0.0, read.dtype)), read.dtype)
