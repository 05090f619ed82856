"""The loops around a statement and their names: how users, printers and transformations call a loop.

A loop is a single-member band; its name comes from what it computes of the statement's indices, so that it needs no bookkeeping and means the same in a tree that was
loaded from a file. The loop over index i is `i`, shifted, reversed or skewed or not; one over its tiles is `i_tile`; a sum of tile numbers is `wave`; equal names
are numbered from the outside in (`i_tile`, `i_tile_2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index

import islpy as isl

from polyml.errors import TransformError
from polyml.records import dataclass
from polyml.schedule.schedule import Schedule
from polyml.schedule.transforms.nodes import Loop
from polyml.schedule.tree import Kind, kind_of, mark_name, members, set_names
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, FloorDiv

__all__ = [
    "LARGEST", "LoopNode", "find_loop", "find_part", "largest_number", "loops_around", "loops_text", "parts_of", "rows_of", "tile_of", "whole_number",
]  # fmt: skip


LARGEST = 1 << 32
"""Above all coefficients of what a loop computes: with indices below 2^31 its values have 64 bits."""


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A loop around a statement. node: its band. row: what it computes of the statement's indices (None: by cases). mark: directly above it."""

    name: str
    node: isl.ScheduleNode
    row: Affine | None
    mark: str | None

    @property
    def top(self) -> isl.ScheduleNode:
        """The mark, or the band without one."""
        return self.node if self.mark is None else self.node.parent()

    @property
    def depth(self) -> int:
        """Nodes above the band."""
        return self.node.get_tree_depth()

    @property
    def loop(self) -> Loop:
        """The band's member with its mark."""
        row = self.node.band_get_partial_schedule().get_at(0)
        return Loop(row, self.node.band_member_get_coincident(0), self.mark)


def parts_of(tree: isl.Schedule, statement: str) -> tuple[isl.ScheduleNode, ...]:
    """The leaves that the statement's instances reach, in order; several once its domain is split."""
    return tuple(_leaves(tree.get_root(), statement))


def _leaves(node: isl.ScheduleNode, statement: str) -> list[isl.ScheduleNode]:
    if kind_of(node) == Kind.leaf:
        return [node] if statement in set_names(node.get_domain()) else []
    if kind_of(node) == Kind.filter and statement not in set_names(node.filter_get_filter()):
        return []
    return [leaf for k in range(node.n_children()) for leaf in _leaves(node.child(k), statement)]


def find_part(schedule: Schedule, statement: str) -> isl.ScheduleNode:
    """The leaf of `S`, or of its part `S@1`.

    Raises:
        TransformError: there is no such statement or part, or several parts.
    """
    name, _, number = statement.partition("@")
    if name not in schedule.scop.statements:
        raise TransformError(
            f"the schedule has no statement {name}", hint=f"statements: {', '.join(schedule.scop.statements)}"
        )
    leaves = parts_of(schedule.tree, name)
    if not leaves:
        raise TransformError(f"statement {name} never runs", hint="its domain is empty")
    known = ", ".join(f"{name}@{k}" for k in range(len(leaves)))
    if not number and len(leaves) > 1:
        raise TransformError(f"statement {name} stands in several places of the schedule", hint=f"say which: {known}")
    if number and not (number.isdecimal() and int(number) < len(leaves)):
        raise TransformError(f"statement {name} has no part {number}", hint=f"parts: {known}")
    return leaves[int(number or 0)]


def loops_around(schedule: Schedule, statement: str) -> tuple[LoopNode, ...]:
    """The loops around a statement (or a part of it), outermost first, named."""
    leaf, name = find_part(schedule, statement), statement.partition("@")[0]
    bands: list[isl.ScheduleNode] = []
    node = leaf
    while node.has_parent():
        node = node.parent()
        if kind_of(node) == Kind.band:
            bands.append(node)
    bands.reverse()
    rows = [members(band, schedule.scop)[0].rows.get(name) for band in bands]
    # A band that repeats an outer one has one iteration: no loop.
    new = [k for k, row in enumerate(rows) if row is None or row not in rows[:k]]
    bands, rows = [bands[k] for k in new], [rows[k] for k in new]
    names = _names(rows, schedule.scop.statements[name].indices)
    return tuple(LoopNode(n, b, r, _mark_above(b)) for n, b, r in zip(names, bands, rows, strict=True))


