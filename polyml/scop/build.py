"""Region -> Scop: equations become statements over arrays, loops become leading dimensions, tensors become memory.

A reduction is split into init and update. A functional update whose result shares its base's array is done in place; where the right side would then
read elements that the same statement overwrites, those elements alone are saved first (simultaneity, copies.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import islpy as isl

from polyml.dtypes import DType
from polyml.expressions import Const, Expr, Read, map_reads, plain_indices, substitute
from polyml.graph.ir import Carried, Check, Equation, Loop, Op, Tensor
from polyml.new_names import underscored
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.scop.accesses import access_map
from polyml.scop.copies import InPlace, save_overwritten
from polyml.scop.levels import LoopLevel, enter_loops
from polyml.scop.relations import Relations
from polyml.scop.scop import Access, Array, ArrayKind, Scop, Statement, StatementKind
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box
from polyml.sets.linear_maps import map_to
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
        builder.op(op, _Around())
    return builder.finish(name, context, inputs, outputs, strides or {})


@dataclass(frozen=True, slots=True)
class _Around:
    """Where an op stands: in which loops, and behind which position of each in the written order."""

    loops: tuple[LoopLevel, ...] = ()
    prefix: tuple[int | str, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(level.variable for level in self.loops)

    @property
    def values(self) -> dict[str, Affine]:
        """What the loops' variables are, in their counters."""
        return {level.variable: level.value for level in self.loops}


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

    def op(self, op: Op, around: _Around) -> None:
        match op:
            case Equation():
                self.equation(op, around)
            case Loop():
                self.loop(op, around)
            case Check():
                pass

    def loop(self, loop: Loop, around: _Around) -> None:
        outer = around.values
        level = LoopLevel(loop.variable, loop.start.substitute(outer), loop.stop.substitute(outer), loop.step)
        for carried in loop.carried:
            self.copy(carried.initial, carried.inner, around)
        inside = _Around((*around.loops, level), (*self.next_time(around.prefix), loop.variable))
        for op in loop.body:
            self.op(op, inside)
        self.close_iteration(loop.carried, inside)
        for carried in loop.carried:
            self.copy(carried.inner, carried.result, around)

    def close_iteration(self, carried: Sequence[Carried], inside: _Around) -> None:
        """All carried tensors move at once: one that is passed on from another's place is saved first."""
        places = {self.array_of(item.inner) for item in carried}
        moves = [(item.next, item.inner) for item in carried if self.array_of(item.next) != self.array_of(item.inner)]
        saved: list[tuple[Tensor, Tensor]] = []
        for source, target in moves:
            if self.array_of(source) in places:
                name = self.local(f"{source.name}_moved", source.dtype, source.shape)
                moved = Tensor(name, source.dtype, source.shape, source.label)
                self.copy(source, moved, inside)
                source = moved
            saved.append((source, target))
        for source, target in saved:
            self.copy(source, target, inside)

    def copy(self, source: Tensor, target: Tensor, around: _Around) -> None:
        """A whole-array copy where two tensors that must be equal do not share memory."""
        origin, result = self.array_of(source), self.array_of(target)
        if origin == result:
            return
        elements = tuple(f"e{d}" for d in range(len(target.shape)))
        box = self.box(target.shape, elements, around)
        subscripts = tuple(affine(e) for e in elements)
        value = Read(origin, subscripts, source.dtype)
        self.add(f"{target.name}_copy", around, _own(elements, box, "copy", Access(result, subscripts), value))

    def box(self, shape: Sequence[Affine], elements: Sequence[str], around: _Around) -> isl.Set:
        """All elements of an array as instances inside the loops."""
        if not around.loops:
            return box("", elements, dict(zip(elements, shape, strict=True)), self.sizes)
        dims = [*around.variables, *elements]
        limits = [level.bounds for level in around.loops]
        limits += [f"0 <= {e} < {extent.isl_text()}" for e, extent in zip(elements, shape, strict=True)]
        where = f" : {' and '.join(limits)}" if limits else ""
        return isl.Set(f"{parameters_text(self.sizes)}{{ [{', '.join(dims)}]{where} }}")

    def equation(self, eq: Equation, around: _Around) -> None:
        values = around.values
        array = self.array_of(eq.result)
        target = tuple(s.substitute(values) if isinstance(s, Affine) else substitute(s, values) for s in eq.target)
        target = tuple(s if isinstance(s, Affine) else map_reads(s, self.to_array) for s in target)
        body = map_reads(substitute(eq.body, values), self.to_array)
        domain = enter_loops(eq.domain, around.loops)
        access = Access(array, target)
        if eq.base is not None:
            self.keep_base(eq, eq.base, access, around, domain)
        access, body = self.simultaneous(eq, access, around, domain, body)
        made = _own(eq.indices, domain, "assign", access, body, eq.span)
        if eq.reduce is None:
            self.add(eq.result.name, around, made)
        else:
            self.reduction(eq, eq.reduce, around, made)

    def reduction(self, eq: Equation, reduce: str, around: _Around, s: Statement) -> None:
        """The statement as an update, behind what sets the elements that are reduced into."""
        best, argument, dtype = s.target, None, s.value.dtype
        if REDUCTIONS[reduce].combine is None:
            best = Access(self.local(f"{eq.result.name}_best", dtype, eq.result.shape), s.target.subscripts)
            argument = s.target
        if not eq.accumulate:
            left = tuple(i for i in eq.indices if i not in eq.reduced)
            identity = REDUCTIONS[reduce].identity(dtype)
            start = Const(0 if identity is None else identity, dtype)
            instances = self.left_instances(eq, left, around)
            first = _own(left, instances, "init", best, start, eq.span)
            self.add(f"{eq.result.name}_init", around, replace(first, reduction=reduce, argument=argument))
            if eq.base is None and eq.instances is None and argument is None and not eq.is_plain:
                self.fill_rest(eq, s.target, instances, start, around)
        index = affine(eq.reduced[0]) if argument is not None else None
        update = replace(s, kind="update", target=best, reduction=reduce, argument=argument, argument_value=index)
        self.add(eq.result.name, around, update)

    def left_instances(self, eq: Equation, left: tuple[str, ...], around: _Around) -> isl.Set:
        """The left-side points of a reduction, those with nothing to reduce included."""
        if eq.instances is not None:
            return enter_loops(eq.instances, around.loops)
        plain = tuple(plain_indices(eq.target))
        if eq.base is None and plain == left:
            return self.box(eq.result.shape, left, around)
        count = len(eq.indices) - len(left)
        positions = [eq.indices.index(i) for i in left]
        assert positions == list(range(len(left))), "internal: reduced indices come last"
        return enter_loops(eq.domain.project_out(isl.dim_type.set, len(left), count), around.loops)

    def fill_rest(self, eq: Equation, target: Access, instances: isl.Set, start: Const, around: _Around) -> None:
        """Gives the identity to elements of a whole result that no instance hits: of rows in parts (`2*g + e`) those where a window has no term."""
        elements = tuple(f"e{d}" for d in range(len(eq.result.shape)))
        rest = self.box(eq.result.shape, elements, around).subtract(self.places(instances, eq.left, target, around))
        if not rest.is_empty():
            place = Access(target.array, tuple(map(affine, elements)))
            self.add(f"{eq.result.name}_rest", around, _own(elements, rest, "copy", place, start))

    def places(self, points: isl.Set, indices: Sequence[str], target: Access, around: _Around) -> isl.Set:
        """The elements that affine subscripts name at these points, inside the loops."""
        dims, where = (*around.variables, *indices), (*map(affine, around.variables), *target.subscripts)
        hit = access_map("x", dims, "x", where, (), sizes=self.sizes)
        return points.reset_tuple_id().apply(hit.reset_tuple_id(isl.dim_type.in_).reset_tuple_id(isl.dim_type.out))

    def keep_base(self, eq: Equation, base: Tensor, target: Access, around: _Around, domain: isl.Set) -> None:
        """Copies the base's elements that stay, where base and result do not share memory."""
        origin = self.array_of(base)
        if origin == target.array:
            return
        elements = tuple(f"e{d}" for d in range(len(base.shape)))
        stay = self.box(base.shape, elements, around)
        if not eq.accumulate and all(isinstance(s, Affine) for s in target.subscripts):
            stay = stay.subtract(self.places(domain, eq.indices, target, around))
        subscripts = tuple(affine(e) for e in elements)
        value = Read(origin, subscripts, base.dtype)
        self.add(
            f"{eq.result.name}_base", around, _own(elements, stay, "copy", Access(target.array, subscripts), value)
        )

    def simultaneous(
        self, eq: Equation, target: Access, around: _Around, domain: isl.Set, body: Expr
    ) -> tuple[Access, Expr]:
        """The target and the body with reads of overwritten elements redirected to copies of them, which are made first."""
        dtype, shape = self.arrays[target.array]
        place = InPlace(
            array=target.array,
            shape=shape,
            target=target.subscripts,
            domain=domain,
            loops=around.variables,
            indices=eq.indices,
            sizes=self.sizes,
            reducing=eq.reduce is not None,
        )
        computed = [s for s in target.subscripts if not isinstance(s, Affine)]
        saves, (value, *rest) = save_overwritten(
            (body, *computed), place, lambda k, shape: self.local(f"{eq.result.name}_old{k}", dtype, shape)
        )
        for save in saves:
            copy = Access(save.array, save.subscripts)
            self.add(save.array, around, _own(save.elements, save.instances, "copy", copy, save.value))
        places = iter(rest)
        return Access(
            target.array, tuple(s if isinstance(s, Affine) else next(places) for s in target.subscripts)
        ), value

    def to_array(self, read: Read) -> Read:
        name = self.storage.get(read.tensor, read.tensor)
        return read if name == read.tensor else Read(name, read.subscripts, read.dtype)

    def add(self, wish: str, around: _Around, s: Statement) -> None:
        """The statement inside the loops, next in the written order: under a name of its own, with their variables before its indices."""
        name = underscored(f"S_{wish}", self.statements)
        dims, domain = (*around.variables, *s.indices), s.domain
        for position, dim in enumerate(dims):
            domain = domain.set_dim_name(isl.dim_type.set, position, dim)
        domain = domain.set_tuple_name(name)
        self.statements[name] = replace(s, name=name, indices=dims, domain=domain, loop_depth=len(around.loops))
        self.times[name] = (*self.next_time(around.prefix), *s.indices)

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
        statements = self.statements.values()
        written = {access.array for s in statements for access in s.written}
        touched = {array for s in statements for array in s.touched}

        def kind(array: str) -> ArrayKind:
            if array in live_in:
                return "inout" if array in live_out or array in written else "input"
            return "output" if array in live_out else "local"

        arrays = {
            array: Array(name=array, dtype=dtype, shape=shape, kind=kind(array), strides=strides.get(array))
            for array, (dtype, shape) in self.arrays.items()
            if array in touched
        }
        relations = Relations(self.sizes, arrays)
        for statement in statements:
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
            padded = tuple(affine(t) for t in (*time, *([0] * (depth - len(time)))))
            times = map_to(name, statement.indices, "", padded, self.sizes)
            schedule = schedule.union(times.intersect_domain(statement.domain).to_union_map())
        return schedule


def _own(
    indices: Sequence[str], domain: isl.Set, kind: StatementKind, target: Access, value: Expr, span: Span | None = None
) -> Statement:
    """A statement that has no name yet, and no loops around its indices."""
    return Statement(name="", indices=tuple(indices), domain=domain, kind=kind, target=target, value=value, span=span)
