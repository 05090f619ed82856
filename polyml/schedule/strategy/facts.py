"""What every part of the strategy looks at: the scop, its cost models, the target and what the caller allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.blocking.copies import BlockedNest
from polyml.schedule.cost import StatementModel
from polyml.schedule.matching import Matcher
from polyml.schedule.pack import Packed
from polyml.schedule.statement_models import Elements, model_statement
from polyml.schedule.sweeps.row_blocks import RowBlocks
from polyml.scop.scop import Scop, Statement
from polyml.target import Target

__all__ = ["Facts", "StrategyOptions", "model_statements"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """What the caller allows. threads: how many there may be. tile_sizes, register_tile: iterations, outermost first, instead of the model's.
    large: whether extents that are symbolic may be taken for large; there is another version for small ones."""

    threads: int
    vectorize: bool = True
    parallel: bool = True
    relax_reductions: bool = True
    tile_sizes: tuple[int, ...] | None = None
    register_tile: tuple[int, ...] | None = None
    large: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known before the strategy starts; nothing in here changes. models: by statement; blocked: by contraction. rows: several steps of the outermost loop per sweep."""

    packed: Packed
    matcher: Matcher
    models: dict[str, StatementModel]
    target: Target
    options: StrategyOptions
    blocked: Mapping[str, BlockedNest] = field(default_factory=dict)
    rows: RowBlocks | None = None

    @property
    def scop(self) -> Scop:
        """The scop with its packed operands."""
        return self.packed.scop

    def lanes(self, statement: str) -> int:
        """Elements of the statement's widest type in a vector."""
        return self.target.lanes(self.models[statement].itemsize)

    def panel_vectors(self, statement: str, index: str) -> int:
        """Vectors of the panels that the statement reads along the index, which register tiles have as well; 0: it reads none."""
        for access in self.models[statement].accesses:
            if access.array in self.packed.panels and access.stride(index) == 1:
                return self.packed.panels[access.array].width // self.lanes(statement)
        return 0


def model_statements(
    scop: Scop, matcher: Matcher, sizes: Mapping[str, int] = MappingProxyType({})
) -> dict[str, StatementModel]:
    """The cost models of all statements. sizes: numbers that symbolic ones are taken for."""
    found = {}
    elements = Elements(scop)
    for name, statement in scop.statements.items():
        extents = {index: matcher.extent(name, k) for k, index in enumerate(statement.indices)}
        if sizes and None in extents.values():
            extents = _extents(statement, sizes)
        model = model_statement(statement, scop, extents, elements)
        recurrences = (i for k, i in enumerate(statement.indices) if matcher.is_recurrence(name, k))
        found[name] = replace(model, recurrences=frozenset(recurrences))
    return found


def _extents(statement: Statement, sizes: Mapping[str, int]) -> dict[str, int | None]:
    """The width of the domain's box for these sizes."""
    domain = statement.domain
    for name, number in sizes.items():
        position = domain.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            domain = domain.fix_val(isl.dim_type.param, position, isl.Val.int_from_si(domain.get_ctx(), number))
    ends = [(domain.dim_min_val(k), domain.dim_max_val(k)) for k in range(len(statement.indices))]
    widths = [high.to_python() - low.to_python() + 1 if low.is_int() and high.is_int() else None for low, high in ends]
    return dict(zip(statement.indices, widths, strict=True))
