"""Schedule -> Loops: the schedule tree is scanned, and the code is read as a Function.

Per statement instance a scan hands out the inverse schedule, which gives the statement's indices (and the storage offsets of its local arrays) in the
iterators; bodies and targets follow by substitution. The pattern is PPCG's `at_each_domain` (Verdoolaege et al., "Polyhedral parallel code
generation for CUDA", 2013, section 5; isl manual, "AST Generation Options (Schedule Tree)").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import get_args

import islpy as isl

from polyml.codegen.allocations import allocate, settle_allocations
from polyml.codegen.counts import condition_of_values, value_of_values, values_before
from polyml.codegen.instances import scan_schedule
from polyml.codegen.loops import (
    Assign,
    Axis,
    Bounds,
    For,
    Function,
    If,
    LoopKind,
    Multiples,
    Node,
    Place,
    UpdateArgument,
    Variable,
)
from polyml.codegen.scanned import (
    BAND_END,
    Choice,
    Code,
    Instance,
    Loop,
    Marked,
    Together,
    Variant,
    has_own_loop,
    instances_in,
    loops_in,
)  # fmt: skip
from polyml.codegen.time_lanes import time_lanes_nest
from polyml.dtypes import i64
from polyml.expressions import Apply, Const, Expr, IndexValue, Read, Subscript, map_reads, substitute
from polyml.new_names import fresh
from polyml.ops import REDUCTIONS
from polyml.records import dataclass, replace
from polyml.schedule.schedule import Schedule, Storage
from polyml.scop.scop import Access, Statement
from polyml.sets.affine import Affine, affine, maximum, minimum, operands

__all__ = ["generate"]

_ALLOCATE, _PART = "allocate:", "part:"


def generate(schedule: Schedule, *, name: str) -> Function:
    """The loops that execute `schedule`, one Function with the scop's arrays that outlive it as arguments, in the scop's order.

    Marks become kinds and factors of loops (dropped where a loop has a single iteration) and Allocates; a parallel loop inside another is
    sequential, but for one that asks to be shared along with it (`parallel:2`; passes/share_together.py). Loops are named after the index that they run over (`n`; `n_tile` outside of it), unique along a nest.

    Raises:
        CodegenError: isl's code has an index expression that is not quasi-affine.
    """
    scop = schedule.scop
    if schedule.time_lanes is not None:
        body = time_lanes_nest(scop, schedule.time_lanes)
    else:
        body = _Builder(schedule).nodes(scan_schedule(schedule), _Scope({}, frozenset({*scop.arrays, *scop.sizes})))
    for array in reversed(scop.arrays.values()):
        storage = schedule.storage.get(array.name)
        if array.kind == "local" and (storage is None or not storage.place):
            body = (allocate(schedule, array, body),)
    body = settle_allocations(body)
    arguments = tuple(
        Variable(name=a.name, dtype=a.dtype, shape=a.shape, scope="global", strides=a.strides)
        for a in scop.arrays.values()
        if a.kind != "local" and not a.same_as
    )
    stored = {s.target.array for s in scop.statements.values()}
    stored |= {s.argument.array for s in scop.statements.values() if s.argument is not None}
    written = frozenset(a.name for a in arguments if a.name in stored)
    bounds, multiples = _known_of_sizes(scop.context, scop.sizes)
    return Function(
        name=name,
        arguments=arguments,
        written=written,
        sizes=scop.sizes,
        body=body,
        bounds=bounds,
        multiples=multiples,
        products=scop.products,
    )


def _known_of_sizes(context: isl.Set, sizes: Sequence[str]) -> tuple[Bounds, Multiples]:
    """What the context says of each size alone: the least and the greatest value; and of what number it is a multiple, where that is not 1."""
    found: list[tuple[str, int | None, int | None]] = []
    multiples: list[tuple[str, int]] = []
    for size in sizes:
        values = isl.Map(f"[{size}] -> {{ [] -> [{size}] }}").intersect_params(context).range()
        least, most = (v.to_python() if v.is_int() else None for v in (values.dim_min_val(0), values.dim_max_val(0)))
        found.append((size, least, most))
        alone = values.project_out_all_params()
        stride = alone.get_stride(0).to_python()
        if stride > 1 and alone.is_subset(isl.Set(f"{{ [n] : n mod {stride} = 0 }}")):
            multiples.append((size, stride))
    return tuple(found), tuple(multiples)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a mark asks of the loop below it."""

    kind: LoopKind = "sequential"
    factor: int = 1
    axis: Axis | None = None
    digit: bool = False


