"""What a way to schedule is given: one scop with its dependences, the machine, and what the caller allows; and what every way asks about it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import field, replace
from types import MappingProxyType

from polyml.options import Options
from polyml.records import dataclass
from polyml.schedule.cost import StatementModel
from polyml.schedule.matching import Matcher
from polyml.schedule.pack import Packed
from polyml.schedule.strategy.facts import Facts, StrategyOptions, model_statements
from polyml.schedule.sweeps.row_blocks import RowBlocks
from polyml.schedule.vector_length import suited_length
from polyml.scop.dependences import Dependences, analyse
from polyml.scop.scop import Scop
from polyml.sets.budget import BudgetExhausted
from polyml.target import Target

__all__ = ["Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """One scop to schedule. results: arrays that nothing reads after this region but the caller. pack: whether operands may be packed, and symbolic extents taken for large.

    refused: why isl's scheduler found no order of the scop as it is, once it was asked.
    """

    scop: Scop
    dependences: Dependences
    target: Target
    options: Options
    results: Set[str]
    pack: bool
    refused: list[BudgetExhausted] = field(default_factory=list, init=False, repr=False)
    _known: list[tuple[Matcher, dict[str, StatementModel]]] = field(default_factory=list, init=False, repr=False)

    def known(self) -> tuple[Matcher, dict[str, StatementModel]]:
        """What the scop's indices are to each other, and the cost models of its statements; the same to every attempt."""
        if not self._known:
            matcher = self.matcher(self.scop, self.dependences)
            self._known.append((matcher, model_statements(self.scop, matcher)))
        return self._known[0]

    def known_of(self, scop: Scop) -> tuple[Matcher, dict[str, StatementModel]]:
        """The same of another scop that is made of the task's."""
        matcher = self.matcher(scop, analyse(scop))
        return matcher, model_statements(scop, matcher)

    def of_suited_length(self) -> Task:
        """The same with vectors that suit the region, where the caller leaves it to us."""
        if not self.target.split_vectors or not self.may_block():
            return self
        known = self.known()
        made = replace(self, target=suited_length(known[1], self.target, precise=self.options.precise))
        made._known.append(known)
        return made

    def may_block(self, *, sized: bool = False) -> bool:
        """Whether the caller leaves loops to us, and all extents are numbers, unless `sized`."""
        asked = (self.options.costs, self.options.tile_sizes, self.options.register_tile)
        plain = not self.target.is_cuda and (sized or self.pack or not self.scop.sizes) and self.options.vectorize
        return plain and all(option is None for option in asked)

    def may_sweep(self) -> bool:
        """Whether arrays may be copied around loops that sweep over them: the other version, of calls that ask for few steps, is without copies."""
        return self.may_block(sized=True) and (self.pack or not self.scop.sizes)

    @property
    def has_threads(self) -> bool:
        return self.options.parallel and self.strategy_options.threads > 1

    @property
    def strategy_options(self) -> StrategyOptions:
        options = self.options
        return StrategyOptions(
            threads=options.threads or self.target.cores,
            vectorize=options.vectorize,
            parallel=options.parallel,
            relax_reductions=not options.precise,
            tile_sizes=options.tile_sizes,
            register_tile=options.register_tile,
            large=self.pack,
        )

    def matcher(self, scop: Scop, dependences: Dependences) -> Matcher:
        """For this scop, which a way has made of the task's."""
        return Matcher(scop, dependences, relax_reductions=not self.options.precise)

    def facts(
        self, packed: Packed, *, sizes: Mapping[str, int] = MappingProxyType({}), rows: RowBlocks | None = None
    ) -> Facts:
        """What the strategy looks at, for a scop that a way has made of the task's. sizes: numbers that symbolic ones are taken for; rows: as in Facts."""
        matcher = self.matcher(packed.scop, packed.dependences)
        models = model_statements(packed.scop, matcher, sizes)
        return Facts(
            packed=packed, matcher=matcher, models=models, target=self.target, options=self.strategy_options, rows=rows
        )
