"""Privatized reductions: each iteration of a loop sums into an element of its own, and the partial results are combined afterwards. The loop then carries nothing.

Source: rfactor, Suriana, Adams and Kamil, "Parallel associative reductions in Halide" (CGO 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyml.errors import TransformError
from polyml.expressions import Const, Read
from polyml.new_names import fresh, underscored
from polyml.ops import REDUCTIONS
from polyml.records import dataclass
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.loops import LoopNode, find_loop, find_part, loops_around, tile_of
from polyml.schedule.transforms.nodes import Loop, graft, insert_loops, insert_sequence, spliced
from polyml.schedule.tree import Kind, kind_of
from polyml.scop.dependences import analyse
from polyml.scop.relations import Relations
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import maps_of, parameters_text

__all__ = ["privatize"]


def privatize(schedule: Schedule, statement: str, loop: str) -> Schedule:
    """The reduction that the statement updates goes to a partial result per iteration of the loop (per tile of a tile loop); partial results are set to the identity
    before the statement's nest and combined after it. The region gets an array and two statements, whose dependences are analysed afresh.

    Rewrite: S: c[i] += x[i, k] -> for all b: p[b, i] = 0; S: p[k // s, i] += x[i, k]; for all b: c[i] += p[b, i].

    Raises:
        TransformError: no plain reduction, an indirect element, or other statements inside the loop.
    """
    found = find_loop(schedule, statement, loop)
    old = schedule.scop.statements.get(statement)
    if old is None or old.kind != "update" or old.argument is not None or old.reduction is None:
        raise TransformError(f"{statement} is no reduction that could be privatized")
    top = _own_nest(schedule, old)
    if found.depth < top.get_tree_depth():
        raise TransformError(f"loop {loop} is not {statement}'s own", hint="distribute the loops first")
    parts = _partials(schedule.scop, old, _number(schedule.scop, old, found), loop)
    scop = _with_partials(schedule.scop, parts)
    tree = _with_nests(schedule, old, parts, top)
    return replace(schedule, scop=scop, dependences=analyse(scop), tree=tree)


@dataclass(frozen=True, slots=True)
class _Partials:
    """What is added: the array of partial results, and the statements that fill it, add to it and combine it. visits: from the update's instances to (loops,
    number, element)."""

    array: Array
    init: Statement
    update: Statement
    combine: Statement
    visits: isl.Map


def _number(scop: Scop, statement: Statement, found: LoopNode) -> tuple[Affine, Affine]:
    """The number of an instance's partial result, from 0, and how many there are."""
    row = found.row
    tile = tile_of(row)
    number = row if tile is None else tile[0] // tile[1]
    if number is None:
        raise TransformError(f"loop {found.name} is defined by cases")
    name, indices = statement.name, ", ".join(statement.indices)
    counted = isl.Map(f"{parameters_text(scop.sizes)}{{ {name}[{indices}] -> [{number.isl_text()}] }}")
    values = statement.domain.apply(counted).gist_params(scop.context)
    low = values.dim_min_val(0)
    pieces = pieces_of(values.dim_max(0))
    if not low.is_int() or len(pieces) != 1:
        raise TransformError(f"how many partial results loop {found.name} needs is not affine in the sizes")
    return number - low.to_python(), affine_of(pieces[0][1], ()) - low.to_python() + 1


def _partials(scop: Scop, old: Statement, number: tuple[Affine, Affine], loop: str) -> _Partials:
    whole = scop.arrays[old.target.array]
    taken = {*scop.arrays, *scop.sizes, *old.indices}
    outer = old.indices[: old.loop_depth]
    count = fresh(loop, taken)
    subscripts = [s for s in old.target.subscripts if isinstance(s, Affine)]
    if len(subscripts) != len(old.target.subscripts):
        raise TransformError(f"{old.name} updates elements that are computed")
    elements: list[str] = []
    for s in subscripts:
        plain = s.name is not None and s.name not in (*outer, *elements)
        elements.append(s.name if plain and s.name is not None else fresh("e", taken))
    array = Array(
        name=fresh(f"{whole.name}_part", taken), dtype=whole.dtype, shape=(number[1], *whole.shape), kind="local"
    )
    head = parameters_text(scop.sizes)
    made = [underscored(f"S_{array.name}_{step}", scop.statements) for step in ("init", "combine")]
    where = [*outer, number[0].isl_text(), *(s.isl_text() for s in subscripts)]
    visits = isl.Map(f"{head}{{ {old.name}[{', '.join(old.indices)}] -> {made[0]}[{', '.join(where)}] }}")
    visits = visits.intersect_domain(old.domain)
    part = (affine(count), *map(affine, elements))
    first = (*outer, count, *elements)
    last = (*outer, *elements, count)
    swap = isl.Map(f"{head}{{ {made[0]}[{', '.join(first)}] -> {made[1]}[{', '.join(last)}] }}")
    assert old.reduction is not None, "internal: an update without a reduction"
    identity = REDUCTIONS[old.reduction].identity(whole.dtype)
    domain = _named(visits.range(), first)
    init = Statement(
        name=made[0], indices=first, domain=domain, kind="init", target=Access(array.name, part),
        value=Const(0 if identity is None else identity, whole.dtype), reduction=old.reduction,
        loop_depth=old.loop_depth, span=old.span,
    )  # fmt: skip
    combine = Statement(
        name=made[1], indices=last, domain=_named(domain.apply(swap), last), kind="update",
        target=Access(whole.name, tuple(map(affine, elements))), value=Read(array.name, part, whole.dtype), reduction=old.reduction,
        loop_depth=old.loop_depth, span=old.span,
    )  # fmt: skip
    update = replace(old, target=Access(array.name, (number[0], *subscripts)))
    return _Partials(array, init, update, combine, visits)