@dataclass(frozen=True, slots=True)
class _Scope:
    """What holds at an AST node: values of isl's iterators, names in use, what is asked of the coming loop, and conditions that hold. counts: of iterators that
    count, what a step stands for; their values are multiples of that. part: what belongs
    to different ones of a mapped tree (marks `part:K`) is never joined. in_pipeline: between a pipelined loop and its stages."""

    iterators: dict[str, Affine]
    taken: frozenset[str]
    request: _Request | None = None
    in_parallel: bool = False
    in_pipeline: bool = False
    known: frozenset[Expr] = frozenset()
    part: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def value(self, expr: Affine) -> Affine:
        """An expression in isl's iterators."""
        return value_of_values(expr, self.counts).substitute(self.iterators)

    def condition(self, expr: Expr) -> Expr:
        """A condition in isl's iterators."""
        return substitute(condition_of_values(expr, self.counts), self.iterators)


class _Builder:
    """Walks the code and builds the nodes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def nodes(self, code: Code, scope: _Scope) -> tuple[Node, ...]:
        match code:
            case Instance():
                return self.instance(code, scope)
            case Together():
                return _joined(tuple(made for part in code.parts for made in self.nodes(part, scope)))
            case Loop():
                return self.loop(code, scope)
            case Choice():
                return self.guarded(code, scope)
            case Marked():
                return self.marked(code, scope)

    def guarded(self, code: Choice, scope: _Scope) -> tuple[Node, ...]:
        """An If; isl says a condition again below a mark, which is left out."""
        condition = scope.condition(code.condition)
        then = self.nodes(code.then, replace(scope, known=scope.known | {condition}))
        if condition in scope.known:
            return then
        otherwise = () if code.otherwise is None else self.nodes(code.otherwise, scope)
        return (If(condition=condition, then=then, otherwise=otherwise),)

    def marked(self, code: Marked, scope: _Scope) -> tuple[Node, ...]:
        text = code.text
        if text == BAND_END:
            return self.nodes(code.body, replace(scope, request=None))
        if text.startswith(_ALLOCATE):
            array = self.schedule.scop.arrays[text.split(":")[1]]
            return (allocate(self.schedule, array, self.nodes(code.body, scope)),)
        if text.startswith(_PART):
            return self.nodes(code.body, replace(scope, part=text.removeprefix(_PART)))
        request = _request(text)
        if request is None:
            return self.nodes(code.body, scope)
        if request.kind not in ("block", "thread") or has_own_loop(code.body):
            return self.nodes(code.body, replace(scope, request=request))
        # isl leaves out a loop whose value it knows; all that is below belongs to one owner, whichever.
        variable = fresh(f"{request.kind}_{request.axis}{scope.part}", set(scope.taken))
        body = self.nodes(code.body, replace(scope, taken=scope.taken | {variable}))
        return (_owned_once(variable, request, body),)

    def loop(self, code: Loop, scope: _Scope) -> tuple[Node, ...]:
        iterator, body = code.iterator, code.body
        count = next(instances_in(body)).counts.get(iterator, 1)
        lower = scope.value(_times(code.lower, count))
        upper = lower + 1 if code.degenerate else scope.value(values_before(code.upper, count))
        counts = {**scope.counts, iterator: count} if count > 1 else scope.counts
        request = scope.request or _Request()
        kind, factor = request.kind, request.factor
        inside = kind == "pipelined" or (kind == "parallel" and factor == 1)
        if (inside and scope.in_parallel) or (kind == "stage" and not scope.in_pipeline):
            kind = "sequential"
        # Such a loop says who runs its iteration, or when, even if it is the only one.
        mapped = kind in ("block", "thread", "stage")
        if code.degenerate and not mapped:
            return self.nodes(body, replace(scope, iterators={**scope.iterators, iterator: lower}, counts=counts))
        step = factor if code.degenerate and kind == "block" else code.step * count
        if request.digit and not upper.is_constant:
            upper = minimum([upper, affine(factor)])
        variable = fresh(self.readable(iterator, body), set(scope.taken))
        inner = _Scope(
            {**scope.iterators, iterator: affine(variable)},
            scope.taken | {variable},
            None,
            scope.in_parallel or kind in ("parallel", "pipelined"),
            kind == "pipelined",
            scope.known,
            scope.part,
            counts,
        )
        made = self.nodes(body, inner)
        return (
            For(
                variable=variable, lower=lower, upper=upper, step=step, kind=kind, factor=factor, axis=request.axis,
                body=made,
            ),
        )  # fmt: skip

    def readable(self, iterator: str, body: Code) -> str:
        """A loop's name: the index that it runs over, with `_tile` when a deeper loop runs over the rest of it."""
        weak: str | None = None
        for instance in instances_in(body):
            for index, value in instance.variants[0].indices.items():
                used = [v for v in value.variables() if v.startswith("c") and v[1:].isdecimal()]
                if iterator not in used:
                    continue
                if all(int(v[1:]) <= int(iterator[1:]) for v in used):
                    return index.rstrip("'")  # of blocks (schedule/blocking/copies.py)
                weak = weak or f"{index}_tile"
        return weak or self.tiled(iterator, body) or "t"

    def tiled(self, iterator: str, body: Code) -> str | None:
        """The name of a loop that only bounds of inner loops use: after the first of those."""
        for loop in loops_in(body):
            if iterator in loop.lower.variables() | loop.upper.variables():
                return self.readable(loop.iterator, loop.body).removesuffix("_tile") + "_tile"
        return None

    def instance(self, instance: Instance, scope: _Scope) -> tuple[Node, ...]:
        """The assignments of one statement instance; under conditions where isl gives its indices by cases."""
        made: list[Node] = []
        for variant in instance.variants:
            nodes = self.assignments(instance.statement, variant, scope)
            if variant.condition is not None:
                nodes = (If(condition=scope.condition(variant.condition), then=nodes),)
            made.extend(nodes)
        return tuple(made)

    def assignments(self, statement: Statement, variant: Variant, scope: _Scope) -> tuple[Node, ...]:
        arrays = self.schedule.scop.arrays
        values = {index: scope.value(value) for index, value in variant.indices.items()}
        offsets = {a: tuple(map(scope.value, found)) for a, found in variant.offsets.items()}

        def stored(array: str, subscripts: tuple[Subscript, ...]) -> tuple[Subscript, ...]:
            if array in offsets:
                extents = self.schedule.storage[array].shape
                subscripts = tuple(
                    affine(0) if extent == 1 else _minus(s, o)
                    for s, o, extent in zip(subscripts, offsets[array], extents, strict=True)
                )
            return _wrapped(subscripts, self.schedule.storage.get(array))

        def read(access: Read) -> Expr:
            memory = arrays[access.tensor].same_as or access.tensor
            return Read(memory, stored(access.tensor, access.subscripts), access.dtype)

        def expression(expr: Expr) -> Expr:
            return map_reads(substitute(expr, values), read)

        def place(access: Access) -> Place:
            subscripts = tuple(
                s.substitute(values) if isinstance(s, Affine) else expression(s) for s in access.subscripts
            )
            return Place(access.array, stored(access.array, subscripts))

        target, dtype = place(statement.target), arrays[statement.target.array].dtype
        streaming = statement.target.array in self.schedule.streamed
        if statement.kind == "init" and statement.reduction is not None:
            identity = REDUCTIONS[statement.reduction].identity(dtype)
            fill = Assign(target=target, value=Const(0 if identity is None else identity, dtype), streaming=streaming)
            if statement.argument is None:
                return (fill,)
            return (fill, Assign(target=place(statement.argument), value=Const(-1, i64)))
        if statement.kind != "update":
            return (Assign(target=target, value=expression(statement.value), streaming=streaming),)
        if statement.argument is None:
            atomic = statement.name in self.schedule.atomic
            value = expression(statement.value)
            return (Assign(target=target, value=value, reduction=statement.reduction, atomic=atomic),)
        assert statement.argument_value is not None, "internal: an argmax update without its index"
        assert statement.reduction in ("argmax", "argmin"), "internal: an argument of a plain reduction"
        return (
            UpdateArgument(
                kind="argmax" if statement.reduction == "argmax" else "argmin",
                best=target,
                argument=place(statement.argument),
                candidate=expression(statement.value),
                candidate_index=IndexValue(statement.argument_value.substitute(values), i64),
            ),
        )


