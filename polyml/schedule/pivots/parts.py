"""A scop whose statements are told apart by where they stand to the pivot's block, and the copies of what the parts read along their lanes.

An instance whose rows (lanes) lie in a later block than its pivot is beyond it in that direction. What is beyond in both directions is a contraction of what
is beyond in one, and reads its vector operand from panels, copied when they are final: `A_panels[0, k, j] = A[k, j]` (or `A[j, k]`, mirrored).
What is beyond along the rows only is a triangular system with the pivot's block; where the block is read across (mirrored), it is copied as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

import islpy as isl

from polyml.expressions import Read, Subscript, map_reads
from polyml.new_names import derived
from polyml.records import dataclass
from polyml.schedule.large_enough import extents_of
from polyml.schedule.pivots.joined_updates import renamed
from polyml.schedule.pivots.plan import Loops3, Pivots
from polyml.schedule.schedule import Storage
from polyml.scop.accesses import access_map, guarded_reads
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Access, Array, Scop, Statement
from polyml.sets.affine import Affine, affine
from polyml.sets.spaces import parameters_text

__all__ = ["Beyond", "PivotParts", "Side", "split_at_pivots", "with_panels"]

Beyond = Literal["rows", "lanes", "both"]
Side = Literal["rows", "lanes"]


@dataclass(frozen=True, slots=True)
class PivotParts:
    """parts: per place beyond the pivot's block, the statements there by the name of the one that they are of; what is left of those is the block itself.
    loops: per statement, copies included. copies: per place, the copy statements that run before it; storage: of the copies' arrays."""

    scop: Scop
    dependences: Dependences
    plan: Pivots
    parts: Mapping[Beyond, Mapping[str, str]]
    loops: Mapping[str, Loops3]
    copies: Mapping[Beyond, tuple[str, ...]] = field(default_factory=dict)
    storage: Mapping[str, Storage] = field(default_factory=dict)

    def walks(self, copy: str) -> bool:
        """Whether the copy's source has side by side what stands along the pivot."""
        value, pivot = self.scop.statements[copy].value, self.loops[copy].pivot
        last = value.subscripts[-1] if isinstance(value, Read) else None
        return (
            isinstance(value, Read)
            and isinstance(last, Affine)
            and last.name == pivot
            and self.scop.arrays[value.tensor].memory_strides[-1] == 1
        )


def split_at_pivots(scop: Scop, dependences: Dependences, plan: Pivots) -> PivotParts | None:
    """The scop in parts; None when some instance stands before its pivot, or only the core does not fill what is beyond in both directions."""
    places: tuple[Beyond, ...] = ("rows", "lanes", "both")
    parts: dict[Beyond, dict[str, str]] = {place: {} for place in places}
    statements: dict[str, Statement] = {}
    loops: dict[str, Loops3] = {}
    renaming: list[str] = []
    for name, statement in scop.statements.items():
        own = plan.loops[name]
        head = f"{parameters_text(scop.sizes)}{{ {name}[{', '.join(statement.indices)}]"
        bounds = [f"{index} >= {own.pivot}" for role, index in _directions(own) if role not in plan.free]
        if not statement.domain.is_subset(isl.Set(f"{head} : {' and '.join(bounds) or 'true'} }}")):
            return None
        texts = {place: _where(own, place, plan) for place in (*places, None)}
        for place, text in texts.items():
            made = name if place is None else derived(name, place)
            domain = statement.domain.intersect(isl.Set(f"{head} : {text} }}"))
            if domain.is_empty():
                continue
            indices = ", ".join(statement.indices)
            renaming.append(f"{name}[{indices}] -> {made}[{indices}] : {text}")
            statements[made] = replace(statement, name=made, domain=domain.set_tuple_name(made))
            loops[made] = own
            if place is not None:
                parts[place][name] = made
    if set(parts["both"]) != {plan.core}:
        return None
    mapping = isl.UnionMap(f"{parameters_text(scop.sizes)}{{ {'; '.join(renaming)} }}")
    scop, dependences = renamed(scop, dependences, mapping, statements)
    found = with_panels(PivotParts(scop, dependences, plan, parts, loops), "both", f"{plan.vector.tensor}_panels")
    if not plan.contiguous and plan.core in parts["rows"]:
        found = with_panels(found, "rows", f"{plan.vector.tensor}_mirror")
    return found


def _directions(own: Loops3) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("rows", own.rows), ("lanes", own.lanes)


def _where(own: Loops3, place: Beyond | None, plan: Pivots) -> str:
    """The condition for an instance to be at the place; along a free loop, everything is beyond."""
    conditions = []
    for role, index in _directions(own):
        beyond = place in (role, "both")
        if role in plan.free:
            conditions.append("true" if beyond else "false")
        else:
            sign = ">=" if beyond else "<"
            conditions.append(f"{index} {sign} {plan.block}*floor({own.pivot}/{plan.block}) + {plan.block}")
    return " and ".join(conditions)


# -- copies -------------------------------------------------------------------------------------------------------------------------


