"""Region -> Scop: equations become statements over arrays, loops become leading dimensions, tensors become memory.

A reduction is split into init and update. A functional update whose result shares its base's array is done in place; where the right side would then
read elements that the same statement overwrites, those elements alone are saved first (simultaneity, copies.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import islpy as isl

from polyml.dtypes import DType
from polyml.expressions import Const, Expr, Read, Subscript, map_reads, plain_indices, substitute
from polyml.graph.ir import Carried, Check, Equation, Loop, Op, Tensor
from polyml.new_names import underscored
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.scop.accesses import access_map, guarded_reads
from polyml.scop.copies import save_overwritten
from polyml.scop.levels import LoopLevel, enter_loops
from polyml.scop.relations import Relations
from polyml.scop.scop import Access, Array, ArrayKind, Scop, Statement, StatementKind
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text
from polyml.source import Span

__all__ = ["build"]


def build(
    ops: Sequence[Op],
    *,
    name: str,
    sizes: tuple[str, ...],
    context: isl.Set,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    storage: Mapping[str, str],
    strides: Mapping[str, tuple[int, ...]] | None = None,
) -> Scop:
    """The scop of a region.

    Args:
        ops: the region's equations and loops, in order (checks are the plan's business).
        inputs, outputs: tensors that are live into and out of the region.
        storage: array name per tensor name; a tensor that is absent has an array of its own name. All tensors of one array have its shape.
        strides: of arrays that are not contiguous, in elements.
    """
    builder = _Builder(sizes, dict(storage))
    for tensor in (*inputs, *outputs):
        builder.array_of(tensor)
    for op in ops:
        builder.op(op, ())
    return builder.finish(name, context, inputs, outputs, strides or {})


@dataclass(slots=True)
class _Builder:
    sizes: tuple[str, ...]
    storage: dict[str, str]
    arrays: dict[str, tuple[DType, tuple[Affine, ...]]] = field(default_factory=dict)
    statements: dict[str, Statement] = field(default_factory=dict)
    times: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    counters: dict[tuple[int | str, ...], int] = field(default_factory=dict)

    # -- arrays and times -------------------------------------------------------------------------------------------

    def array_of(self, tensor: Tensor) -> str:
        name = self.storage.setdefault(tensor.name, tensor.name)
        known = self.arrays.setdefault(name, (tensor.dtype, tensor.shape))
        assert known == (tensor.dtype, tensor.shape), f"internal: array {name} holds tensors of different types"
        return name

    def local(self, wish: str, dtype: DType, shape: tuple[Affine, ...]) -> str:
        """A new array of the region's own."""
        name = underscored(wish, self.arrays)
        self.arrays[name] = (dtype, shape)
        return name

    def next_time(self, prefix: tuple[int | str, ...]) -> tuple[int | str, ...]:
        position = self.counters.get(prefix, 0)
        self.counters[prefix] = position + 1
        return (*prefix, position)

    # -- ops --------------------------------------------------------------------------------------------------------

    def op(self, op: Op, loops: tuple[LoopLevel, ...], prefix: tuple[int | str, ...] = ()) -> None:
        match op:
            case Equation():
                self.equation(op, loops, prefix)
            case Loop():
                self.loop(op, loops, prefix)
            case Check():
                pass

    def loop(self, loop: Loop, loops: tuple[LoopLevel, ...], prefix: tuple[int | str, ...]) -> None:
        outer = {level.variable: level.value for level in loops}
        level = LoopLevel(loop.variable, loop.start.substitute(outer), loop.stop.substitute(outer), loop.step)
        for carried in loop.carried:
            self.copy(carried.initial, carried.inner, loops, prefix)
        inside = (*self.next_time(prefix), loop.variable)
        for op in loop.body:
            self.op(op, (*loops, level), inside)
        self.close_iteration(loop.carried, (*loops, level), inside)
        for carried in loop.carried:
            self.copy(carried.inner, carried.result, loops, prefix)

    def close_iteration(
        self, carried: Sequence[Carried], loops: tuple[LoopLevel, ...], inside: tuple[int | str, ...]
    ) -> None:
        """All carried tensors move at once: one that is passed on from another's place is saved first."""
        places = {self.array_of(item.inner) for item in carried}
        moves = [(item.next, item.inner) for item in carried if self.array_of(item.next) != self.array_of(item.inner)]
        saved: list[tuple[Tensor, Tensor]] = []
        for source, target in moves:
            if self.array_of(source) in places:
                name = self.local(f"{source.name}_moved", source.dtype, source.shape)
                moved = Tensor(name, source.dtype, source.shape, source.label)
                self.copy(source, moved, loops, inside)
                source = moved
            saved.append((source, target))
        for source, target in saved:
            self.copy(source, target, loops, inside)

    def copy(self, source: Tensor, target: Tensor, loops: tuple[LoopLevel, ...], prefix: tuple[int | str, ...]) -> None:
        """A whole-array copy where two tensors that must be equal do not share memory."""
        origin, result = self.array_of(source), self.array_of(target)
        if origin == result:
            return
        elements = tuple(f"e{d}" for d in range(len(target.shape)))
        box = self.box(target.shape, elements, loops)
        subscripts = tuple(affine(e) for e in elements)
        self.add(
            f"{target.name}_copy",
            "copy",
            loops,
            elements,
            box,
            prefix,
            Access(result, subscripts),
            Read(origin, subscripts, source.dtype),
        )

    def box(self, shape: Sequence[Affine], elements: Sequence[str], loops: Sequence[LoopLevel]) -> isl.Set:
        """All elements of an array as instances inside `loops`."""
        dims = [*(level.variable for level in loops), *elements]
        limits = [level.bounds for level in loops]
        limits += [f"0 <= {e} < {extent.isl_text()}" for e, extent in zip(elements, shape, strict=True)]
        where = f" : {' and '.join(limits)}" if limits else ""
        return isl.Set(f"{parameters_text(self.sizes)}{{ [{', '.join(dims)}]{where} }}")

    def equation(self, eq: Equation, loops: tuple[LoopLevel, ...], prefix: tuple[int | str, ...]) -> None:
        values = {level.variable: level.value for level in loops}
        array = self.array_of(eq.result)
        target = tuple(s.substitute(values) if isinstance(s, Affine) else substitute(s, values) for s in eq.target)
        target = tuple(s if isinstance(s, Affine) else map_reads(s, self.to_array) for s in target)
        body = map_reads(substitute(eq.body, values), self.to_array)
        domain = enter_loops(eq.domain, loops)
        if eq.base is not None:
            self.keep_base(eq, eq.base, array, loops, prefix, domain, target)
        body = self.simultaneous(eq, array, loops, prefix, domain, target, body)
        access = Access(array, target)
        if eq.reduce is None:
            self.add(eq.result.name, "assign", loops, eq.indices, domain, prefix, access, body, span=eq.span)
            return
        best = access
        argument: Access | None = None
        if REDUCTIONS[eq.reduce].combine is None:
            best = Access(self.local(f"{eq.result.name}_best", body.dtype, eq.result.shape), target)
            argument = access
        if not eq.accumulate:
            left = tuple(i for i in eq.indices if i not in eq.reduced)
            identity = REDUCTIONS[eq.reduce].identity(body.dtype)
            start = Const(0 if identity is None else identity, body.dtype)
            instances = self.left_instances(eq, left, loops)
            self.add(
                f"{eq.result.name}_init",
                "init",
                loops,
                left,
                instances,
                prefix,
                best,
                start,
                eq.reduce,
                argument,
                span=eq.span,
            )
        index = affine(eq.reduced[0]) if argument is not None else None
        self.add(
            eq.result.name, "update", loops, eq.indices, domain, prefix, best, body, eq.reduce, argument, index, eq.span
        )

    def left_instances(self, eq: Equation, left: tuple[str, ...], loops: tuple[LoopLevel, ...]) -> isl.Set:
        """The left-side points of a reduction, those with nothing to reduce included."""
        if eq.instances is not None:
            return enter_loops(eq.instances, loops)
        plain = tuple(plain_indices(eq.target))
        if eq.base is None and plain == left:
            return self.box(eq.result.shape, left, loops)
        count = len(eq.indices) - len(left)
        positions = [eq.indices.index(i) for i in left]
        assert positions == list(range(len(left))), "internal: reduced indices come last"
        return enter_loops(eq.domain.project_out(isl.dim_type.set, len(left), count), loops)

    def keep_base(
        self,
        eq: Equation,
        base: Tensor,
        array: str,
        loops: tuple[LoopLevel, ...],
        prefix: tuple[int | str, ...],
        domain: isl.Set,
        target: tuple[Subscript, ...],
    ) -> None:
        """Copies the base's elements that stay, where base and result do not share memory."""
        origin = self.array_of(base)
        if origin == array:
            return
        elements = tuple(f"e{d}" for d in range(len(base.shape)))
        stay = self.box(base.shape, elements, loops)
        if not eq.accumulate and all(isinstance(s, Affine) for s in target):
            dims = (*(level.variable for level in loops), *eq.indices)
            where = (*(affine(level.variable) for level in loops), *target)
            hit = access_map("x", dims, "x", where, (), sizes=self.sizes).reset_tuple_id(isl.dim_type.in_)
            stay = stay.subtract(domain.apply(hit.reset_tuple_id(isl.dim_type.out)))
        subscripts = tuple(affine(e) for e in elements)
        self.add(
            f"{eq.result.name}_base",
            "copy",
            loops,
            elements,
            stay,
            prefix,
            Access(array, subscripts),
            Read(origin, subscripts, base.dtype),
        )

    def simultaneous(
        self,
        eq: Equation,
        array: str,
        loops: tuple[LoopLevel, ...],
        prefix: tuple[int | str, ...],
        domain: isl.Set,
        target: tuple[Subscript, ...],
        body: Expr,
    ) -> Expr:
        """The body with reads of overwritten elements redirected to copies of them, which are made first."""
        saves, redirected = save_overwritten(
            body,
            array=array,
            shape=self.arrays[array][1],
            target=target,
            domain=domain,
            loops=tuple(level.variable for level in loops),
            indices=eq.indices,
            sizes=self.sizes,
            reducing=eq.reduce is not None,
            name=lambda k, shape: self.local(f"{eq.result.name}_old{k}", self.arrays[array][0], shape),
        )
        for save in saves:
            self.add(
                save.array,
                "copy",
                loops,
                save.elements,
                save.instances,
                prefix,
                Access(save.array, save.subscripts),
                save.value,
            )
        return redirected

    def to_array(self, read: Read) -> Read:
        name = self.storage.get(read.tensor, read.tensor)
        return read if name == read.tensor else Read(name, read.subscripts, read.dtype)

    def add(
        self,
        wish: str,
        kind: StatementKind,
        loops: Sequence[LoopLevel],
        indices: Sequence[str],
        domain: isl.Set,
        prefix: tuple[int | str, ...],
        target: Access,
        value: Expr,
        reduction: str | None = None,
        argument: Access | None = None,
        argument_value: Affine | None = None,
        span: Span | None = None,
    ) -> None:
        name = underscored(f"S_{wish}", self.statements)
        dims = (*(level.variable for level in loops), *indices)
        for position, dim in enumerate(dims):
            domain = domain.set_dim_name(isl.dim_type.set, position, dim)
        self.statements[name] = Statement(
            name=name,
            indices=dims,
            domain=domain.set_tuple_name(name),
            kind=kind,
            target=target,
            value=value,
            reduction=reduction,
            argument=argument,
            argument_value=argument_value,
            loop_depth=len(loops),
            span=span,
        )
        self.times[name] = (*self.next_time(prefix), *indices)

    # -- the scop ---------------------------------------------------------------------------------------------------

    def finish(
        self,
        name: str,
        context: isl.Set,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        strides: Mapping[str, tuple[int, ...]],
    ) -> Scop:
        live_in = {self.storage.get(t.name, t.name) for t in inputs}
        live_out = {self.storage.get(t.name, t.name) for t in outputs}
        written = {a.array for s in self.statements.values() for a in (s.target, s.argument) if a is not None}

        def kind(array: str) -> ArrayKind:
            if array in live_in:
                return "inout" if array in live_out or array in written else "input"
            return "output" if array in live_out else "local"

        touched = {a.array for s in self.statements.values() for a in (s.target, s.argument) if a is not None}
        touched |= {r.tensor for s in self.statements.values() for r, _ in guarded_reads(s.value)}
        touched |= {
            r.tensor
            for s in self.statements.values()
            for u in s.target.subscripts
            if not isinstance(u, Affine)
            for r, _ in guarded_reads(u)
        }
        arrays = {
            array: Array(name=array, dtype=dtype, shape=shape, kind=kind(array), strides=strides.get(array))
            for array, (dtype, shape) in self.arrays.items()
            if array in touched
        }
        relations = Relations(self.sizes, arrays)
        for statement in self.statements.values():
            relations.add(statement)
        return Scop(
            name=name,
            context=context,
            sizes=self.sizes,
            arrays=arrays,
            statements=dict(self.statements),
            initial=self.initial_schedule(context),
            reads=relations.reads,
            may_writes=relations.may_writes,
            must_writes=relations.must_writes,
            reductions=relations.reductions,
        )

    def initial_schedule(self, context: isl.Set) -> isl.UnionMap:
        depth = max((len(time) for time in self.times.values()), default=1)
        schedule = isl.UnionMap.empty(context.get_space())
        for name, time in self.times.items():
            statement = self.statements[name]
            padded = ", ".join(str(t) for t in (*time, *([0] * (depth - len(time)))))
            text = f"{parameters_text(self.sizes)}{{ {name}[{', '.join(statement.indices)}] -> [{padded}] }}"
            schedule = schedule.union(isl.Map(text).intersect_domain(statement.domain).to_union_map())
        return schedule
