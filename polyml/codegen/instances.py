"""The code of a schedule tree: by isl's AST generator, with the indices of each statement instance that the AST executes; or without it where boxes will do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import islpy as isl

from polyml.codegen.any_boxes import scan_any_boxes
from polyml.codegen.boxes import scan_boxes
from polyml.codegen.isl_ast import annotate, read_ast
from polyml.codegen.isl_expr import affine_cases
from polyml.codegen.quotients import Quotients, without_divisions
from polyml.codegen.scanned import BAND_END, Code, Instance, Variant
from polyml.dtypes import boolean
from polyml.errors import CodegenError
from polyml.expressions import Apply, Expr, reads_of
from polyml.interrupts import signals_wait
from polyml.records import dataclass
from polyml.schedule.schedule import Schedule
from polyml.scop.scop import Access, Statement
from polyml.sets.affine import Affine
from polyml.sets.callbacks import mapped_bottom_up

__all__ = ["scan_by_isl", "scan_schedule"]


def scan_schedule(schedule: Schedule) -> Code:
    """The code that executes the schedule, where the loop of a marked band stands between its mark and a mark `BAND_END`. Its iterators may count tiles (`Instance.counts`).

    Raises:
        CodegenError: isl cannot generate code, or an index is not quasi-affine.
    """
    return scan_boxes(schedule) or scan_any_boxes(schedule) or scan_by_isl(schedule)


def scan_by_isl(schedule: Schedule) -> Code:
    """`scan_schedule` by isl's AST generator, for any tree."""
    quotients = without_divisions(schedule.tree)
    scan = _Scan(schedule, quotients)
    build = isl.AstBuild.from_context(schedule.scop.context)
    build, handle = build.set_at_each_domain(scan.at_each_domain)
    tree = schedule.tree if quotients is None else quotients.tree
    tree = mapped_bottom_up(tree, _end_mark)
    with signals_wait():
        root = build.node_from_schedule(tree)
    del handle
    if isinstance(scan.fault, isl.Error):
        raise CodegenError(f"no code for the schedule of {schedule.scop.name}: {scan.fault}")
    if scan.fault is not None:
        raise scan.fault
    counts = {} if quotients is None else quotients.by_iterator()
    return read_ast(root, [_instance(found, counts.get(found.statement.name, {})) for found in scan.found])


@dataclass(frozen=True, slots=True)
class _Found:
    """What isl said about an instance: its indices and then the offsets of `arrays` (with their ranks) as arguments of an access."""

    statement: Statement
    arrays: tuple[tuple[str, int], ...]
    access: isl.AstExpr


@dataclass(slots=True)
class _Scan:
    """Collects instances while isl generates. An exception must not leave isl's callback, so that a fault is kept for later."""

    schedule: Schedule
    quotients: Quotients | None
    found: list[_Found] = field(default_factory=list)
    fault: Exception | None = None

    def at_each_domain(self, node: isl.AstNode, build: isl.AstBuild) -> isl.AstNode:
        try:
            found = self.look(build)
            node = annotate(node, len(self.found))
            self.found.append(found)
        except Exception as fault:
            self.fault = fault
        return node

    def look(self, build: isl.AstBuild) -> _Found:
        iterators = isl.PwMultiAff.from_map(isl.Map.from_union_map(build.get_schedule()).reverse())
        name = iterators.get_tuple_name(isl.dim_type.out)
        assert name is not None, "internal: a statement without a name"
        statement = self.schedule.scop.statements[name]
        arrays: list[tuple[str, int]] = []
        # Where they hold is where the build is: without that, products cost nothing.
        inside = values = iterators.gist(iterators.domain())
        if self.quotients is not None:  # these come last
            rank = len(statement.indices)
            values = inside.drop_dims(isl.dim_type.out, rank, inside.dim(isl.dim_type.out) - rank)
        for array in sorted({access.array for access in _accesses(statement)}):
            storage = self.schedule.storage.get(array)
            if storage is None or statement.name not in storage.offsets:
                continue
            offsets = storage.offsets[statement.name]
            if self.quotients is not None:
                offsets = self.quotients.of_instances(offsets, statement.name)
            offset = isl.PwMultiAff.from_multi_aff(offsets)
            values = values.flat_range_product(offset.pullback_pw_multi_aff(inside))
            arrays.append((array, len(storage.shape)))
        return _Found(statement, tuple(arrays), build.access_from_pw_multi_aff(values))


def _instance(found: _Found, counts: Mapping[str, int]) -> Instance:
    access = found.access
    variants: list[tuple[tuple[Expr, ...], tuple[Affine, ...]]] = [((), ())]
    for position in range(1, access.op_get_n_arg()):
        cases = affine_cases(access.op_get_arg(position))
        variants = [(conditions + more, (*values, value)) for conditions, values in variants for more, value in cases]
    made = tuple(_variant(found, conditions, values) for conditions, values in variants)
    return Instance(found.statement, made, counts)


def _variant(found: _Found, conditions: tuple[Expr, ...], values: tuple[Affine, ...]) -> Variant:
    names = found.statement.indices
    indices, rest = dict(zip(names, values, strict=False)), values[len(names) :]
    offsets: dict[str, tuple[Affine, ...]] = {}
    for array, rank in found.arrays:
        offsets[array], rest = rest[:rank], rest[rank:]
    assert not rest, "internal: storage offsets of another rank than the storage"
    condition: Expr | None = None
    for part in conditions:
        condition = part if condition is None else Apply("and", (condition, part), boolean)
    return Variant(condition, indices, offsets)


def _end_mark(node: isl.ScheduleNode) -> isl.ScheduleNode:
    """Below the band of a mark a second mark, so that the loop between the two in the AST is the band's, whatever isl makes of the other dimensions."""
    if isl.schedule_node_type(node.get_type()) != isl.schedule_node_type.mark:
        return node
    band, is_place = node.child(0), str(node.mark_get_id().get_name()).startswith("allocate:")
    if is_place or isl.schedule_node_type(band.get_type()) != isl.schedule_node_type.band:
        return node
    return band.child(0).insert_mark(isl.Id(BAND_END)).parent().parent()


def _accesses(statement: Statement) -> Iterator[Access]:
    places = [statement.target] if statement.argument is None else [statement.target, statement.argument]
    yield from places
    gathered = [s for access in places for s in access.subscripts if not isinstance(s, Affine)]
    for expr in (statement.value, *gathered):
        for read in reads_of(expr):
            yield Access(read.tensor, read.subscripts)