def with_panels(parts: PivotParts, place: Beyond, wish: str, *, role: Side = "lanes") -> PivotParts:
    """The core's part at the place reads its vector operand (or the one along the rows) from a copy in panels as wide as the register tile."""
    scop, plan = parts.scop, parts.plan
    reader = scop.statements[parts.parts[place][plan.core]]
    own = plan.loops[plan.core]
    source = plan.vector if role == "lanes" else plan.broadcast
    assert source is not None, "internal: no operand along the rows"
    along, other = (own.lanes, own.rows) if role == "lanes" else (own.rows, own.lanes)
    array = scop.new_array(wish)
    name = f"S_{array}"
    domain = reader.domain.project_out(isl.dim_type.set, reader.indices.index(other), 1)
    # Of whole tiles along a slanted edge quotients are left that say nothing.
    plain = domain.remove_divs()
    domain = (plain if plain.is_equal(domain) else domain).set_tuple_name(name)
    element = (affine(0), affine(own.pivot), affine(along))
    dtype = scop.arrays[source.tensor].dtype
    copy = Statement(
        name=name, indices=tuple(i for i in reader.indices if i != other), domain=domain, kind="copy",
        target=Access(array, element), value=source, span=reader.span,
    )  # fmt: skip
    shape = (affine(1), _extent(scop, reader, own.pivot), _extent(scop, reader, along))
    local = Array(name=array, dtype=dtype, shape=shape, kind="local")
    value = map_reads(reader.value, lambda read: Read(array, element, dtype) if read == source else read)
    changed = replace(reader, value=value)
    new, dependences = _inserted(scop, parts.dependences, local, copy, changed)
    width = plan.width if role == "lanes" else plan.tile.rows
    storage = _storage(parts, along, array, width, None if place == "rows" else shape[-1], (copy, changed))
    return replace(
        parts,
        scop=new,
        dependences=dependences,
        loops={
            **parts.loops,
            name: Loops3(own.rows if role == "rows" else "", own.lanes if role == "lanes" else "", own.pivot),
        },
        copies={**parts.copies, place: (*parts.copies.get(place, ()), name)},
        storage={**parts.storage, array: storage},
    )


def _extent(scop: Scop, statement: Statement, index: str) -> Affine:
    """One more than the index's last value; where that depends on sizes, the extent of a dimension that it stays in."""
    last = statement.domain.dim_max_val(statement.indices.index(index))
    return affine(last.to_python() + 1) if last.is_int() else extents_of(scop, statement)[index]


def _inserted(
    scop: Scop, found: Dependences, local: Array, copy: Statement, reader: Statement
) -> tuple[Scop, Dependences]:
    """The copy takes part in the dependences of the reads that it stands for: it runs after what wrote the element for its readers, and before what
    overwrites it after them. That all its readers find the value that they would have read follows when a schedule respects these."""
    head, indices = parameters_text(scop.sizes), ", ".join(copy.indices)
    own = reader.domain.to_union_set()
    to_copy = isl.UnionMap(f"{head}{{ {reader.name}[{', '.join(reader.indices)}] -> {copy.name}[{indices}] }}")
    to_copy = to_copy.intersect_domain(own)
    assert isinstance(copy.value, Read), "internal: a copy of more than one element"
    source = _access(scop, copy, copy.value.tensor, copy.value.subscripts)
    target = _access(scop, copy, copy.target.array, copy.target.subscripts)
    same = scop.may_writes.apply_range(source.reverse())
    flow = found.flow.intersect_range(own).apply_range(to_copy).intersect(same)
    anti = found.anti.intersect_domain(own).apply_domain(to_copy).intersect(same.reverse())
    live = found.live_in.intersect_domain(own).apply_domain(to_copy).intersect(source)
    reads = scop.reads.subtract_domain(own).union(scop.reductions.intersect_domain(own)).union(source)
    for read, guard in guarded_reads(reader.value):
        reads = reads.union(_access(scop, reader, read.tensor, read.subscripts, guard))
    new = replace(
        scop,
        arrays={**scop.arrays, local.name: local},
        statements={**scop.statements, copy.name: copy, reader.name: reader},
        initial=_initial(scop, to_copy),
        reads=reads,
        may_writes=scop.may_writes.union(target),
        must_writes=scop.must_writes.union(target),
    )
    return new, replace(
        found,
        flow=found.flow.union(flow).union(to_copy.reverse()),
        anti=found.anti.union(anti),
        live_in=found.live_in.union(live),
    )


def _access(
    scop: Scop, statement: Statement, array: str, subscripts: Sequence[Subscript], guard: Sequence[str] = ()
) -> isl.UnionMap:
    relation = access_map(statement.name, statement.indices, array, subscripts, (), sizes=scop.sizes, guard=guard)
    return relation.intersect_domain(statement.domain).to_union_map()


def _initial(scop: Scop, to_copy: isl.UnionMap) -> isl.UnionMap:
    """The written order with each copy right before its first reader."""
    depth = scop.initial.get_map_list().get_at(0).dim(isl.dim_type.out)
    times = ", ".join(f"t{d}" for d in range(depth))
    before, at = (isl.UnionMap(f"{{ [{times}] -> [{times}, {last}] }}") for last in (-1, 0))
    first = to_copy.reverse().apply_range(scop.initial).lexmin()
    return scop.initial.apply_range(at).union(first.apply_range(before))


def _storage(
    parts: PivotParts, along: str, array: str, width: int, extent: Affine | None, statements: Sequence[Statement]
) -> Storage:
    """Panel by panel, rows of one panel adjacent; only one block of the pivot, and where `extent` is None only one block along the panels, too."""
    pivot, block = parts.plan.loops[parts.plan.core].pivot, parts.plan.block
    first = f"{block // width}*floor({along}/{block})" if extent is None else "0"
    offset = (
        f"[(-(floor({along}/{width}) - {first})), ({block}*floor({pivot}/{block})), ({width}*floor({along}/{width}))]"
    )
    count = affine(block // width) if extent is None else (extent + (width - 1)) // width
    shape = (count.constant if count.is_constant else count, block, width)
    head = parameters_text(parts.scop.sizes)
    offsets = {s.name: isl.MultiAff(f"{head}{{ {s.name}[{', '.join(s.indices)}] -> {offset} }}") for s in statements}
    return Storage(array=array, place=f"allocate:{array}", shape=shape, offsets=offsets)