def _times(value: Affine, count: int) -> Affine:
    """`count * value`, inside of a maximum."""
    return value * count if count == 1 else maximum(one * count for one in operands(value, "max"))


def _wrapped(subscripts: tuple[Subscript, ...], storage: Storage | None) -> tuple[Subscript, ...]:
    """The places in a sliding window: modulo its extent."""
    if storage is None or not storage.wraps:
        return subscripts
    places: list[Subscript] = []
    for subscript, extent, wraps in zip(subscripts, storage.shape, storage.wraps, strict=True):
        if wraps:
            assert isinstance(subscript, Affine), "internal: a sliding window of an array with computed subscripts"
            assert isinstance(extent, int), "internal: a sliding window of symbolic extent"
            subscript = subscript % extent
        places.append(subscript)
    return tuple(places)


def _owned_once(variable: str, request: _Request, body: tuple[Node, ...]) -> For:
    return For(
        variable=variable, lower=affine(0), upper=affine(1), step=request.factor if request.kind == "block" else 1,
        kind=request.kind, factor=request.factor, axis=request.axis, body=body,
    )  # fmt: skip


def _joined(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Neighbours that the same owner runs, whose loops were left out, in one: isl repeats a mark above every part of what is below."""
    made: list[Node] = []
    for node in nodes:
        last = made[-1] if made else None
        if isinstance(node, For) and isinstance(last, For) and node.mapped and _owner(node) == _owner(last) is not None:
            made[-1] = replace(last, body=_joined((*last.body, *node.body)))
        else:
            made.append(node)
    return tuple(made)


def _owner(loop: For) -> tuple[object, ...] | None:
    """What says who runs a loop that was left out; None for others."""
    once = loop.lower == affine(0) and loop.upper == affine(1) and loop.variable.startswith(f"{loop.kind}_")
    return (loop.variable, loop.kind, loop.axis, loop.factor) if once else None


def _request(mark: str) -> _Request | None:
    """The meaning of `kind`, `kind:factor`, `kind.axis:factor` or `kind:factor:digit` (values are remainders by the factor, which bounds in sizes do not show); None for a mark
    that says nothing about a loop."""
    word, factor, digit = [*mark.split(":"), "", ""][:3]
    name, _, axis = word.partition(".")
    name = "jam" if name == "neighbours" else name  # its sums are one thread's: the copies run in order
    for kind in get_args(LoopKind):
        if kind == name:
            asked = next((a for a in get_args(Axis) if a == axis), None)
            return _Request(kind, int(factor or 1), asked, digit == "digit")
    return None


def _minus(subscript: Subscript, offset: Affine) -> Subscript:
    if isinstance(subscript, Affine):
        return subscript - offset
    if offset == affine(0):
        return subscript
    wide = subscript if subscript.dtype == i64 else Apply("cast", (subscript,), i64)
    return Apply("sub", (wide, IndexValue(offset, i64)), i64)