def _with_partials(scop: Scop, parts: _Partials) -> Scop:
    """The scop with the new array and statements, right around the old one."""
    arrays = {**scop.arrays, parts.array.name: parts.array}
    statements: dict[str, Statement] = {}
    for name, statement in scop.statements.items():
        around = (parts.init, parts.update, parts.combine) if name == parts.update.name else (statement,)
        statements.update({s.name: s for s in around})
    relations = Relations(scop.sizes, arrays)
    for statement in statements.values():
        relations.add(statement)
    return replace(
        scop,
        arrays=arrays,
        statements=statements,
        initial=_initial(scop, parts),
        reads=relations.reads,
        may_writes=relations.may_writes,
        must_writes=relations.must_writes,
        reductions=relations.reductions,
    )


def _initial(scop: Scop, parts: _Partials) -> isl.UnionMap:
    """The written order with room at the dimension in which statements of one nest are numbered."""
    old = parts.update
    found = maps_of(scop.initial)
    own = next(m for m in found if m.get_tuple_name(isl.dim_type.in_) == old.name)
    depth, at = own.dim(isl.dim_type.out), 2 * old.loop_depth
    fixed = [own.plain_get_val_if_fixed(isl.dim_type.out, d) for d in range(at + 1)]
    prefix = [str(v.to_python()) if v.is_int() else old.indices[d // 2] for d, v in enumerate(fixed[:at])]
    assert fixed[at].is_int(), "internal: a statement without a number in its nest"
    place = fixed[at].to_python()
    inner = {s.name: s.indices[s.loop_depth :] for s in (parts.init, parts.combine)}
    widest = max(depth, *(at + 1 + len(indices) for indices in inner.values()))
    times = [f"t{d}" for d in range(depth)]
    wider = [f"4*t{d}" if d == at else t for d, t in enumerate(times)] + ["0"] * (widest - depth)
    total = scop.initial.apply_range(isl.UnionMap(f"{{ [{', '.join(times)}] -> [{', '.join(wider)}] }}"))
    for statement, step in ((parts.init, -1), (parts.combine, 1)):
        time = [*prefix, str(4 * place + step), *inner[statement.name]]
        time += ["0"] * (widest - len(time))
        text = f"{{ {statement.name}[{', '.join(statement.indices)}] -> [{', '.join(time)}] }}"
        made = isl.Map(parameters_text(scop.sizes) + text).intersect_domain(statement.domain)
        total = total.union(made.to_union_map())
    return total


def _own_nest(schedule: Schedule, statement: Statement) -> isl.ScheduleNode:
    """The outermost node with nothing but the statement's own loops below it, the program's sequential loops apart."""
    outer = set(statement.indices[: statement.loop_depth])
    loops = {l.depth: l for l in loops_around(schedule, statement.name)}
    node = top = find_part(schedule, statement.name)
    while kind_of(node.parent()) in (Kind.band, Kind.mark):
        node = node.parent()
        if kind_of(node) == Kind.band:
            loop = loops.get(node.get_tree_depth())
            if loop is None or loop.row is None or loop.row.variables() & outer:
                break
            top = loop.top
    return top


def _with_nests(schedule: Schedule, old: Statement, parts: _Partials, top: isl.ScheduleNode) -> isl.Schedule:
    """The tree with the two new statements in nests before and after the old one's."""
    tree = schedule.tree
    # Around the nest they stand where the first instance of the update that they belong to stands.
    first = parts.visits.reverse().lexmin()
    swapped = isl.Map(
        f"{parameters_text(schedule.scop.sizes)}{{ {parts.combine.name}[{', '.join(parts.combine.indices)}] -> "
        f"{parts.init.name}[{', '.join(parts.init.indices)}] }}"
    )
    stand = tree.get_domain().identity().union(first.to_union_map())
    stand = stand.union(swapped.intersect_domain(parts.combine.domain).apply_range(first).to_union_map())
    steps = []
    node = top
    while node.has_parent():
        steps.append(node.get_child_position())
        node = node.parent()
    wide = tree.pullback_union_pw_multi_aff(isl.UnionPwMultiAff.from_union_map(stand)).get_root()
    for position in reversed(steps):
        wide = wide.child(position)
    outside = {
        l.row.name for l in loops_around(schedule, old.name) if l.depth < top.get_tree_depth() and l.row is not None
    }
    domains = [s.domain.to_union_set() for s in (parts.init, old, parts.combine)]
    node = insert_sequence(wide.cut(), domains)
    for position, statement in ((0, parts.init), (2, parts.combine)):
        rows = [
            _index_row(statement, index, schedule.scop.sizes) for index in statement.indices if index not in outside
        ]
        node = insert_loops(node.child(position).child(0), rows)
        while node.get_tree_depth() > wide.get_tree_depth():
            node = node.parent()
    node = graft(node.child(1).child(0), top)
    return spliced(node.get_schedule())


def _index_row(statement: Statement, index: str, sizes: Sequence[str]) -> Loop:
    text = f"{parameters_text(sizes)}{{ {statement.name}[{', '.join(statement.indices)}] -> [({index})] }}"
    return Loop(isl.UnionPwAff(text))


def _named(domain: isl.Set, indices: Sequence[str]) -> isl.Set:
    for position, index in enumerate(indices):
        domain = domain.set_dim_name(isl.dim_type.set, position, index)
    return domain