def find_loop(schedule: Schedule, statement: str, loop: str) -> LoopNode:
    """The loop of that name around the statement.

    Raises:
        TransformError: there is none.
    """
    around = loops_around(schedule, statement)
    for found in around:
        if found.name == loop:
            return found
    known = ", ".join(l.name for l in around) or "none"
    raise TransformError(f"statement {statement} is in no loop {loop}", hint=f"loops of {statement}: {known}")


def whole_number(value: object, what: str, *, least: int = 1) -> int:
    """A size, a factor or a distance as it came from a caller.

    Raises:
        TransformError: it is no integer, less than that, or so large that values of loops could leave 64 bits.
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number < LARGEST:
        raise TransformError(f"{what} is {value!r}", hint=f"it is an integer, {least} or more and below {LARGEST}")
    return number


def largest_number(row: Affine) -> int:
    """The largest coefficient or constant of a row, in absolute value."""
    inside = [largest_number(atom.numerator) for atom, _ in row.terms if isinstance(atom, FloorDiv)]
    return max(abs(row.constant), *inside, *(abs(factor) for _, factor in row.terms), 0)


def loops_text(schedule: Schedule) -> str:
    """A line per statement and part with the names of its loops, marked ones with their mark."""
    lines = []
    for name in schedule.scop.statements:
        count = len(parts_of(schedule.tree, name))
        for part in [name] if count == 1 else [f"{name}@{k}" for k in range(count)]:
            texts = [l.name if l.mark is None else f"{l.name} ({l.mark})" for l in loops_around(schedule, part)]
            lines.append(f"{part}: {', '.join(texts) or 'no loop'}")
    return "\n".join(lines)


def tile_of(row: Affine | None) -> tuple[Affine, int] | None:
    """`(x, s)` when the row is `s * (x // s)`, the first of the tile of x; else None. isl writes `8 * (2*x // 8)` as `8 * (x // 4)`."""
    if row is None or row.constant or len(row.terms) != 1:
        return None
    atom, factor = row.terms[0]
    if not isinstance(atom, FloorDiv) or factor <= 0 or factor % atom.denominator:
        return None
    return atom.numerator * (factor // atom.denominator), factor


def _mark_above(band: isl.ScheduleNode) -> str | None:
    above = band.parent()
    if kind_of(above) != Kind.mark or mark_name(above).startswith("allocate:"):
        return None
    return mark_name(above)


def _names(rows: list[Affine | None], indices: tuple[str, ...]) -> list[str]:
    """Names of rows: each index goes to the rows that are it alone first, then the rest to combinations, the inner ones first."""
    bases: list[Affine | None] = []
    tiled: list[bool] = []
    for row in rows:
        base, levels = row, 0
        while (tile := tile_of(base)) is not None:
            base, levels = tile[0], levels + 1
        bases.append(base)
        tiled.append(levels > 0)
    owner: dict[tuple[tuple[str, int], ...], str] = {}
    linear = [_linear(base, indices) for base in bases]
    for terms in linear:
        if terms is not None and len(terms) == 1:
            owner.setdefault(terms, terms[0][0])
    for terms in linear:
        if terms and terms not in owner:
            used = set(owner.values())
            free = [index for index in indices if any(index == i for i, _ in terms) and index not in used]
            owner[terms] = free[-1] if free else max((i for i, _ in terms), key=indices.index)
    counts: dict[str, int] = {}
    names = []
    for depth, (base, terms, is_tile) in enumerate(zip(bases, linear, tiled, strict=True)):
        plain = owner[terms] if terms else "wave" if _counts_tiles(base) else f"loop{depth}"
        name = plain + ("_tile" if is_tile else "")
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return names


def _linear(base: Affine | None, indices: tuple[str, ...]) -> tuple[tuple[str, int], ...] | None:
    """The index terms of a row without divisions, up to sign and scale; None for other rows."""
    if base is None or not all(isinstance(atom, str) for atom, _ in base.terms):
        return None
    terms = tuple((atom, factor) for atom, factor in base.terms if isinstance(atom, str) and atom in indices)
    return ((terms[0][0], 1),) if len(terms) == 1 else terms


def _counts_tiles(base: Affine | None) -> bool:
    return base is not None and any(isinstance(atom, FloorDiv) for atom, _ in base.terms)


def rows_of(node: isl.ScheduleNode, scop: Scop) -> Mapping[str, Affine | None]:
    """What a single-member band computes, statement by statement."""
    return members(node, scop)[0].rows
