"""Packing: a read-only operand that the best lanes would read with a stride is copied ahead into an array in which they read it contiguously.

A transformation of the Scop, before scheduling. `d[n, m] += (x[n, k] - y[m, k])**2` wants lanes along m and reads y with the stride of its rows: a copy
statement makes `y_by_m[k, m] = y[m, k]`, and the read becomes `y_by_m[k, m]`. It pays when each element is read many times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from polyml.expressions import Read, map_reads, reads_of
from polyml.schedule.cost import StatementModel
from polyml.schedule.schedule import Note
from polyml.scop.accesses import access_map, guarded_reads, parameters_text
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.target import Target

__all__ = ["Packed", "pack_operands"]

MIN_REUSE = 16
"""Times that an element must be read for a copy of it to pay."""

GAIN = 1.25
"""How many times cheaper the statement must become."""

_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The scop with copies, its dependences, the names of the copy statements, and what was decided."""

    scop: Scop
    dependences: Dependences
    copies: tuple[str, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Reads of `array` by `statement` whose subscript `dimension` is the index `lanes` go to a copy with that dimension last."""

    statement: str
    array: str
    dimension: int
    lanes: str

    @property
    def copy(self) -> str:
        return f"{self.array}_by_{self.dimension}"


def pack_operands(scop: Scop, dependences: Dependences, models: Mapping[str, StatementModel], target: Target) -> Packed:
    """The scop with the copies that pay; the same scop when none does."""
    plans = [plan for name in scop.statements for plan in _plans(scop, models[name], target)]
    if not plans:
        return Packed(scop=scop, dependences=dependences, copies=(), notes=())
    notes = tuple(
        Note(
            "packing",
            p.array,
            f"copied with dimension {p.dimension} last, so that lanes of {p.statement} along {p.lanes} read it contiguously",
        )
        for p in plans
    )
    made: dict[str, tuple[Array, Statement]] = {}
    for plan in plans:
        if plan.copy not in made:
            made[plan.copy] = _copy(scop, plan)
    changed = {name: _redirected(s, [p for p in plans if p.statement == name]) for name, s in scop.statements.items()}
    new_scop = _with_copies(scop, made, changed)
    flow = dependences.flow
    for array, (_, copy) in made.items():
        written = new_scop.must_writes.intersect_domain(copy.domain.to_union_set())
        reads = new_scop.reads.intersect_range(_universe(new_scop, array))
        flow = flow.union(written.apply_range(reads.reverse()))
    return Packed(
        scop=new_scop,
        dependences=replace(dependences, flow=flow),
        copies=tuple(copy.name for _, copy in made.values()),
        notes=notes,
    )


def _plans(scop: Scop, model: StatementModel, target: Target) -> list[_Plan]:
    """What to pack for one statement: its cheapest lanes with packing, when they beat the cheapest without by enough."""
    statement = scop.statements[model.name]
    if statement.kind != "update" or not model.extents:
        return []
    plain = min(model.lane_cost(index, target) for index in model.extents)
    best: tuple[float, list[_Plan]] = (plain / GAIN, [])
    for index in model.extents:
        found = [
            p
            for a in dict.fromkeys(r.tensor for r in reads_of(statement.value))
            for p in _packable(scop, model, a, index)
        ]
        if not found:
            continue
        elements = sum(_elements(scop.arrays[p.array]) for p in found)
        cost = (
            model.lane_cost(index, target, packed=frozenset(p.array for p in found)) + 2.0 * elements / model.instances
        )
        if cost < best[0]:
            best = (cost, found)
    return best[1]


def _packable(scop: Scop, model: StatementModel, array: str, index: str) -> list[_Plan]:
    """The plan that makes the array's reads contiguous along the index; none when they are, or cannot be, or when it would not pay."""
    statement = scop.statements[model.name]
    facts = scop.arrays[array]
    strided = [a for a in model.accesses if a.array == array and not a.write and a.stride(index) not in (0, 1)]
    if not strided or facts.kind != "input" or _written(scop, array):
        return []
    if not all(extent.is_constant for extent in facts.shape) or model.instances < MIN_REUSE * _elements(facts):
        return []
    dimensions = set()
    for read in reads_of(statement.value):
        if read.tensor != array:
            continue
        where = [d for d, s in enumerate(read.subscripts) if not isinstance(s, Affine) or index in s.variables()]
        if len(where) != 1:
            return []
        subscript = read.subscripts[where[0]]
        if not isinstance(subscript, Affine) or subscript.stride(index) != 1:
            return []
        dimensions.add(where[0])
    return [_Plan(model.name, array, dimensions.pop(), index)] if len(dimensions) == 1 else []


def _written(scop: Scop, array: str) -> bool:
    return any(
        array in (s.target.array, None if s.argument is None else s.argument.array) for s in scop.statements.values()
    )


def _elements(array: Array) -> int:
    return prod(extent.constant for extent in array.shape)


def _moved(items: tuple[Affine, ...], dimension: int) -> tuple[Affine, ...]:
    """The items with one moved to the end."""
    return (*items[:dimension], *items[dimension + 1 :], items[dimension])


def _copy(scop: Scop, plan: _Plan) -> tuple[Array, Statement]:
    """The packed array and the statement that fills it."""
    source = scop.arrays[plan.array]
    indices = tuple(f"e{d}" for d in range(len(source.shape)))
    elements = tuple(affine(i) for i in indices)
    name = f"S_{plan.copy}"
    limits = " and ".join(f"0 <= {i} < {extent.isl_text()}" for i, extent in zip(indices, source.shape, strict=True))
    order = _moved(elements, plan.dimension)
    names = [str(e) for e in order]
    statement = Statement(
        name=name,
        indices=tuple(names),
        domain=isl.Set(f"{parameters_text(scop.sizes)}{{ {name}[{', '.join(names)}] : {limits} }}"),
        kind="copy",
        target=Access(plan.copy, order),
        value=Read(plan.array, elements, source.dtype),
    )
    shape = _moved(source.shape, plan.dimension)
    last = shape[-1].constant
    if last * source.dtype.itemsize % _PAGE == 0:
        # Rows at multiples of a page fall into the same few sets of a cache.
        shape = (*shape[:-1], affine(last + 64 // source.dtype.itemsize))
    return Array(name=plan.copy, dtype=source.dtype, shape=shape, kind="local"), statement


def _redirected(statement: Statement, plans: list[_Plan]) -> Statement:
    by_array = {plan.array: plan for plan in plans}

    def change(read: Read) -> Read:
        plan = by_array.get(read.tensor)
        if plan is None:
            return read
        subscripts = read.subscripts
        d = plan.dimension
        return Read(plan.copy, (*subscripts[:d], *subscripts[d + 1 :], subscripts[d]), read.dtype)

    value = map_reads(statement.value, change)
    return statement if value is statement.value else replace(statement, value=value)


def _with_copies(scop: Scop, made: Mapping[str, tuple[Array, Statement]], changed: Mapping[str, Statement]) -> Scop:
    arrays = {**scop.arrays, **{name: array for name, (array, _) in made.items()}}
    statements = {**{s.name: s for _, s in made.values()}, **changed}
    reads, writes, must = scop.reads, scop.may_writes, scop.must_writes
    for name, statement in changed.items():
        if statement is not scop.statements[name]:
            reads = reads.subtract_domain(statement.domain.to_union_set())
            reads = reads.union(scop.reductions.intersect_domain(statement.domain.to_union_set()))
            reads = reads.union(_reads(statement, arrays, scop.sizes))
    for _, copy in made.values():
        reads = reads.union(_reads(copy, arrays, scop.sizes))
        relation = access_map(
            copy.name, copy.indices, copy.target.array, copy.target.subscripts, (), sizes=scop.sizes
        ).intersect_domain(copy.domain)
        writes, must = writes.union(relation.to_union_map()), must.union(relation.to_union_map())
    return replace(
        scop,
        arrays=arrays,
        statements=statements,
        initial=_initial(scop, [copy for _, copy in made.values()]),
        reads=reads,
        may_writes=writes,
        must_writes=must,
    )


def _reads(statement: Statement, arrays: Mapping[str, Array], sizes: tuple[str, ...]) -> isl.UnionMap:
    total = isl.UnionMap.empty(statement.domain.get_space().params())
    for read, guard in guarded_reads(statement.value):
        relation = access_map(
            statement.name,
            statement.indices,
            read.tensor,
            read.subscripts,
            arrays[read.tensor].shape,
            sizes=sizes,
            guard=guard,
        )
        total = total.union(relation.intersect_domain(statement.domain).to_union_map())
    return total


def _initial(scop: Scop, copies: list[Statement]) -> isl.UnionMap:
    """The written order with the copies ahead: times of the scop's own statements begin at 0."""
    maps = scop.initial.get_map_list()
    depth = maps.get_at(0).dim(isl.dim_type.out) if maps.n_map() else 1
    total = scop.initial
    widest = max((depth, *(1 + len(copy.indices) for copy in copies)))
    if widest > depth:
        zeros = ", ".join("0" for _ in range(widest - depth))
        times = ", ".join(f"t{d}" for d in range(depth))
        total = total.apply_range(isl.UnionMap(f"{{ [{times}] -> [{times}, {zeros}] }}"))
    for position, copy in enumerate(copies):
        time = [str(position - len(copies)), *copy.indices]
        time += ["0"] * (widest - len(time))
        text = f"{parameters_text(scop.sizes)}{{ {copy.name}[{', '.join(copy.indices)}] -> [{', '.join(time)}] }}"
        total = total.union(isl.Map(text).intersect_domain(copy.domain).to_union_map())
    return total


def _universe(scop: Scop, array: str) -> isl.UnionSet:
    names = ", ".join(f"a{d}" for d in range(len(scop.arrays[array].shape)))
    return isl.UnionSet(f"{parameters_text(scop.sizes)}{{ {array}[{names}] }}")
